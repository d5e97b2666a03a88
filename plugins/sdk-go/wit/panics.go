//go:build wasip1

package wit

import "unsafe"

// What the adapter in place of WASI needs to report a panic of another goroutine than the reconciler's own. No function recovers
// it: the runtime prints it in pieces and ends the instance.
var (
	// panicText is the buffer for what the runtime prints.
	panicText [8 << 10]byte
	// panicFields are the fields of the log line, each with address and length of name and value. The last value is the text.
	panicFields [2][4]uint32
	panicParts  [2][2]uint32
)

//go:wasmimport wasi_snapshot_preview1 fd_write
//go:noescape
func writeParts(descriptor int32, parts unsafe.Pointer, count uint32, written unsafe.Pointer) uint32

// adapterDescriptor is a descriptor that no program has. A write to it gives the adapter its memory.
const adapterDescriptor = 0x6F73

func init() {
	address := func(of unsafe.Pointer) uint32 { return uint32(uintptr(of)) }
	for i, name := range []string{"exception.location", "exception.stacktrace"} {
		panicFields[i][0], panicFields[i][1] = address(unsafe.Pointer(unsafe.StringData(name))), uint32(len(name))
		panicFields[i][2] = address(unsafe.Pointer(&panicText))
	}
	panicParts[0] = [2]uint32{address(unsafe.Pointer(&panicText)), uint32(len(panicText))}
	panicParts[1] = [2]uint32{address(unsafe.Pointer(&panicFields)), uint32(len(panicFields))}
	writeParts(adapterDescriptor, unsafe.Pointer(&panicParts), uint32(len(panicParts)), nil)
}
