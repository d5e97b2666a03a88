// Package ostler is the Go SDK for Ostler plugins. Kubernetes objects are structs that the plugin defines, and an error of
// the host becomes the fitting failure when the plugin returns it.
package ostler

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"ostler.dev/sdk/wit"
)

// ObjectRef is a reference to an object; see [Ref].
type ObjectRef = wit.ObjectRef

// Condition is a status condition.
type Condition = wit.Condition

// Ref returns a reference to an object. The namespace of a cluster-scoped object is empty.
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

// ConditionStatus is the status of a condition.
type ConditionStatus = wit.ConditionStatus

// The statuses of a condition.
const (
	True    = wit.ConditionStatusTrue
	False   = wit.ConditionStatusFalse
	Unknown = wit.ConditionStatusUnknown
)

// TrueCondition returns a condition with the status True.
func TrueCondition(kind, reason, message string) Condition {
	return Condition{Type: kind, Status: True, Reason: reason, Message: message}
}

// FalseCondition returns a condition with the status False.
func FalseCondition(kind, reason, message string) Condition {
	return Condition{Type: kind, Status: False, Reason: reason, Message: message}
}

// UnknownCondition returns a condition with the status Unknown.
func UnknownCondition(kind, reason, message string) Condition {
	return Condition{Type: kind, Status: Unknown, Reason: reason, Message: message}
}

// Outcome is the result of a reconcile that succeeded.
type Outcome struct{ outcome wit.ReconcilerOutcome }

func next(next wit.ReconcilerNext) *Outcome {
	return &Outcome{wit.ReconcilerOutcome{Next: next}}
}

// AwaitChange succeeds; the object is reconciled again when it, or an object that was read, changes.
func AwaitChange() *Outcome { return next(wit.ReconcilerNext{Case: wit.ReconcilerNextAwaitChange}) }

// Poll succeeds; the object is reconciled again at this interval in milliseconds; 0 is the configured interval.
func Poll(interval uint64) *Outcome {
	poll := wit.ReconcilerNext{Case: wit.ReconcilerNextPoll}
	if interval > 0 {
		poll.Poll = &interval
	}
	return next(poll)
}

// After succeeds; the object is reconciled again once, after this many milliseconds.
func After(milliseconds uint64) *Outcome {
	return next(wit.ReconcilerNext{Case: wit.ReconcilerNextAfter, After: milliseconds})
}

// At succeeds; the object is reconciled again once, at this time in milliseconds since the Unix epoch.
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

// Failure is the result of a reconcile that failed, with its resolution.
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

func failure(resolution wit.ReconcilerResolution, reason, message string) *Failure {
	return &Failure{wit.ReconcilerFailure{Resolution: resolution, Reason: reason, Message: message}}
}

// Retry fails; the reconcile is retried with exponential backoff.
func Retry(reason, message string) *Failure {
	return failure(wit.ReconcilerResolution{Case: wit.ReconcilerResolutionRetry}, reason, message)
}

// Wait waits for something else, which is not an error; the object is reconciled again when that changes.
func Wait(reason, message string) *Failure {
	return failure(wit.ReconcilerResolution{Case: wit.ReconcilerResolutionWait}, reason, message)
}

// Terminal fails permanently, until the spec, an object that was read, the configuration or the plugin changes.
func Terminal(reason, message string) *Failure {
	return failure(wit.ReconcilerResolution{Case: wit.ReconcilerResolutionTerminal}, reason, message)
}

// Throttled fails; the reconcile is retried after this many milliseconds.
func Throttled(milliseconds uint64, reason, message string) *Failure {
	resolution := wit.ReconcilerResolution{Case: wit.ReconcilerResolutionThrottled, Throttled: milliseconds}
	return failure(resolution, reason, message)
}

// WithPublicMessage returns an error as the failure with a message for all who may read the object. The text of the error, which
// may describe the inside of another system (CWE-209), is written to the log only. An error of nil stays nil.
func WithPublicMessage(err error, message string) error {
	if err == nil {
		return nil
	}
	failed := *toFailure(err)
	level := wit.LogLevelWarn
	if failed.failure.Resolution.Case == wit.ReconcilerResolutionWait {
		level = wit.LogLevelInfo
	}
	wit.LogWrite(level, failed.failure.Message, []struct{ F0, F1 string }{{"public_message", message}})
	failed.failure.Message = message
	return &failed
}

// HostError is the error of a host function.
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
		return "The other side asked for fewer requests."
	case wit.ErrorNotReady:
		name := c.NotReady.Ref.Gvk.Kind + " " + c.NotReady.Ref.Name
		if !c.NotReady.Exists {
			return name + " does not exist."
		}
		name += " is not " + c.NotReady.Condition
		switch c.NotReady.Status {
		case False:
			name += "=False"
		case Unknown:
			name += "=Unknown"
		}
		if c.NotReady.Message == "" {
			return name + " yet."
		}
		return name + ": " + c.NotReady.Message
	case wit.ErrorLimitExceeded:
		return "A limit of this reconcile is used up: " + c.LimitExceeded
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
		resolution := wit.ReconcilerResolution{Case: wit.ReconcilerResolutionDenied, Denied: c.Denied}
		return failure(resolution, "PermissionDenied", message)
	case wit.ErrorNotFound:
		return Wait("NotFound", message)
	case wit.ErrorConflict:
		return Retry("Conflict", message)
	case wit.ErrorInvalid:
		return Terminal("Invalid", message)
	case wit.ErrorThrottled:
		return Throttled(c.Throttled, "Throttled", message)
	case wit.ErrorNotReady:
		return Wait("DependencyNotReady", message)
	case wit.ErrorLimitExceeded:
		return Retry("LimitExceeded", message)
	case wit.ErrorUnsupported:
		return Terminal("Unsupported", message)
	default:
		return Retry("Unavailable", message)
	}
}

// IsConflict returns whether an error is the host's `conflict`: another client has changed the object, or it exists.
func IsConflict(err error) bool {
	var host *HostError
	return errors.As(err, &host) && host.Cause.Case == wit.ErrorConflict
}

// check converts an error of the contract to a Go error.
func check(e *wit.Error) error {
	if e == nil {
		return nil
	}
	return &HostError{*e}
}

// Object is a Kubernetes object with a spec of the given type.
type Object[Spec any] struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   Metadata        `json:"metadata"`
	Spec       Spec            `json:"spec"`
	Status     json.RawMessage `json:"status"`
}

// Metadata is the part of the metadata that most plugins use.
type Metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	UID         string            `json:"uid"`
	Version     string            `json:"resourceVersion"`
	Generation  int64             `json:"generation"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	Finalizers  []string          `json:"finalizers"`
	// CreationTimestamp is the time of the creation in RFC 3339.
	CreationTimestamp string `json:"creationTimestamp"`
	// DeletionTimestamp is the time of the deletion in RFC 3339, empty without one.
	DeletionTimestamp string `json:"deletionTimestamp"`
}

// Reconciler reconciles one kind. It keeps no state, since every call runs in a fresh instance.
type Reconciler[Spec any] struct {
	APIVersion, Kind string
	// Finalizer (`domain/name`) of a kind whose Cleanup must run before an object is deleted.
	Finalizer string
	// LabelSelector narrows the objects.
	LabelSelector string
	// Phase makes the host maintain `status.phase`.
	Phase bool
	// Reconcile moves the observed state towards the desired state of the object.
	Reconcile func(object *Object[Spec]) (*Outcome, error)
	// Cleanup undoes what Reconcile did; the outcome AwaitChange releases the object.
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
	if err := Decode(bytes, &object); err != nil {
		return nil, Terminal("InvalidSpec", err.Error())
	}
	if !cleanup {
		return r.Reconcile(&object)
	}
	if r.Cleanup == nil {
		return AwaitChange(), nil
	}
	return r.Cleanup(&object)
}

// Export exports a plugin that reconciles these kinds. An init function calls it.
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
	defer ReportPanic()
	outcome, err := p.find(request, cleanup)
	if err == nil && outcome == nil {
		panic("neither an outcome nor an error was returned: return ostler.AwaitChange(), or an error")
	}
	if err == nil {
		return result{Ok: outcome.outcome}
	}
	return result{Err: &toFailure(err).failure}
}

// toFailure returns the failure that an error of a plugin becomes.
func toFailure(err error) *Failure {
	var failed *Failure
	var host *HostError
	switch {
	case errors.As(err, &failed):
		return failed
	case errors.As(err, &host):
		return host.failure()
	default:
		return Retry("Error", err.Error())
	}
}

func (p plugin) find(request wit.ReconcilerRequest, cleanup bool) (*Outcome, error) {
	for _, kind := range p.kinds {
		if ours := kind.describe().Gvk; ours.Group == request.Ref.Gvk.Group && ours.Kind == request.Ref.Gvk.Kind {
			return kind.run(request.Object, cleanup)
		}
	}
	return nil, Terminal("UnknownKind", request.Ref.Gvk.Kind+" is not a kind of this plugin.")
}

// ReportPanic is deferred in each call from the host. It reports the message, the location and the stack of a panic, which the
// host writes into the condition and the log, and ends the instance.
func ReportPanic() {
	panicked := recover()
	if panicked == nil {
		return
	}
	wit.LogWrite(wit.LogLevelError, fmt.Sprint(panicked), []struct{ F0, F1 string }{
		{"exception.location", panicLocation()},
		{"exception.stacktrace", string(debug.Stack())},
	})
	if runtime.GOOS == "wasip1" {
		// The runtime would print the panic once more.
		os.Exit(2)
	}
	panic(panicked)
}

// panicLocation returns the file and line of the innermost function of the plugin.
func panicLocation() string {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers)])
	for {
		frame, more := frames.Next()
		library := frame.Function == "" || strings.HasPrefix(frame.Function, "runtime.") ||
			strings.HasPrefix(frame.Function, "ostler.dev/sdk")
		if !library {
			return fmt.Sprintf("%s:%d", frame.File, frame.Line)
		}
		if !more {
			return ""
		}
	}
}

// encode serializes a value of the plugin, which always succeeds unless the plugin has a bug.
func encode(value any) []byte {
	bytes, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return bytes
}
