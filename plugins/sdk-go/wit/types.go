// Code generated from wit/ by ostler-builder. DO NOT EDIT.

package wit

// Gvk:
// A Kubernetes kind, for example `concourse-ci.org`, `v1alpha1`, `Team`.
// The core group is the empty string.
type Gvk struct {
	Group   string
	Version string
	Kind    string
}

// ObjectRef:
// Names one object. `namespace` is none for cluster-scoped kinds;
// `cluster` is none for the cluster the host runs against, and otherwise a
// cluster name granted to the plugin.
type ObjectRef struct {
	Gvk       Gvk
	Cluster   *string
	Namespace *string
	Name      string
}

// TriState:
// `status` of a condition: Kubernetes' True, False and Unknown.
type TriState uint8

// The cases of [TriState].
const (
	TriStateYes     TriState = 0
	TriStateNo      TriState = 1
	TriStateUnknown TriState = 2
)

// Condition:
// A status condition (Kubernetes `metav1.Condition`). The host adds
// `observedGeneration` and `lastTransitionTime`.
type Condition struct {
	// CamelCase, for example `Ready`.
	Type   string
	Status TriState
	// CamelCase, for programs.
	Reason string
	// One sentence, for people. Never a secret.
	Message string
}

// NotReady:
// Another object that is not Ready (`kubernetes.require-ready`).
type NotReady struct {
	Ref ObjectRef
	// False when the object does not exist at all.
	Exists bool
	// The reason and message of its Ready condition, empty when it has none.
	Reason  string
	Message string
}

// Error:
// Why a capability did not do what it was asked. The SDK turns each into
// the fitting `failure` when the plugin just returns it.
type Error struct {
	Case        ErrorCase
	Denied      string
	NotFound    string
	Conflict    string
	Invalid     string
	Throttled   uint64
	Unavailable string
	NotReady    NotReady
	Budget      string
	Unsupported string
}

// ErrorCase says which of a Error it is.
type ErrorCase uint8

// The cases of [Error].
const (
	// A grant is missing. The text says which.
	ErrorDenied ErrorCase = 0
	// The object, the upstream or the key does not exist. Says which.
	ErrorNotFound ErrorCase = 1
	// Somebody else changed or owns it. Says who and what.
	ErrorConflict ErrorCase = 2
	// The request itself is wrong and will stay wrong. Says the field.
	ErrorInvalid ErrorCase = 3
	// Come back after this many milliseconds.
	ErrorThrottled ErrorCase = 4
	// The other side can't be reached or answered with a fault.
	ErrorUnavailable ErrorCase = 5
	// The other object is not Ready yet. Its change wakes this one.
	ErrorNotReady ErrorCase = 6
	// A limit of this reconcile is used up (time, calls, bytes).
	ErrorBudget ErrorCase = 7
	// This host does not offer the function (yet). Says which.
	ErrorUnsupported ErrorCase = 8
)

// KubernetesGetOptions is of the contract.
type KubernetesGetOptions struct {
	// Ask the API server instead of the shared cache.
	Live bool
	// Top-level JSON paths to return (`spec`, `metadata.labels`); empty for
	// the whole object. `apiVersion`, `kind` and the identity always come.
	Fields []string
}

// KubernetesListOptions is of the contract.
type KubernetesListOptions struct {
	Cluster *string
	// None for every namespace the plugin may see.
	Namespace *string
	// Kubernetes label selector syntax; none for all.
	LabelSelector *string
	// Kubernetes field selector syntax, of any scalar field of any kind
	// (`spec.instanceRef.name=ci`); none for all.
	FieldSelector *string
	// As in `get-options`.
	Fields []string
	// Objects per page at most; 0 for the host's limit.
	Limit uint32
	// The token of the page before.
	ContinueToken *string
	Live          bool
}

// KubernetesPage is of the contract.
type KubernetesPage struct {
	Items [][]byte
	// Some when there is more.
	ContinueToken *string
}

// KubernetesWriteOptions is of the contract.
type KubernetesWriteOptions struct {
	// Make the reconciled object its controller owner, so that it goes with it.
	// Same namespace (or a cluster-scoped owner) only, else `invalid`.
	Owned bool
	// Take over fields that another manager owns, instead of `conflict`.
	Force bool
}

// KubernetesDeleteOptions is of the contract.
type KubernetesDeleteOptions struct {
	// `background` (default), `foreground` or `orphan`.
	Propagation *string
	// Only this very object; `conflict` when another took its name.
	Uid *string
}

// HttpUpstream:
// An `Upstream` object; namespace none for that of the reconciled object.
type HttpUpstream struct {
	Namespace *string
	Name      string
}

// HttpHeader is of the contract.
type HttpHeader struct {
	Name  string
	Value string
}

// HttpEncoding:
// How a secret is written into the body.
type HttpEncoding uint8

// The cases of [HttpEncoding].
const (
	HttpEncodingPlain      HttpEncoding = 0
	HttpEncodingJsonString HttpEncoding = 1
	HttpEncodingForm       HttpEncoding = 2
)

// HttpSubstitution:
// A secret that the host puts into the body on the wire. Every occurrence
// of `placeholder` is replaced; the plugin sees only the placeholder, also
// in the answer, where the host puts it back in place of the value.
type HttpSubstitution struct {
	// At least 16 characters that occur nowhere else.
	Placeholder string
	// Namespace none for that of the reconciled object.
	Namespace *string
	Secret    string
	Key       string
	Encoding  HttpEncoding
}

// HttpRequest is of the contract.
type HttpRequest struct {
	Upstream HttpUpstream
	// An HTTP method, upper case.
	Method string
	// Starts with `/`; appended to the upstream's URL. `..` segments are refused.
	PathAndQuery string
	// `Authorization`, `Cookie`, `Host`, hop-by-hop headers and those that replace
	// the method or the path (`X-HTTP-Method-Override`, `X-Original-URL`) are refused.
	Headers       []HttpHeader
	Body          *[]byte
	Substitutions []HttpSubstitution
	// Milliseconds; 0 for the upstream's.
	Timeout uint32
}

// HttpResponse is of the contract.
type HttpResponse struct {
	Status uint16
	// Names in lower case. `set-cookie` and authentication headers are removed.
	Headers []HttpHeader
	Body    []byte
}

// HttpEventMatch:
// Which events of a stream are meant.
type HttpEventMatch struct {
	// Name of the event (`message` where the server gives none); none for any.
	Name *string
	// A JSON pointer into its data, and what must be there: a text, or the
	// JSON of anything else. None for any data.
	Data *struct {
		F0 string
		F1 string
	}
}

// HttpSubscription is of the contract.
type HttpSubscription struct {
	Upstream     HttpUpstream
	PathAndQuery string
	// Events that wake the object; empty for every event.
	Wake []HttpEventMatch
	// Events that wake the object and after which it waits for nothing more:
	// the host closes the stream, whether or not the server does.
	Until []HttpEventMatch
}

// HttpEvent is of the contract.
type HttpEvent struct {
	// Where the server gives ids.
	Id   *string
	Name string
	Data string
}

// HttpEventQuery is of the contract.
type HttpEventQuery struct {
	Upstream     HttpUpstream
	PathAndQuery string
	// Events to give; empty for all.
	Select []HttpEventMatch
	// The last event; empty for the end of the connection.
	Until []HttpEventMatch
	// So many at most, the last ones; 0 for the host's limit.
	Last uint32
	// With so many bytes of data at most; 0 for the host's limit.
	Bytes uint32
	// Milliseconds; 0 for the host's limit.
	Timeout uint32
}

// HttpEventTail is of the contract.
type HttpEventTail struct {
	Events []HttpEvent
	// How many that were selected came before these.
	Skipped uint64
	// False when the time was over before the end.
	Complete bool
}

// MessagingMessage is of the contract.
type MessagingMessage struct {
	Exchange   string
	RoutingKey string
	Headers    []struct {
		F0 string
		F1 string
	}
	ContentType *string
	Body        []byte
	// Survive a restart of the broker.
	Persistent bool
}

// EventsEventType is of the contract.
type EventsEventType uint8

// The cases of [EventsEventType].
const (
	EventsEventTypeNormal  EventsEventType = 0
	EventsEventTypeWarning EventsEventType = 1
)

// LogLevel is of the contract.
type LogLevel uint8

// The cases of [LogLevel].
const (
	LogLevelTrace LogLevel = 0
	LogLevelDebug LogLevel = 1
	LogLevelInfo  LogLevel = 2
	LogLevelWarn  LogLevel = 3
	LogLevelError LogLevel = 4
)

// ReconcilerReconciledKind:
// A kind the plugin reconciles.
type ReconcilerReconciledKind struct {
	Gvk Gvk
	// A finalizer (`domain/name`) when the plugin needs `cleanup`. The host
	// adds it before the first reconcile and removes it after the cleanup.
	Finalizer *string
	// Label selector that narrows the objects; none for all of them.
	LabelSelector *string
	// Whether the host keeps a `phase` in the status: `Progressing`, `Ready` or
	// `Terminating`. Otherwise a field of this name is the plugin's.
	Phase bool
}

// ReconcilerDescriptor:
// What the plugin is.
type ReconcilerDescriptor struct {
	// DNS label, for example `concourse-team`. Field manager and metric label.
	Name string
	// The plugin's own version (semver).
	Version string
	Kinds   []ReconcilerReconciledKind
	// Reconciles of this plugin at the same time at most; 0 leaves it to the host.
	MaxConcurrent uint32
}

// ReconcilerRequest:
// One reconcile. Level-triggered: the object as it is now, never an event.
type ReconcilerRequest struct {
	Object []byte
	Ref    ObjectRef
	// Failures in a row before this call.
	Attempt uint32
	// Why it runs, for logs: `start`, `change`, `dependency`, `poll`, `retry`,
	// `timer`, `event`, `manual`, `plugin-change`, `config-change`. Open set; do not decide by it.
	Causes []string
}

// ReconcilerNext:
// When to come back without a change.
type ReconcilerNext struct {
	Case  ReconcilerNextCase
	Poll  *uint64
	After uint64
	At    uint64
}

// ReconcilerNextCase says which of a ReconcilerNext it is.
type ReconcilerNextCase uint8

// The cases of [ReconcilerNext].
const (
	// Only when something it read, or the object itself, changes.
	ReconcilerNextSettled ReconcilerNextCase = 0
	// Every so many milliseconds, with jitter; none takes the plugin's
	// configured interval.
	ReconcilerNextPoll ReconcilerNextCase = 1
	// Once, after so many milliseconds.
	ReconcilerNextAfter ReconcilerNextCase = 2
	// Once, at this time (milliseconds since the Unix epoch).
	ReconcilerNextAt ReconcilerNextCase = 3
)

// ReconcilerOutcome:
// A reconcile that did what it could.
type ReconcilerOutcome struct {
	// The conditions of the object. Without a `Ready` among them the host
	// adds Ready=True, reason `Ready`. A type not named any more is removed.
	Conditions []Condition
	// The status fields as one JSON object, the whole of what the plugin
	// knows; none leaves them as they are. `conditions`, `observedGeneration`
	// and, for kinds that ask for it, `phase` are the host's.
	Status *[]byte
	Next   ReconcilerNext
}

// ReconcilerResolution:
// How a failure is gone on with.
type ReconcilerResolution struct {
	Case      ReconcilerResolutionCase
	Throttled uint64
	Denied    string
}

// ReconcilerResolutionCase says which of a ReconcilerResolution it is.
type ReconcilerResolutionCase uint8

// The cases of [ReconcilerResolution].
const (
	// Try again: exponential back-off for this object, jittered.
	ReconcilerResolutionRetry ReconcilerResolutionCase = 0
	// Not an error, waiting for something: at a fixed interval, and at once
	// when what it waits for changes.
	ReconcilerResolutionYield ReconcilerResolutionCase = 1
	// Will not get better by itself: no retry until the spec, something it
	// read, its config or the plugin changes. `Stalled=True`.
	ReconcilerResolutionParked ReconcilerResolutionCase = 2
	// After this many milliseconds.
	ReconcilerResolutionThrottled ReconcilerResolutionCase = 3
	// A grant is missing; says which. Tried again when grants change.
	ReconcilerResolutionDenied ReconcilerResolutionCase = 4
)

// ReconcilerFailure:
// A reconcile that did not succeed. The host sets Ready=False with this
// reason and message; conditions not named stay as they were.
type ReconcilerFailure struct {
	Resolution ReconcilerResolution
	// CamelCase.
	Reason     string
	Message    string
	Conditions []Condition
	// As in `outcome`.
	Status *[]byte
}

// Reconciler is what a plugin exports.
type Reconciler interface {
	// Describe:
	// Says what the plugin is. Pure: called once per load in a sealed store, in
	// which every capability answers `denied`.
	Describe() ReconcilerDescriptor
	// Reconcile:
	// Brings the world closer to what the object asks for.
	Reconcile(request ReconcilerRequest) Result[ReconcilerOutcome, ReconcilerFailure]
	// Cleanup:
	// Undoes what `reconcile` did, for an object that is being deleted. Only
	// called for kinds with a finalizer, also while paused. A settled outcome
	// lets the object go; any other outcome or a failure keeps it.
	Cleanup(request ReconcilerRequest) Result[ReconcilerOutcome, ReconcilerFailure]
}

// ReconcilerExports is set before the host calls: by an init function.
var ReconcilerExports Reconciler
