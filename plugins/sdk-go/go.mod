module ostler.dev/sdk

go 1.24
