// Code generated from wit/ by ostler-builder. DO NOT EDIT.

//go:build wasip1

package messages

import "ostler.dev/sdk/wit"

//go:wasmexport ostler:plugin/messages@0.1.0#handle
func exportHandle(p uint32) uint32 { return wit.CallMessagesHandle(p) }

//go:wasmexport cabi_post_ostler:plugin/messages@0.1.0#handle
func postHandle(uint32) { wit.PostMessagesHandle() }
