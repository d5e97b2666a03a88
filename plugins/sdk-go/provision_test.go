package ostler

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"testing"

	"ostler.dev/sdk/wit"
)

// tableResult is a failure, or the error of a host function, as the table of all languages has it.
type tableResult struct {
	Resolution   string          `json:"resolution"`
	Reason       string          `json:"reason"`
	Message      string          `json:"message"`
	Milliseconds uint64          `json:"milliseconds"`
	Grant        string          `json:"grant"`
	Conditions   [][4]string     `json:"conditions"`
	Status       json.RawMessage `json:"status"`
	Error        string          `json:"error"`
	Value        json.RawMessage `json:"value"`
}

// tableTree is one of: a step, serial, concurrent, or a condition with its tree.
type tableTree struct {
	Step       *string     `json:"step"`
	Serial     []tableTree `json:"serial"`
	Concurrent []tableTree `json:"concurrent"`
	When       *bool       `json:"when"`
	Tree       *tableTree  `json:"tree"`
}

type tableCase struct {
	Name, Direction string
	Tree            tableTree
	Results         map[string]tableResult
	Calls           []string
	Conditions      [][4]string
	Failure         *tableResult
}

// tablePart is a part that records its calls, and returns the result of the table.
type tablePart struct {
	name   string
	result error
	calls  *[]string
}

func (p tablePart) Provision() error {
	*p.calls = append(*p.calls, "+"+p.name)
	return p.result
}

func (p tablePart) Deprovision() error {
	*p.calls = append(*p.calls, "-"+p.name)
	return p.result
}

var tableStatuses = map[string]ConditionStatus{"True": True, "False": False, "Unknown": Unknown}

func (r tableResult) toError(t *testing.T) error {
	var text string
	_ = json.Unmarshal(r.Value, &text)
	switch r.Error {
	case "":
	case "denied":
		return &HostError{wit.Error{Case: wit.ErrorDenied, Denied: text}}
	case "not-found":
		return &HostError{wit.Error{Case: wit.ErrorNotFound, NotFound: text}}
	case "conflict":
		return &HostError{wit.Error{Case: wit.ErrorConflict, Conflict: text}}
	case "invalid":
		return &HostError{wit.Error{Case: wit.ErrorInvalid, Invalid: text}}
	case "throttled":
		var milliseconds uint64
		_ = json.Unmarshal(r.Value, &milliseconds)
		return &HostError{wit.Error{Case: wit.ErrorThrottled, Throttled: milliseconds}}
	case "unavailable":
		return &HostError{wit.Error{Case: wit.ErrorUnavailable, Unavailable: text}}
	case "limit-exceeded":
		return &HostError{wit.Error{Case: wit.ErrorLimitExceeded, LimitExceeded: text}}
	case "unsupported":
		return &HostError{wit.Error{Case: wit.ErrorUnsupported, Unsupported: text}}
	default:
		t.Fatalf("unknown error %s", r.Error)
	}
	resolution := wit.ReconcilerResolution{Denied: r.Grant, Throttled: r.Milliseconds}
	cases := []string{"retry", "throttled", "wait", "denied", "terminal"}
	resolution.Case = []wit.ReconcilerResolutionCase{
		wit.ReconcilerResolutionRetry, wit.ReconcilerResolutionThrottled, wit.ReconcilerResolutionWait,
		wit.ReconcilerResolutionDenied, wit.ReconcilerResolutionTerminal,
	}[slices.Index(cases, r.Resolution)]
	failed := failure(resolution, r.Reason, r.Message)
	for _, c := range r.Conditions {
		failed.With(Condition{Type: c[0], Status: tableStatuses[c[1]], Reason: c[2], Message: c[3]})
	}
	if r.Status != nil {
		failed.Status(r.Status)
	}
	return failed
}

func (c tableCase) build(t *testing.T, tree tableTree, calls *[]string) StepTree {
	buildAll := func(trees []tableTree) []StepTree {
		var built []StepTree
		for _, tree := range trees {
			built = append(built, c.build(t, tree, calls))
		}
		return built
	}
	switch {
	case tree.Step != nil:
		part := tablePart{name: *tree.Step, calls: calls}
		if result, fails := c.Results[*tree.Step]; fails {
			part.result = result.toError(t)
		}
		return Step(*tree.Step, part)
	case tree.When != nil:
		return When(*tree.When, c.build(t, *tree.Tree, calls))
	case tree.Concurrent != nil:
		return Concurrent(buildAll(tree.Concurrent)...)
	default:
		return Serial(buildAll(tree.Serial)...)
	}
}

func (c tableCase) check(t *testing.T) {
	calls := []string{}
	tree := c.build(t, c.Tree, &calls)
	run := tree.Provision
	if c.Direction == "deprovision" {
		run = tree.Deprovision
	}
	outcome, err := run()
	if !slices.Equal(calls, c.Calls) {
		t.Errorf("calls %v", calls)
	}
	var conditions []Condition
	if c.Failure == nil {
		if err != nil || outcome.outcome.Next.Case != wit.ReconcilerNextAwaitChange {
			t.Fatalf("%v, %v", outcome, err)
		}
		conditions = outcome.outcome.Conditions
	} else {
		var failed *Failure
		if outcome != nil || !errors.As(err, &failed) {
			t.Fatalf("%v, %v", outcome, err)
		}
		conditions = failed.failure.Conditions
		expected := c.Failure.toError(t).(*Failure).failure
		expected.Conditions = conditions
		if !reflect.DeepEqual(failed.failure, expected) {
			t.Errorf("failure %+v, expected %+v", failed.failure, expected)
		}
	}
	shown := [][4]string{}
	for _, condition := range conditions {
		for text, status := range tableStatuses {
			if status == condition.Status {
				shown = append(shown, [4]string{condition.Type, text, condition.Reason, condition.Message})
			}
		}
	}
	if !slices.Equal(shown, c.Conditions) {
		t.Errorf("conditions %v", shown)
	}
}

func TestStepsRunAsInTheTableOfAllLanguages(t *testing.T) {
	text, err := os.ReadFile("../sdk/tests/provision/table.json")
	if err != nil {
		t.Fatal(err)
	}
	var table struct{ Cases []tableCase }
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.Cases) == 0 {
		t.Fatal("the table is empty")
	}
	for _, c := range table.Cases {
		t.Run(c.Name, c.check)
	}
}

func TestPlainErrorOfStepIsRetriedAsInReconcile(t *testing.T) {
	var calls []string
	part := tablePart{name: "A", result: errors.New("boom"), calls: &calls}
	_, err := Step("A", part).Provision()
	failed := err.(*Failure).failure
	if failed.Resolution.Case != wit.ReconcilerResolutionRetry || failed.Reason != "Error" || failed.Message != "A: boom" {
		t.Errorf("%+v", failed)
	}
}

func TestDetailOfPublicMessageIsLoggedOnly(t *testing.T) {
	var logged []string
	defer func(write func(wit.LogLevel, string, []struct{ F0, F1 string })) { wit.LogWrite = write }(wit.LogWrite)
	wit.LogWrite = func(level wit.LogLevel, text string, _ []struct{ F0, F1 string }) {
		logged = append(logged, fmt.Sprint(level == wit.LogLevelWarn, " ", text))
	}
	for _, test := range []struct {
		err    error
		isWarn bool
	}{
		{Terminal("Refused", "10.0.0.7 refused db-admin."), true},
		{&HostError{wit.Error{Case: wit.ErrorUnavailable, Unavailable: "10.0.0.7 refused db-admin."}}, true},
		{Wait("Pending", "10.0.0.7 is busy."), false},
	} {
		logged = nil
		public := toFailure(WithPublicMessage(test.err, "The database is not there.")).failure
		expected := toFailure(test.err).failure
		expected.Message = "The database is not there."
		if !reflect.DeepEqual(public, expected) {
			t.Errorf("%+v, expected %+v", public, expected)
		}
		if expected := fmt.Sprint(test.isWarn, " ", test.err); !slices.Equal(logged, []string{expected}) {
			t.Errorf("logged %q, expected %q", logged, expected)
		}
	}
	if WithPublicMessage(nil, "x") != nil {
		t.Error("a success became a failure")
	}
}

func TestFailureThatStepReturnsAgainIsNotChanged(t *testing.T) {
	var calls []string
	kept := Wait("Because", "Not yet.")
	tree := Concurrent(Step("A", tablePart{"A", kept, &calls}), Step("B", tablePart{"B", kept, &calls}))
	for range 2 {
		if _, err := tree.Provision(); err.Error() != "A: Not yet. B: Not yet." {
			t.Error(err)
		}
	}
	if kept.failure.Message != "Not yet." || kept.failure.Conditions != nil {
		t.Errorf("%+v", kept)
	}
}

// fakeHost has objects by cluster, kind, namespace and name, and records the calls.
type fakeHost struct {
	objects map[string]map[string]any
	calls   []string
	options []wit.KubernetesApplyOptions
	// keeps makes a deleted object stay with a deletion timestamp, as one with finalizers does.
	keeps bool
}

func key(ref ObjectRef) string {
	text := ref.Gvk.Kind
	for _, part := range []*string{ref.Namespace, &ref.Name} {
		if part != nil {
			text += " " + *part
		}
	}
	if ref.Cluster != nil {
		text += " on " + *ref.Cluster
	}
	return text
}

func (h *fakeHost) metadata(ref ObjectRef) map[string]any {
	return h.objects[key(ref)]["metadata"].(map[string]any)
}

func (h *fakeHost) record(call string, ref ObjectRef) { h.calls = append(h.calls, call+" "+key(ref)) }

func (h *fakeHost) take() []string {
	calls := h.calls
	h.calls = nil
	return calls
}

func newFakeHost() *fakeHost {
	h := &fakeHost{objects: map[string]map[string]any{}}
	wit.KubernetesGet = func(ref ObjectRef, options wit.KubernetesGetOptions) (*[]byte, *wit.Error) {
		call := "get"
		if options.Projection.Case == wit.KubernetesProjectionMetadata {
			call = "get-metadata"
		}
		h.record(call, ref)
		object, exists := h.objects[key(ref)]
		if !exists {
			return nil, nil
		}
		text := encode(object)
		return &text, nil
	}
	wit.KubernetesApply = func(text []byte, options wit.KubernetesApplyOptions) ([]byte, *wit.Error) {
		var object map[string]any
		if err := json.Unmarshal(text, &object); err != nil {
			return nil, &wit.Error{Case: wit.ErrorInvalid, Invalid: err.Error()}
		}
		metadata := object["metadata"].(map[string]any)
		ref := Ref("v1", object["kind"].(string), metadata["namespace"].(string), metadata["name"].(string))
		ref.Cluster = options.Cluster
		h.record("apply", ref)
		h.options = append(h.options, options)
		metadata["uid"] = "uid-of-" + ref.Name
		switch {
		case options.Owned && options.Cluster != nil:
			metadata["labels"] = map[string]any{ownerUIDLabel: "u-1"}
		case options.Owned:
			metadata["ownerReferences"] = []any{map[string]any{"uid": "u-1"}}
		}
		if live := h.objects[key(ref)]; live != nil {
			object["status"] = live["status"]
		}
		h.objects[key(ref)] = object
		return encode(object), nil
	}
	wit.KubernetesRequireCondition = func(ref ObjectRef, kind string, status ConditionStatus) ([]byte, *wit.Error) {
		h.record("require "+kind, ref)
		object, exists := h.objects[key(ref)]
		if exists && status == True && object["status"] == kind {
			return encode(object), nil
		}
		cause := wit.NotReady{Ref: ref, Condition: kind, Exists: exists}
		return nil, &wit.Error{Case: wit.ErrorNotReady, NotReady: cause}
	}
	wit.KubernetesDelete = func(ref ObjectRef, options wit.KubernetesDeleteOptions) *wit.Error {
		call := "delete"
		if options.Propagation == wit.KubernetesPropagationForeground {
			call = "delete-foreground"
		}
		if uid := options.Preconditions.Uid; uid != nil {
			call += " " + *uid
		}
		h.record(call, ref)
		if h.keeps {
			h.metadata(ref)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
		} else {
			delete(h.objects, key(ref))
		}
		return nil
	}
	wit.ReferencesHold = func(ref ObjectRef) *wit.Error {
		h.record("hold", ref)
		if _, exists := h.objects[key(ref)]; !exists {
			return &wit.Error{Case: wit.ErrorNotFound, NotFound: key(ref)}
		}
		return nil
	}
	return h
}

var testOwner = Metadata{Name: "a", Namespace: "n", UID: "u-1"}

func testMap(namespace string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "m", "namespace": namespace}}
}

// expectFailure fails the test unless an error is a failure with this resolution and reason.
func expectFailure(t *testing.T, err error, resolution wit.ReconcilerResolutionCase, reason string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, but %s is expected", reason)
	}
	if failed := toFailure(err).failure; failed.Resolution.Case != resolution || failed.Reason != reason {
		t.Errorf("%+v, but %s is expected", failed, reason)
	}
}

func expectCalls(t *testing.T, h *fakeHost, expected ...string) {
	t.Helper()
	if calls := h.take(); !slices.Equal(calls, expected) {
		t.Errorf("calls %q, expected %q", calls, expected)
	}
}

func TestResourceIsAppliedAfterReadAndDeletedWithItsUID(t *testing.T) {
	h := newFakeHost()
	resource := Resource{Owner: testOwner, Object: testMap("n")}
	if err := resource.Provision(); err != nil {
		t.Fatal(err)
	}
	expectCalls(t, h, "get ConfigMap n m", "apply ConfigMap n m")
	if options := h.options[0]; !options.Owned || !options.Force || options.Cluster != nil {
		t.Errorf("%+v", options)
	}
	if err := resource.Deprovision(); err != nil {
		t.Fatal(err)
	}
	expectCalls(t, h, "get-metadata ConfigMap n m", "delete-foreground uid-of-m ConfigMap n m", "get-metadata ConfigMap n m")
	if err := resource.Deprovision(); err != nil {
		t.Fatal(err)
	}
	expectCalls(t, h, "get-metadata ConfigMap n m")
}

func TestResourceOfAnotherOwnerIsNeitherChangedNorDeleted(t *testing.T) {
	h := newFakeHost()
	for _, owners := range []any{nil, []any{map[string]any{"uid": "u-0"}}} {
		foreign := testMap("n")
		foreign["metadata"].(map[string]any)["ownerReferences"] = owners
		h.objects["ConfigMap n m"] = foreign
		resource := Resource{Owner: testOwner, Object: testMap("n")}
		expectFailure(t, resource.Provision(), wit.ReconcilerResolutionTerminal, "NotOwned")
		expectCalls(t, h, "get ConfigMap n m")
		if err := resource.Deprovision(); err != nil {
			t.Error(err)
		}
		expectCalls(t, h, "get-metadata ConfigMap n m")
		// An owner without a uid owns nothing.
		resource.Owner.UID = ""
		expectFailure(t, resource.Provision(), wit.ReconcilerResolutionTerminal, "NotOwned")
		expectCalls(t, h, "get ConfigMap n m")
	}
	adopting := Resource{Owner: testOwner, Object: testMap("n"), Adopt: true}
	if err := adopting.Provision(); err != nil {
		t.Error(err)
	}
	expectCalls(t, h, "get ConfigMap n m", "apply ConfigMap n m")
}

func TestResourceInAnotherNamespaceBelongsToItsOwnerByLabel(t *testing.T) {
	h := newFakeHost()
	object := testMap("other")
	object["metadata"].(map[string]any)["labels"] = map[string]string{"app": "m"}
	resource := Resource{Owner: testOwner, Object: object}
	if err := resource.Provision(); err != nil {
		t.Fatal(err)
	}
	applied := h.objects["ConfigMap other m"]["metadata"].(map[string]any)
	if !reflect.DeepEqual(applied["labels"], map[string]any{"app": "m", OwnerLabel: "u-1"}) || h.options[0].Owned {
		t.Errorf("%v, %+v", applied, h.options)
	}
	if labels := object["metadata"].(map[string]any)["labels"]; !reflect.DeepEqual(labels, map[string]string{"app": "m"}) {
		t.Errorf("the object of the plugin has %v", labels)
	}
	if err := resource.Deprovision(); err != nil || len(h.objects) != 0 {
		t.Errorf("%v, %v", err, h.objects)
	}
	// A cluster-scoped owner can own objects in any namespace.
	owner := testOwner
	owner.Namespace = ""
	if err := (Resource{Owner: owner, Object: testMap("other")}).Provision(); err != nil || !h.options[1].Owned {
		t.Errorf("%v, %+v", err, h.options[1])
	}
}

func TestResourceDeletionIsWaitedForUntilItIsGone(t *testing.T) {
	h := newFakeHost()
	resource := Resource{Owner: testOwner, Object: testMap("n")}
	if err := resource.Provision(); err != nil {
		t.Fatal(err)
	}
	h.take()
	h.keeps = true
	expectFailure(t, resource.Deprovision(), wit.ReconcilerResolutionWait, "Deprovisioning")
	expectCalls(t, h, "get-metadata ConfigMap n m", "delete-foreground uid-of-m ConfigMap n m", "get-metadata ConfigMap n m")
	expectFailure(t, resource.Deprovision(), wit.ReconcilerResolutionWait, "Deprovisioning")
	expectCalls(t, h, "get-metadata ConfigMap n m")
	// It is not applied to what is being deleted.
	expectFailure(t, resource.Provision(), wit.ReconcilerResolutionWait, "Deprovisioning")
	expectCalls(t, h, "get ConfigMap n m")
}

func TestResourceIsReadyByConditionOrFunction(t *testing.T) {
	h := newFakeHost()
	available := Resource{Owner: testOwner, Object: testMap("n"), ReadyWhen: "Available"}
	err := available.Provision()
	expectFailure(t, err, wit.ReconcilerResolutionWait, "Provisioning")
	if err.Error() != "ConfigMap m is not Available yet." {
		t.Error(err)
	}
	expectCalls(t, h, "get ConfigMap n m", "apply ConfigMap n m", "require Available ConfigMap n m")
	h.objects["ConfigMap n m"]["status"] = "Available"
	if err := available.Provision(); err != nil {
		t.Error(err)
	}
	bound := Resource{Owner: testOwner, Object: testMap("n"), ReadyIf: func(object json.RawMessage) error {
		var live struct{ Status string }
		if err := json.Unmarshal(object, &live); err != nil {
			return err
		}
		if live.Status != "Bound" {
			return Terminal("Lost", live.Status)
		}
		return nil
	}}
	expectFailure(t, bound.Provision(), wit.ReconcilerResolutionTerminal, "Lost")
	h.objects["ConfigMap n m"]["status"] = "Bound"
	if err := bound.Provision(); err != nil {
		t.Error(err)
	}
}

func TestResourceOnAnotherClusterBelongsToItsOwnerByTheMarkOfTheHost(t *testing.T) {
	h := newFakeHost()
	const there = "ConfigMap other m on fleet/east"
	resource := Resource{Owner: testOwner, Object: testMap("other"), Cluster: "fleet/east"}
	if err := resource.Provision(); err != nil {
		t.Fatal(err)
	}
	expectCalls(t, h, "get "+there, "apply "+there)
	labels := func() map[string]any { return h.objects[there]["metadata"].(map[string]any)["labels"].(map[string]any) }
	if !h.options[0].Owned || !reflect.DeepEqual(labels(), map[string]any{ownerUIDLabel: "u-1"}) {
		t.Errorf("%+v, %v", h.options, labels())
	}
	// The host decides about one with another mark; one without belongs to somebody there.
	labels()[ownerUIDLabel] = "u-2"
	if err := resource.Deprovision(); err != nil {
		t.Error(err)
	}
	if err := resource.Provision(); err != nil {
		t.Error(err)
	}
	h.take()
	delete(labels(), ownerUIDLabel)
	expectFailure(t, resource.Provision(), wit.ReconcilerResolutionTerminal, "NotOwned")
	if err := resource.Deprovision(); err != nil {
		t.Error(err)
	}
	expectCalls(t, h, "get "+there, "get-metadata "+there)
	labels()[ownerUIDLabel] = "u-1"
	if err := resource.Deprovision(); err != nil || len(h.objects) != 0 {
		t.Errorf("%v, %v", err, h.objects)
	}
}

func TestResourceKeepsLargeIntegers(t *testing.T) {
	h := newFakeHost()
	var applied []byte
	apply := wit.KubernetesApply
	wit.KubernetesApply = func(object []byte, options wit.KubernetesApplyOptions) ([]byte, *wit.Error) {
		applied = object
		return apply(object, options)
	}
	object := testMap("n")
	object["spec"] = map[string]uint64{"large": 9007199254740993}
	if err := (Resource{Owner: testOwner, Object: object}).Provision(); err != nil {
		t.Fatal(err)
	}
	var read struct{ Spec struct{ Large uint64 } }
	if err := json.Unmarshal(applied, &read); err != nil || read.Spec.Large != 9007199254740993 {
		t.Errorf("%s, %v, %v", applied, err, h.calls)
	}
}

func TestDependencyIsHeldBeforeItIsReady(t *testing.T) {
	h := newFakeHost()
	ref := Ref("v1", "ConfigMap", "n", "m")
	expectFailure(t, Dependency{Ref: ref}.Provision(), wit.ReconcilerResolutionWait, "NotFound")
	expectCalls(t, h, "get-metadata ConfigMap n m")
	ready := Dependency{Ref: ref, Held: true, ReadyWhen: "Ready"}
	expectFailure(t, ready.Provision(), wit.ReconcilerResolutionWait, "NotFound")
	expectCalls(t, h, "hold ConfigMap n m")
	h.objects["ConfigMap n m"] = testMap("n")
	expectFailure(t, ready.Provision(), wit.ReconcilerResolutionWait, "DependencyNotReady")
	expectCalls(t, h, "hold ConfigMap n m", "require Ready ConfigMap n m")
	for _, dependency := range []Dependency{{Ref: ref}, {Ref: ref, Held: true}} {
		if err := dependency.Provision(); err != nil {
			t.Error(err)
		}
	}
	h.objects["ConfigMap n m"]["status"] = "Ready"
	if err := (Dependency{Ref: ref, ReadyWhen: "Ready"}).Provision(); err != nil {
		t.Error(err)
	}
	expectCalls(t, h, "get-metadata ConfigMap n m", "hold ConfigMap n m", "require Ready ConfigMap n m")
	if err := (Dependency{Ref: ref, Held: true}).Deprovision(); err != nil || h.take() != nil {
		t.Error("it is changed")
	}
}

func TestForegroundDeletionIsWaitedFor(t *testing.T) {
	metadata := Metadata{Finalizers: []string{"g/thing"}}
	if err := WaitForForegroundDeletion(metadata); err != nil {
		t.Error(err)
	}
	metadata.Finalizers = append(metadata.Finalizers, "foregroundDeletion")
	expectFailure(t, WaitForForegroundDeletion(metadata), wit.ReconcilerResolutionWait, "ForegroundDeletion")
}
