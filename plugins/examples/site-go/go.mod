module site-go

go 1.24
