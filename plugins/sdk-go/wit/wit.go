// Package wit is the contract between plugin and host.
package wit

// Result is Ok, unless there is an Err.
type Result[T, E any] struct {
	Ok  T
	Err *E
}

// Unit is nothing.
type Unit = struct{}
