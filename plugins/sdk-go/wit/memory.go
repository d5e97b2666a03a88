//go:build wasip1

package wit

import "unsafe"

// What the host, or a call to it, still reads. An instance lives for one call, and this is let go at each of its own.
var kept [][]uint64

func allocate(size, align uint32) uint32 {
	if size == 0 {
		return align
	}
	memory := make([]uint64, (size+7)/8)
	kept = append(kept, memory)
	return uint32(uintptr(unsafe.Pointer(&memory[0])))
}

func release() { kept = nil }

//go:wasmexport cabi_realloc
func realloc(old, oldSize, align, size uint32) uint32 {
	address := allocate(size, align)
	if oldSize > 0 {
		copy(slice(address, size), slice(old, oldSize))
	}
	return address
}

func at(address uint32) unsafe.Pointer {
	wide := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&wide))
}

func slice(address, size uint32) []byte {
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(at(address)), size)
}

func load[T any](address uint32) T     { return *(*T)(at(address)) }
func store[T any](address uint32, v T) { *(*T)(at(address)) = v }

func flag(v bool) uint32 {
	if v {
		return 1
	}
	return 0
}

func lowerString(v string) (uint32, uint32) {
	size := uint32(len(v))
	address := allocate(size, 1)
	copy(slice(address, size), v)
	return address, size
}

func storeString(p uint32, v string) {
	address, size := lowerString(v)
	store(p, address)
	store(p+4, size)
}

func loadString(p uint32) string { return string(slice(load[uint32](p), load[uint32](p+4))) }

func lowerBytes(v []byte) (uint32, uint32) {
	size := uint32(len(v))
	address := allocate(size, 1)
	copy(slice(address, size), v)
	return address, size
}

func storeBytes(p uint32, v []byte) {
	address, size := lowerBytes(v)
	store(p, address)
	store(p+4, size)
}

func loadBytes(p uint32) []byte {
	return append([]byte{}, slice(load[uint32](p), load[uint32](p+4))...)
}
