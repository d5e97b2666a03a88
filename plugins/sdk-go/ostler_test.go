package ostler

import (
	"encoding/json"
	"strings"
	"testing"

	"ostler.dev/sdk/wit"
)

// The other SDKs have the same mapping.
func TestHostErrorReturnedBecomesFittingFailure(t *testing.T) {
	other := wit.NotReady{Ref: Ref("v1", "ConfigMap", "b", "a"), Condition: "Ready", Exists: true, Message: "Not yet."}
	for _, test := range []struct {
		cause           wit.Error
		resolution      wit.ReconcilerResolutionCase
		reason, message string
	}{
		{wit.Error{Case: wit.ErrorDenied, Denied: "x"}, wit.ReconcilerResolutionDenied, "PermissionDenied", "Not permitted: x"},
		{wit.Error{Case: wit.ErrorNotFound, NotFound: "x"}, wit.ReconcilerResolutionWait, "NotFound", "Not found: x"},
		{wit.Error{Case: wit.ErrorConflict, Conflict: "x"}, wit.ReconcilerResolutionRetry, "Conflict", "x"},
		{wit.Error{Case: wit.ErrorInvalid, Invalid: "x"}, wit.ReconcilerResolutionTerminal, "Invalid", "x"},
		{wit.Error{Case: wit.ErrorThrottled, Throttled: 7}, wit.ReconcilerResolutionThrottled, "Throttled", "The other side asked for fewer requests."},
		{wit.Error{Case: wit.ErrorUnavailable, Unavailable: "x"}, wit.ReconcilerResolutionRetry, "Unavailable", "x"},
		{wit.Error{Case: wit.ErrorNotReady, NotReady: other}, wit.ReconcilerResolutionWait, "DependencyNotReady", "ConfigMap a is not Ready: Not yet."},
		{wit.Error{Case: wit.ErrorLimitExceeded, LimitExceeded: "x"}, wit.ReconcilerResolutionRetry, "LimitExceeded", "A limit of this reconcile is used up: x"},
		{wit.Error{Case: wit.ErrorUnsupported, Unsupported: "x"}, wit.ReconcilerResolutionTerminal, "Unsupported", "The host does not offer x"},
	} {
		failure := (&HostError{test.cause}).failure().failure
		if failure.Resolution.Case != test.resolution || failure.Reason != test.reason || failure.Message != test.message {
			t.Errorf("%v became %v", test.cause, failure)
		}
	}
}

func TestApiVersionIsSplitIntoGroupAndVersion(t *testing.T) {
	if core := gvk("v1", "Secret"); core.Group != "" || core.Version != "v1" {
		t.Error(core)
	}
	if other := gvk("apps/v1", "Deployment"); other.Group != "apps" || other.Version != "v1" {
		t.Error(other)
	}
}

// The host writes the message and the location of the report into the condition.
func TestPanicIsReportedWithMessageAndStack(t *testing.T) {
	var message string
	reported := map[string]string{}
	wit.LogWrite = func(level wit.LogLevel, text string, fields []struct{ F0, F1 string }) {
		message = text
		for _, field := range fields {
			reported[field.F0] = field.F1
		}
	}
	reconcile := func(outcome *Outcome, panics bool) (panicked any) {
		defer func() { panicked = recover() }()
		kind := Reconciler[json.RawMessage]{APIVersion: "a.dev/v1", Kind: "A", Reconcile: func(*Object[json.RawMessage]) (*Outcome, error) {
			if panics {
				panic("boom")
			}
			return outcome, nil
		}}
		request := wit.ReconcilerRequest{Object: []byte("{}"), Ref: Ref("a.dev/v1", "A", "n", "a")}
		plugin{kinds: []Kind{kind}}.Reconcile(request)
		return nil
	}
	if panicked := reconcile(nil, true); panicked != "boom" || message != "boom" {
		t.Error(panicked, message)
	}
	if _, located := reported["exception.location"]; !located || !strings.Contains(reported["exception.stacktrace"], "ostler_test.go") {
		t.Error(reported)
	}
	if reconcile(nil, false) == nil || !strings.Contains(message, "neither an outcome nor an error") {
		t.Error(message)
	}
	if panicked := reconcile(AwaitChange(), false); panicked != nil {
		t.Error(panicked)
	}
}
