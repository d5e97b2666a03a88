// Package ostler is the Go SDK for Ostler plugins: Kubernetes objects are structs of the plugin's own, and an error of
// the host becomes the fitting failure when it is just returned.
package ostler

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"ostler.dev/sdk/wit"
)

// ObjectRef names an object; see [Ref].
type ObjectRef = wit.ObjectRef

// Condition is a status condition.
type Condition = wit.Condition

// Ref names an object; the namespace of cluster-scoped ones is empty.
func Ref(apiVersion, kind, namespace, name string) ObjectRef {
	return ObjectRef{Gvk: gvk(apiVersion, kind), Namespace: some(namespace), Name: name}
}

func gvk(apiVersion, kind string) wit.Gvk {
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	return wit.Gvk{Group: group, Version: version, Kind: kind}
}

func some(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// Yes is a condition that is True.
func Yes(kind, reason, message string) Condition {
	return Condition{Type: kind, Status: wit.TriStateYes, Reason: reason, Message: message}
}

// No is a condition that is False.
func No(kind, reason, message string) Condition {
	return Condition{Type: kind, Status: wit.TriStateNo, Reason: reason, Message: message}
}

// Unknown is a condition nothing is known about.
func Unknown(kind, reason, message string) Condition {
	return Condition{Type: kind, Status: wit.TriStateUnknown, Reason: reason, Message: message}
}

// Outcome is that of a reconcile that did what it could.
type Outcome struct{ outcome wit.ReconcilerOutcome }

func next(next wit.ReconcilerNext) *Outcome {
	return &Outcome{wit.ReconcilerOutcome{Next: next}}
}

// Settled is done, until something it read, or the object, changes.
func Settled() *Outcome { return next(wit.ReconcilerNext{Case: wit.ReconcilerNextSettled}) }

// Poll is done, and looks again every so many milliseconds; 0 is the configured interval.
func Poll(every uint64) *Outcome {
	poll := wit.ReconcilerNext{Case: wit.ReconcilerNextPoll}
	if every > 0 {
		poll.Poll = &every
	}
	return next(poll)
}

// After is done, and comes back once, after so many milliseconds.
func After(milliseconds uint64) *Outcome {
	return next(wit.ReconcilerNext{Case: wit.ReconcilerNextAfter, After: milliseconds})
}

// At is done, and comes back once, at this time in milliseconds since the Unix epoch.
func At(time uint64) *Outcome {
	return next(wit.ReconcilerNext{Case: wit.ReconcilerNextAt, At: time})
}

// With adds a condition.
func (o *Outcome) With(condition Condition) *Outcome {
	o.outcome.Conditions = append(o.outcome.Conditions, condition)
	return o
}

// Status sets the status fields.
func (o *Outcome) Status(status any) *Outcome {
	bytes := encode(status)
	o.outcome.Status = &bytes
	return o
}

// Failure is an error that says how to go on.
type Failure struct{ failure wit.ReconcilerFailure }

func (f *Failure) Error() string { return f.failure.Message }

// With adds a condition.
func (f *Failure) With(condition Condition) *Failure {
	f.failure.Conditions = append(f.failure.Conditions, condition)
	return f
}

// Status sets the status fields.
func (f *Failure) Status(status any) *Failure {
	bytes := encode(status)
	f.failure.Status = &bytes
	return f
}

func failure(how wit.ReconcilerResolution, reason, message string) *Failure {
	return &Failure{wit.ReconcilerFailure{Resolution: how, Reason: reason, Message: message}}
}

// Retry tries again with growing distance.
func Retry(reason, message string) *Failure {
	return failure(wit.ReconcilerResolution{Case: wit.ReconcilerResolutionRetry}, reason, message)
}

// Yield waits for something else, and is woken when that changes.
func Yield(reason, message string) *Failure {
	return failure(wit.ReconcilerResolution{Case: wit.ReconcilerResolutionYield}, reason, message)
}

// Parked will not get better until the spec, something it read or the plugin changes.
func Parked(reason, message string) *Failure {
	return failure(wit.ReconcilerResolution{Case: wit.ReconcilerResolutionParked}, reason, message)
}

// Throttled comes back after so many milliseconds.
func Throttled(milliseconds uint64, reason, message string) *Failure {
	how := wit.ReconcilerResolution{Case: wit.ReconcilerResolutionThrottled, Throttled: milliseconds}
	return failure(how, reason, message)
}

// HostError is why the host did not do what it was asked.
type HostError struct{ Cause wit.Error }

func (e *HostError) Error() string {
	switch c := e.Cause; c.Case {
	case wit.ErrorDenied:
		return "Not permitted: " + c.Denied
	case wit.ErrorNotFound:
		return "Not found: " + c.NotFound
	case wit.ErrorConflict:
		return c.Conflict
	case wit.ErrorInvalid:
		return c.Invalid
	case wit.ErrorThrottled:
		return "Asked to come back later."
	case wit.ErrorNotReady:
		name := c.NotReady.Ref.Gvk.Kind + " " + c.NotReady.Ref.Name
		if !c.NotReady.Exists {
			return name + " does not exist."
		}
		if c.NotReady.Message == "" {
			return name + " is not Ready yet."
		}
		return name + " is not Ready: " + c.NotReady.Message
	case wit.ErrorBudget:
		return "A limit of this reconcile is used up: " + c.Budget
	case wit.ErrorUnsupported:
		return "The host does not offer " + c.Unsupported
	default:
		return c.Unavailable
	}
}

func (e *HostError) failure() *Failure {
	message := e.Error()
	switch c := e.Cause; c.Case {
	case wit.ErrorDenied:
		how := wit.ReconcilerResolution{Case: wit.ReconcilerResolutionDenied, Denied: c.Denied}
		return failure(how, "PermissionDenied", message)
	case wit.ErrorNotFound:
		return Yield("NotFound", message)
	case wit.ErrorConflict:
		return Retry("Conflict", message)
	case wit.ErrorInvalid:
		return Parked("Invalid", message)
	case wit.ErrorThrottled:
		return Throttled(c.Throttled, "Throttled", message)
	case wit.ErrorNotReady:
		return Yield("DependencyNotReady", message)
	case wit.ErrorBudget:
		return Retry("BudgetExceeded", message)
	case wit.ErrorUnsupported:
		return Parked("Unsupported", message)
	default:
		return Retry("Unavailable", message)
	}
}

// check makes an error of the contract one of Go.
func check(e *wit.Error) error {
	if e == nil {
		return nil
	}
	return &HostError{*e}
}

// Object is a Kubernetes object with a spec of this type.
type Object[Spec any] struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Metadata        `json:"metadata"`
	Spec       Spec            `json:"spec"`
	Status     json.RawMessage `json:"status"`
}

// Metadata is what a plugin usually needs of it.
type Metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	UID         string            `json:"uid"`
	Generation  int64             `json:"generation"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Reconciler reconciles one kind. It keeps no state: a fresh instance runs each call.
type Reconciler[Spec any] struct {
	APIVersion, Kind string
	// Finalizer (`domain/name`), when Cleanup must run before an object can go.
	Finalizer string
	// LabelSelector narrows the objects.
	LabelSelector string
	// Phase says whether the host keeps `status.phase`.
	Phase bool
	// Reconcile brings the world closer to what the object asks for.
	Reconcile func(object *Object[Spec]) (*Outcome, error)
	// Cleanup undoes it; a settled outcome lets the object go.
	Cleanup func(object *Object[Spec]) (*Outcome, error)
}

// Kind is a [Reconciler] of any spec.
type Kind interface {
	describe() wit.ReconcilerReconciledKind
	run(object []byte, cleanup bool) (*Outcome, error)
}

func (r Reconciler[Spec]) describe() wit.ReconcilerReconciledKind {
	return wit.ReconcilerReconciledKind{
		Gvk: gvk(r.APIVersion, r.Kind), Finalizer: some(r.Finalizer), LabelSelector: some(r.LabelSelector), Phase: r.Phase,
	}
}

func (r Reconciler[Spec]) run(bytes []byte, cleanup bool) (*Outcome, error) {
	var object Object[Spec]
	if err := json.Unmarshal(bytes, &object); err != nil {
		return nil, Parked("InvalidSpec", err.Error())
	}
	if !cleanup {
		return r.Reconcile(&object)
	}
	if r.Cleanup == nil {
		return Settled(), nil
	}
	return r.Cleanup(&object)
}

// Export makes a plugin of these kinds; to be called by an init function.
func Export(name, version string, kinds ...Kind) {
	wit.ReconcilerExports = plugin{name, version, kinds}
}

type plugin struct {
	name, version string
	kinds         []Kind
}

func (p plugin) Describe() wit.ReconcilerDescriptor {
	descriptor := wit.ReconcilerDescriptor{Name: p.name, Version: p.version}
	for _, kind := range p.kinds {
		descriptor.Kinds = append(descriptor.Kinds, kind.describe())
	}
	return descriptor
}

type result = wit.Result[wit.ReconcilerOutcome, wit.ReconcilerFailure]

func (p plugin) Reconcile(request wit.ReconcilerRequest) result { return p.run(request, false) }
func (p plugin) Cleanup(request wit.ReconcilerRequest) result   { return p.run(request, true) }

func (p plugin) run(request wit.ReconcilerRequest, cleanup bool) result {
	// A panic ends the instance; what it says goes to the log first.
	defer func() {
		if panicked := recover(); panicked != nil {
			Log(wit.LogLevelError, fmt.Sprintf("panic: %v\n%s", panicked, debug.Stack()))
			panic(panicked)
		}
	}()
	outcome, err := p.find(request, cleanup)
	if err == nil {
		return result{Ok: outcome.outcome}
	}
	var failed *Failure
	var host *HostError
	switch {
	case errors.As(err, &failed):
	case errors.As(err, &host):
		failed = host.failure()
	default:
		failed = Retry("Error", err.Error())
	}
	return result{Err: &failed.failure}
}

func (p plugin) find(request wit.ReconcilerRequest, cleanup bool) (*Outcome, error) {
	for _, kind := range p.kinds {
		if ours := kind.describe().Gvk; ours.Group == request.Ref.Gvk.Group && ours.Kind == request.Ref.Gvk.Kind {
			return kind.run(request.Object, cleanup)
		}
	}
	return nil, Parked("UnknownKind", request.Ref.Gvk.Kind+" is not a kind of this plugin.")
}

// JSON of our own values always succeeds; should one not, that is a bug.
func encode(value any) []byte {
	bytes, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return bytes
}
