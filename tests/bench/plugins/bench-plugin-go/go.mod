module bench-plugin-go

go 1.24
