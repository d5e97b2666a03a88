// Code generated from wit/ by ostler-builder. DO NOT EDIT.

//go:build wasip1

package lifecycle

import "ostler.dev/sdk/wit"

//go:wasmexport ostler:plugin/lifecycle@0.1.0#initialize
func exportInitialize() uint32 { return wit.CallLifecycleInitialize() }

//go:wasmexport cabi_post_ostler:plugin/lifecycle@0.1.0#initialize
func postInitialize(uint32) { wit.PostLifecycleInitialize() }

//go:wasmexport ostler:plugin/lifecycle@0.1.0#upgrade
func exportUpgrade(a0, a1 uint32) uint32 { return wit.CallLifecycleUpgrade(a0, a1) }

//go:wasmexport cabi_post_ostler:plugin/lifecycle@0.1.0#upgrade
func postUpgrade(uint32) { wit.PostLifecycleUpgrade() }
