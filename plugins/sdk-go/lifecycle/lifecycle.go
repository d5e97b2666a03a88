// Package lifecycle has the hooks in the life cycle of a plugin. A plugin that imports it exports `ostler:plugin/lifecycle`, and
// its objects wait until the hooks have succeeded.
package lifecycle

import (
	"encoding/json"
	"errors"
	"strings"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/wit"
)

// Hooks are the hooks of a plugin; one that is nil succeeds. The host repeats a hook that returns an error.
type Hooks struct {
	// Initialize prepares the plugin before the first reconcile, whenever a host becomes the leader or loads another build. It
	// may run again at any time, so it must be idempotent. There is no reconciled object: references need a namespace.
	Initialize func() error
	// Upgrade upgrades an object that an earlier version stored, and returns the whole object, or nil if there is nothing to
	// change. Only `metadata.labels` and `metadata.annotations` may differ. Numbers of the object are [json.Number].
	Upgrade func(object map[string]any) (map[string]any, error)
}

// Export exports the hooks of a plugin. An init function calls it.
func Export(hooks Hooks) { wit.LifecycleExports = exported{hooks} }

type exported struct{ hooks Hooks }

func (e exported) Initialize() wit.Result[wit.Unit, wit.Error] {
	defer ostler.ReportPanic()
	if e.hooks.Initialize == nil {
		return wit.Result[wit.Unit, wit.Error]{}
	}
	return wit.Result[wit.Unit, wit.Error]{Err: toError(e.hooks.Initialize())}
}

func (e exported) Upgrade(bytes []byte) wit.Result[*[]byte, wit.Error] {
	defer ostler.ReportPanic()
	if e.hooks.Upgrade == nil {
		return wit.Result[*[]byte, wit.Error]{}
	}
	decoder := json.NewDecoder(strings.NewReader(string(bytes)))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil {
		return wit.Result[*[]byte, wit.Error]{Err: &wit.Error{Case: wit.ErrorInvalid, Invalid: err.Error()}}
	}
	upgraded, err := e.hooks.Upgrade(object)
	if err != nil || upgraded == nil {
		return wit.Result[*[]byte, wit.Error]{Err: toError(err)}
	}
	written, err := json.Marshal(upgraded)
	return wit.Result[*[]byte, wit.Error]{Ok: &written, Err: toError(err)}
}

func toError(err error) *wit.Error {
	if err == nil {
		return nil
	}
	var host *ostler.HostError
	if errors.As(err, &host) {
		return &host.Cause
	}
	return &wit.Error{Case: wit.ErrorUnavailable, Unavailable: err.Error()}
}
