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

func TestRequestsAreSentAtOnceWithAResultForEach(t *testing.T) {
	wit.HttpSendAll = func(requests []wit.HttpRequest) []wit.Result[wit.HttpResponse, wit.Error] {
		if len(requests) != 2 || requests[0].PathAndQuery != "/a" || requests[1].Method != wit.HttpMethodPut {
			t.Error(requests)
		}
		return []wit.Result[wit.HttpResponse, wit.Error]{
			{Ok: wit.HttpResponse{Status: 204}},
			{Err: &wit.Error{Case: wit.ErrorUnavailable, Unavailable: "x"}},
		}
	}
	upstream := Upstream{Name: "u"}
	results, err := upstream.SendAll([]Request{{Method: "GET", Path: "/a"}, {Method: "put", Path: "/b"}})
	if err != nil || !results[0].OK() || results[0].Err != nil || results[1].Response != nil || results[1].Err == nil {
		t.Error(results, err)
	}
	if _, err := upstream.SendAll([]Request{{Method: "BREW"}}); err == nil {
		t.Error("an unknown method was sent")
	}
}

func TestEventsAreSubscribedAndRead(t *testing.T) {
	var subscription wit.HttpSubscription
	wit.HttpSubscribe = func(sent wit.HttpSubscription) *wit.Error { subscription = sent; return nil }
	var query wit.HttpEventQuery
	wit.HttpReadEvents = func(sent wit.HttpEventQuery) (wit.HttpEventTail, *wit.Error) {
		query = sent
		return wit.HttpEventTail{Skipped: 3}, nil
	}
	upstream, end := Upstream{Name: "u"}, []EventMatch{EventWith("status", "/state", "done")}
	if err := upstream.Subscribe("/events", []EventMatch{EventNamed("log")}, end); err != nil {
		t.Error(err)
	}
	if subscription.PathAndQuery != "/events" || *subscription.Wake[0].Name != "log" || subscription.Until[0].Data.Value != "done" {
		t.Error(subscription)
	}
	tail, err := upstream.ReadEvents(EventQuery{Path: "/events", Until: end, MaxEvents: 5})
	if err != nil || tail.Skipped != 3 || *query.MaxEvents != 5 || query.MaxBytes != nil || query.Timeout != nil {
		t.Error(tail, query, err)
	}
}

func TestAppliedObjectIsReadBack(t *testing.T) {
	wit.KubernetesApply = func(object []byte, options wit.KubernetesApplyOptions) ([]byte, *wit.Error) {
		if !options.Owned {
			t.Error(options)
		}
		return []byte(`{"status":{"replicas":2}}`), nil
	}
	var applied struct{ Status struct{ Replicas int } }
	err := ApplyInto(map[string]string{"kind": "A"}, ApplyOptions{Owned: true}, &applied)
	if err != nil || applied.Status.Replicas != 2 {
		t.Error(applied, err)
	}
}
