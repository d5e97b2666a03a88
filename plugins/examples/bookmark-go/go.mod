module bookmark-go

go 1.24
