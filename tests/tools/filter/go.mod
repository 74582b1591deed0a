module filter

go 1.24
