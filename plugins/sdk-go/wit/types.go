// Code generated from wit/ by ostler-builder. DO NOT EDIT.

package wit

// Gvk:
// A Kubernetes kind (GroupVersionKind), for example `concourse-ci.org`,
// `v1alpha1` and `Team`.
type Gvk struct {
	// The API group. It is empty for the core group.
	Group string
	// The API version, for example `v1alpha1`.
	Version string
	// The kind in CamelCase.
	Kind string
}

// ObjectRef:
// A reference to a Kubernetes object.
type ObjectRef struct {
	// The kind of the object.
	Gvk Gvk
	// The `Cluster` object that describes the cluster of the object, as
	// `namespace/name`, or as `name` in the namespace of the reconciled
	// object. None is the cluster of the reconciled object: the host's own,
	// or the home cluster of the plugin, which an administrator chooses. In
	// either case `in-cluster` is the host's own cluster. Where that is
	// another one, an object counts there as one in the namespace of the
	// `Cluster` object of its cluster.
	Cluster *string
	// The namespace of the object. It is none for a cluster-scoped kind.
	Namespace *string
	// The name of the object.
	Name string
}

// UpstreamRef:
// A reference to an `Upstream` object: an HTTP server or a message broker.
// The host binds the URL, TLS settings, credentials and limits to it.
type UpstreamRef struct {
	// The cluster of the `Upstream` object: none or `in-cluster`, the host's
	// own cluster.
	Cluster *string
	// The namespace of the `Upstream` object. None is the namespace of the
	// reconciled object.
	Namespace *string
	// The name of the `Upstream` object.
	Name string
}

// SecretKeyRef:
// A reference to one key of a `Secret`. A plugin names a secret and never
// reads it.
type SecretKeyRef struct {
	// The cluster of the `Secret`: none or `in-cluster`, the host's own
	// cluster.
	Cluster *string
	// The namespace of the `Secret`. None is the namespace of the reconciled
	// object.
	Namespace *string
	// The name of the `Secret`.
	Name string
	// The key in the data of the `Secret`.
	Key string
}

// Encoding:
// The encoding of a secret at the place of its placeholder.
type Encoding uint8

// The cases of [Encoding].
const (
	// The value as it is.
	EncodingPlain Encoding = 0
	// The inside of a JSON string (RFC 8259, section 7), without the quotes.
	EncodingJsonString Encoding = 1
	// A value of `application/x-www-form-urlencoded`, with percent-encoding.
	EncodingForm Encoding = 2
	// Base64 with padding (RFC 4648, section 4).
	EncodingBase64 Encoding = 3
	// The text of an XML element or attribute, with its special characters
	// as entities (XML 1.0, section 2.4).
	EncodingXml Encoding = 4
)

// Username:
// The user name of HTTP Basic credentials.
type Username struct {
	Case    UsernameCase
	Literal string
	Secret  SecretKeyRef
}

// UsernameCase says which of a Username it is.
type UsernameCase uint8

// The cases of [Username].
const (
	// The user name itself.
	UsernameLiteral UsernameCase = 0
	// The user name is the value of a key of a `Secret`.
	UsernameSecret UsernameCase = 1
)

// BasicCredentials:
// A pair of user name and password. Its value is `user:password`, as HTTP
// Basic authentication (RFC 7617, section 2) and `.dockerconfigjson` have
// it before they encode it in base64.
type BasicCredentials struct {
	Username Username
	Password SecretKeyRef
}

// SecretSource:
// The source of a value that only the host knows.
type SecretSource struct {
	Case  SecretSourceCase
	Key   SecretKeyRef
	Basic BasicCredentials
}

// SecretSourceCase says which of a SecretSource it is.
type SecretSourceCase uint8

// The cases of [SecretSource].
const (
	// The value of a key of a `Secret`.
	SecretSourceKey SecretSourceCase = 0
	// The pair `user:password`.
	SecretSourceBasic SecretSourceCase = 1
)

// Substitution:
// A secret that the host inserts into what it sends. It replaces every
// occurrence of the placeholder. The plugin sees only the placeholder: in
// what the host returns, the placeholder takes the place of the value again,
// or `***`.
type Substitution struct {
	// 16 to 1024 bytes that occur nowhere else in the document.
	Placeholder string
	// The source of the value.
	Source SecretSource
	// The encoding of the value.
	Encoding Encoding
}

// ConditionStatus:
// The `status` of a condition. It is `True`, `False` or `Unknown` in the
// object.
type ConditionStatus uint8

// The cases of [ConditionStatus].
const (
	ConditionStatusTrue    ConditionStatus = 0
	ConditionStatusFalse   ConditionStatus = 1
	ConditionStatusUnknown ConditionStatus = 2
)

// Condition:
// A status condition (Kubernetes `metav1.Condition`). The host adds
// `observedGeneration` and `lastTransitionTime`.
type Condition struct {
	// The type in CamelCase, for example `Ready`.
	Type string
	// The status.
	Status ConditionStatus
	// The machine-readable reason of the status, in CamelCase.
	Reason string
	// One sentence that explains the status. It must never contain a secret.
	Message string
}

// NotReady:
// An object that does not meet a required condition
// (`kubernetes.require-ready`, `kubernetes.require-condition`).
type NotReady struct {
	// The object.
	Ref ObjectRef
	// The type of the required condition.
	Condition string
	// The required status of that condition.
	Status ConditionStatus
	// Whether the object exists.
	Exists bool
	// The reason of that condition in the object, or of the rule of a built-in
	// kind (`PodsNotAvailable`). It is empty when the object has no such
	// condition.
	Reason string
	// The message of that condition or rule, and empty likewise.
	Message string
}

// Error:
// The error of a host function. When a plugin returns an error as it is,
// the SDK turns it into the `failure` that fits.
type Error struct {
	Case          ErrorCase
	Denied        string
	NotFound      string
	Conflict      string
	Invalid       string
	Throttled     uint64
	Unavailable   string
	NotReady      NotReady
	LimitExceeded string
	Unsupported   string
}

// ErrorCase says which of a Error it is.
type ErrorCase uint8

// The cases of [Error].
const (
	// A grant, an RBAC permission or a namespace's permission is missing, or
	// admission refused the object: a quota, Pod Security, a webhook. The text
	// names it.
	ErrorDenied ErrorCase = 0
	// The object, the upstream or the key does not exist. The text names it.
	ErrorNotFound ErrorCase = 1
	// Another client has changed the object or owns the field. The text names
	// the owner and the field.
	ErrorConflict ErrorCase = 2
	// The request is malformed; it fails again if it is repeated. The text
	// names the field.
	ErrorInvalid ErrorCase = 3
	// The other side asked for fewer requests. The request may be repeated
	// after this duration.
	ErrorThrottled ErrorCase = 4
	// The other side cannot be reached, or failed.
	ErrorUnavailable ErrorCase = 5
	// The object does not meet the required condition yet. When it changes,
	// the reconciled object is reconciled again.
	ErrorNotReady ErrorCase = 6
	// A limit of this call is used up: time, host calls or bytes. The text
	// names the limit.
	ErrorLimitExceeded ErrorCase = 7
	// This host does not offer the function, or this use of it. The text says
	// which.
	ErrorUnsupported ErrorCase = 8
)

// HeaderValue:
// The value of a message header (a field of an AMQP 0-9-1 field table).
type HeaderValue struct {
	Case      HeaderValueCase
	String    string
	Bytes     []byte
	Boolean   bool
	Integer   int64
	Float     float64
	Timestamp uint64
	Structure []byte
}

// HeaderValueCase says which of a HeaderValue it is.
type HeaderValueCase uint8

// The cases of [HeaderValue].
const (
	HeaderValueString    HeaderValueCase = 0
	HeaderValueBytes     HeaderValueCase = 1
	HeaderValueBoolean   HeaderValueCase = 2
	HeaderValueInteger   HeaderValueCase = 3
	HeaderValueFloat     HeaderValueCase = 4
	HeaderValueTimestamp HeaderValueCase = 5
	// A nested table or array, for example RabbitMQ's `x-death`.
	HeaderValueStructure HeaderValueCase = 6
	// A header without a value.
	HeaderValueEmpty HeaderValueCase = 7
)

// MessageHeader:
// A header of a message.
type MessageHeader struct {
	Name  string
	Value HeaderValue
}

// MessageProperties:
// The properties of a message (AMQP 0-9-1, class `basic`). Each is none
// when it is not set.
type MessageProperties struct {
	// The media type of the body.
	ContentType *string
	// The encoding of the body, for example `gzip`.
	ContentEncoding *string
	// The headers, in order.
	Headers []MessageHeader
	// Whether the message survives a restart of the broker
	// (`delivery-mode` 2).
	Persistent bool
	// The priority, from 0 to 9.
	Priority *uint8
	// The message that this one answers or belongs to.
	CorrelationId *string
	// The queue to answer to.
	ReplyTo *string
	// The lifetime of the message in its queue.
	Expiration *uint64
	// The id of the message, given by its publisher. Consumers tell
	// duplicates by it.
	MessageId *string
	// The time of publication. AMQP carries whole seconds.
	Timestamp *uint64
	// The type of the message, given by the application.
	Type *string
	// The user that published the message. The broker verifies it.
	UserId *string
	// The application that published the message.
	AppId *string
}

// KubernetesProjection:
// The part of an object that a read returns. A change of the rest does not
// have to be cached or watched.
type KubernetesProjection struct {
	Case   KubernetesProjectionCase
	Fields []string
}

// KubernetesProjectionCase says which of a KubernetesProjection it is.
type KubernetesProjectionCase uint8

// The cases of [KubernetesProjection].
const (
	// The whole object.
	KubernetesProjectionFull KubernetesProjectionCase = 0
	// `apiVersion`, `kind` and `metadata`, as Kubernetes'
	// `PartialObjectMetadata` has them. The host keeps no more of the object
	// if nothing else reads more.
	KubernetesProjectionMetadata KubernetesProjectionCase = 1
	// These fields, given by their paths from the root (`spec`,
	// `metadata.labels`), in addition to `apiVersion`, `kind` and
	// `metadata` with name, namespace, uid, resourceVersion and generation.
	KubernetesProjectionFields KubernetesProjectionCase = 2
)

// KubernetesGetOptions:
// The options of `get`.
type KubernetesGetOptions struct {
	// Whether to ask the API server instead of the shared cache.
	Live bool
	// The part of the object to return.
	Projection KubernetesProjection
}

// KubernetesListOptions:
// The options of `list`.
type KubernetesListOptions struct {
	// The cluster to list, as in `object-ref`.
	Cluster *string
	// The namespace to list. None is every namespace that the plugin may see.
	Namespace *string
	// A label selector in Kubernetes' syntax. None selects all objects.
	LabelSelector *string
	// A field selector in Kubernetes' syntax. It may name any scalar field of
	// any kind, for example `spec.instanceRef.name=ci`. None selects all
	// objects.
	FieldSelector *string
	// The part of each object to return.
	Projection KubernetesProjection
	// The maximum number of objects in a page.
	Limit *uint32
	// The token of the previous page. None returns the first page.
	ContinueToken *string
	// Whether to ask the API server instead of the shared cache.
	Live bool
}

// KubernetesPage:
// A page of a list.
type KubernetesPage struct {
	// The objects, ordered by namespace and name.
	Items [][]byte
	// The token for the next page. It is none on the last page.
	ContinueToken *string
}

// KubernetesApplyOptions:
// The options of `apply`.
type KubernetesApplyOptions struct {
	// The cluster to write to, as in `object-ref`.
	Cluster *string
	// Whether the reconciled object becomes the controller owner of the
	// object, so that both are deleted together. In the same cluster the
	// owner has to be in the same namespace or cluster-scoped.
	Owned bool
	// Whether to take over fields that another manager owns, instead of
	// failing with `conflict`.
	Force bool
	// Secrets to insert into the values of a `Secret`: into the decoded values
	// of `data`, and into those of `stringData`. A placeholder elsewhere in the
	// object, and an object of another kind, are `invalid`. The response has
	// the placeholders. In every other read by a component the whole value is
	// `***` in base64: the host marks it in the annotations of the object.
	Substitutions []Substitution
}

// KubernetesCreateOptions:
// The options of `create`. They mean the same as in `apply-options`.
type KubernetesCreateOptions struct {
	Cluster       *string
	Owned         bool
	Substitutions []Substitution
}

// KubernetesPreconditions:
// What must be true of an object for a write to happen (Kubernetes
// `metav1.Preconditions`).
type KubernetesPreconditions struct {
	// The uid of the object. Another object of the same name does not have it.
	Uid *string
	// The resourceVersion of the object. It changes with every write.
	ResourceVersion *string
}

// KubernetesPropagation:
// The treatment of the dependents of a deleted object (Kubernetes
// `metav1.DeletionPropagation`).
type KubernetesPropagation uint8

// The cases of [KubernetesPropagation].
const (
	// The object is deleted at once, its dependents afterwards.
	KubernetesPropagationBackground KubernetesPropagation = 0
	// The object stays until its dependents are deleted.
	KubernetesPropagationForeground KubernetesPropagation = 1
	// The dependents stay.
	KubernetesPropagationOrphan KubernetesPropagation = 2
)

// KubernetesDeleteOptions:
// The options of `delete`.
type KubernetesDeleteOptions struct {
	// The treatment of the dependents.
	Propagation KubernetesPropagation
	// Preconditions; the call fails with `conflict` if one is not met.
	Preconditions KubernetesPreconditions
}

// KubernetesLogOptions:
// The options of `read-log`.
type KubernetesLogOptions struct {
	// The name of the container. It may be none for a pod with one container.
	Container *string
	// The number of lines from the end of the log, 1 to 1000.
	TailLines uint32
	// Whether to read the log of the container's previous instance, which
	// has ended and was restarted.
	Previous bool
}

// HttpMethod:
// The method of a request (RFC 9110, section 9, and RFC 5789).
type HttpMethod uint8

// The cases of [HttpMethod].
const (
	HttpMethodGet     HttpMethod = 0
	HttpMethodHead    HttpMethod = 1
	HttpMethodOptions HttpMethod = 2
	HttpMethodPost    HttpMethod = 3
	HttpMethodPut     HttpMethod = 4
	HttpMethodPatch   HttpMethod = 5
	HttpMethodDelete  HttpMethod = 6
)

// HttpHeader:
// A header field of a request or a response.
type HttpHeader struct {
	Name  string
	Value string
}

// HttpRequest:
// A request.
type HttpRequest struct {
	// The upstream.
	Upstream UpstreamRef
	// The method.
	Method HttpMethod
	// The path and query, which are appended to the URL of the upstream. They
	// start with `/`; segments `.` and `..` are refused.
	PathAndQuery string
	// The header fields. The host sets those about credentials and the
	// connection itself, so it refuses `Authorization`, `Cookie`, `Host` and
	// hop-by-hop fields, those with which some servers replace the method or
	// the path (`X-HTTP-Method-Override`, `X-Original-URL`), and those that
	// would hide secrets in the response from redaction (`Accept-Encoding`,
	// `Range`).
	Headers []HttpHeader
	// The body, if there is one.
	Body *[]byte
	// Secrets to insert into the body.
	Substitutions []Substitution
	// The timeout of the request. None is that of the upstream.
	Timeout *uint64
}

// HttpResponse:
// A response.
type HttpResponse struct {
	// The status code.
	Status uint16
	// The header fields, with names in lower case. `set-cookie` and
	// authentication fields are removed.
	Headers []HttpHeader
	// The body.
	Body []byte
}

// HttpDataMatch:
// A value in the data of an event.
type HttpDataMatch struct {
	// A JSON pointer (RFC 6901) into the data.
	Pointer string
	// The value at the pointer: the text of a string, or the JSON of any
	// other value.
	Value string
}

// HttpEventMatch:
// A pattern of events in a stream.
type HttpEventMatch struct {
	// The name of the event (`message` if the server sends none). None
	// matches every name.
	Name *string
	// The value that the data must contain. None matches any data.
	Data *HttpDataMatch
}

// HttpSubscription:
// A subscription to a stream of server-sent events (HTML Living Standard,
// section 9.2).
type HttpSubscription struct {
	// The upstream.
	Upstream UpstreamRef
	// The path and query of the stream, as in `request`.
	PathAndQuery string
	// The events that cause a reconcile. An empty list matches every event.
	Wake []HttpEventMatch
	// The events that cause a reconcile and end the subscription: the host
	// closes the stream even if the server does not.
	Until []HttpEventMatch
}

// HttpEvent:
// An event of a stream.
type HttpEvent struct {
	// The id, if the server sent one.
	Id *string
	// The name (`message` if the server sent none).
	Name string
	// The data.
	Data string
}

// HttpEventQuery:
// A query for the last events of a stream.
type HttpEventQuery struct {
	// The upstream.
	Upstream UpstreamRef
	// The path and query of the stream, as in `request`.
	PathAndQuery string
	// The events to return. An empty list matches every event.
	Select []HttpEventMatch
	// The last event to read. An empty list reads until the server closes
	// the connection.
	Until []HttpEventMatch
	// The maximum number of events to return.
	MaxEvents *uint32
	// The maximum size of the data of all returned events, in bytes.
	MaxBytes *uint32
	// The timeout of the whole query.
	Timeout *uint64
}

// HttpEventTail:
// The last events of a stream.
type HttpEventTail struct {
	// The events, oldest first.
	Events []HttpEvent
	// The number of selected events before these.
	Skipped uint64
	// Whether the stream was read to its end before the timeout.
	Complete bool
}

// MessagingMessage:
// A message to publish.
type MessagingMessage struct {
	// The exchange. It is empty for the default exchange.
	Exchange string
	// The routing key; for the default exchange, the name of the queue.
	RoutingKey string
	// The properties.
	Properties MessageProperties
	// The body.
	Body []byte
	// Whether the message must reach a queue: the call fails with `not-found`
	// if the exchange routes it to none.
	Mandatory bool
}

// EventsEventType:
// The type of an Event.
type EventsEventType uint8

// The cases of [EventsEventType].
const (
	EventsEventTypeNormal  EventsEventType = 0
	EventsEventTypeWarning EventsEventType = 1
)

// LogLevel:
// The level of a log line.
type LogLevel uint8

// The cases of [LogLevel].
const (
	LogLevelTrace LogLevel = 0
	LogLevelDebug LogLevel = 1
	LogLevelInfo  LogLevel = 2
	LogLevelWarn  LogLevel = 3
	LogLevelError LogLevel = 4
)

// MessagesDelivery:
// A message that was delivered.
type MessagesDelivery struct {
	// The broker.
	Broker UpstreamRef
	// The queue that delivered the message.
	Queue string
	// The exchange that the message was published to.
	Exchange string
	// The routing key that the message was published with.
	RoutingKey string
	// The properties of the message.
	Properties MessageProperties
	// The body. The password of the broker is redacted in it; nothing else is
	// changed.
	Body []byte
	// The number of earlier deliveries of this message.
	DeliveryCount uint32
}

// MessagesDisposition:
// The decision about a message.
type MessagesDisposition struct {
	Case       MessagesDispositionCase
	RetryAfter uint64
	Reject     string
}

// MessagesDispositionCase says which of a MessagesDisposition it is.
type MessagesDispositionCase uint8

// The cases of [MessagesDisposition].
const (
	// The message is handled, and removed from its queue.
	MessagesDispositionAck MessagesDispositionCase = 0
	// The message is delivered again after this duration.
	MessagesDispositionRetryAfter MessagesDispositionCase = 1
	// The message can never be handled; the text says why. It is
	// dead-lettered.
	MessagesDispositionReject MessagesDispositionCase = 2
)

// Messages is what a plugin exports.
type Messages interface {
	// Handle:
	// Handles one message. An error never dead-letters the message, so a missing
	// grant, a conflict or a limit loses nothing: the message is delivered again
	// with exponential backoff, or after the duration of `throttled`.
	Handle(delivery MessagesDelivery) Result[MessagesDisposition, Error]
}

// MessagesExports is set before the host calls: by an init function.
var MessagesExports Messages

// ReconcilerReconciledKind:
// A kind that the plugin reconciles.
type ReconcilerReconciledKind struct {
	// The kind. The host watches this version of it.
	Gvk Gvk
	// The finalizer (`domain/name`) of a plugin that needs `cleanup`. The host
	// adds it before the first reconcile and removes it after the cleanup.
	Finalizer *string
	// A label selector in Kubernetes' syntax that narrows the objects. None
	// selects all of them.
	LabelSelector *string
	// Whether the host maintains the status field `phase` with the values
	// `Progressing`, `Ready` and `Terminating`. Otherwise a field of this name
	// belongs to the plugin.
	Phase bool
}

// ReconcilerDescriptor:
// The description of a plugin.
type ReconcilerDescriptor struct {
	// The name of the plugin, a DNS label such as `concourse-team`. It is the
	// field manager of its writes and a label of its metrics.
	Name string
	// The version of the plugin (semantic versioning).
	Version string
	// The kinds that it reconciles. The list may be empty if the plugin
	// exports `messages`.
	Kinds []ReconcilerReconciledKind
	// The maximum number of concurrent reconciles of this plugin.
	MaxConcurrent *uint32
}

// ReconcilerRequest:
// The parameters of a reconcile. Reconciles are level-triggered: the
// request has the current object and never an event.
type ReconcilerRequest struct {
	// The current object.
	Object []byte
	// The reference to the object. Its `cluster` is none.
	Ref ObjectRef
	// The number of consecutive failures before this call.
	Attempt uint32
	// The causes of this reconcile, for logs: `start`, `change`,
	// `dependency`, `poll`, `retry`, `timer`, `event`, `permit`, `manual`,
	// `plugin-change` or `config-change`. The set is open; a plugin must not
	// base decisions on it.
	Causes []string
}

// ReconcilerNext:
// The time of the next reconcile, if nothing changes before.
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
	// No time: the object is reconciled again when it, or an object that was
	// read, changes.
	ReconcilerNextAwaitChange ReconcilerNextCase = 0
	// Repeatedly at this interval, with jitter. None is the interval that is
	// configured for the plugin.
	ReconcilerNextPoll ReconcilerNextCase = 1
	// Once after this duration.
	ReconcilerNextAfter ReconcilerNextCase = 2
	// Once at this time.
	ReconcilerNextAt ReconcilerNextCase = 3
)

// ReconcilerOutcome:
// The result of a reconcile that succeeded.
type ReconcilerOutcome struct {
	// The conditions of the object. If `Ready` is not among them, the host
	// adds `Ready=True` with the reason `Ready`. A condition of the plugin
	// that is no longer listed is removed. With `Stalled=True` the object has
	// failed for good, and `Ready` is False: as after a terminal failure, but
	// the plugin comes back at `next`, to clean up for example.
	Conditions []Condition
	// The status fields as one JSON object: everything that the plugin
	// maintains. None leaves them unchanged. `conditions`,
	// `observedGeneration` and, if the kind asks for it, `phase` belong to the
	// host.
	Status *[]byte
	// The time of the next reconcile.
	Next ReconcilerNext
}

// ReconcilerResolution:
// The way to go on after a failure.
type ReconcilerResolution struct {
	Case      ReconcilerResolutionCase
	Throttled uint64
	Denied    string
}

// ReconcilerResolutionCase says which of a ReconcilerResolution it is.
type ReconcilerResolutionCase uint8

// The cases of [ReconcilerResolution].
const (
	// The reconcile is retried with exponential backoff and jitter.
	ReconcilerResolutionRetry ReconcilerResolutionCase = 0
	// Not an error: the object waits for something else. It is reconciled at
	// the plugin's interval of waits (`reconcile.waitInterval`, 30 s), and at
	// once when an object that was read changes.
	ReconcilerResolutionWait ReconcilerResolutionCase = 1
	// The failure is permanent. The object is not retried until its spec, an
	// object that was read, the configuration or the plugin changes. The host
	// sets `Stalled=True`.
	ReconcilerResolutionTerminal ReconcilerResolutionCase = 2
	// The reconcile is retried after this duration.
	ReconcilerResolutionThrottled ReconcilerResolutionCase = 3
	// A grant is missing; the text names it. The reconcile is retried when
	// the grants change.
	ReconcilerResolutionDenied ReconcilerResolutionCase = 4
)

// ReconcilerFailure:
// The result of a reconcile that failed. The host sets `Ready=False` with
// this reason and message. Conditions that are not listed stay unchanged.
type ReconcilerFailure struct {
	// The way to go on.
	Resolution ReconcilerResolution
	// The machine-readable reason, in CamelCase.
	Reason string
	// One sentence that explains the failure. It must never contain a secret.
	Message string
	// Conditions to set besides `Ready`.
	Conditions []Condition
	// The status fields, as in `outcome`.
	Status *[]byte
}

// Reconciler is what a plugin exports.
type Reconciler interface {
	// Describe:
	// Returns the description of the plugin. The host calls it once when it
	// loads the plugin. It must be pure: every host function that it calls fails
	// with `denied`.
	Describe() ReconcilerDescriptor
	// Reconcile:
	// Brings the world closer to what the object asks for.
	Reconcile(request ReconcilerRequest) Result[ReconcilerOutcome, ReconcilerFailure]
	// Cleanup:
	// Undoes what `reconcile` did, for an object that is being deleted. The
	// host calls it only for kinds with a finalizer, and also while the plugin
	// is suspended. The outcome `await-change` releases the object; any other
	// outcome and every failure keep it.
	Cleanup(request ReconcilerRequest) Result[ReconcilerOutcome, ReconcilerFailure]
}

// ReconcilerExports is set before the host calls: by an init function.
var ReconcilerExports Reconciler

// Lifecycle is what a plugin exports.
type Lifecycle interface {
	// Initialize:
	// Prepares the plugin. The host calls it once per leader term, before the
	// first reconcile, and repeats it until it succeeds. It must be idempotent.
	Initialize() Result[Unit, Error]
	// Upgrade:
	// Upgrades a stored object, before the first reconcile by a new version of
	// the plugin. It returns the whole upgraded object, or none when there is
	// nothing to change. Only `metadata.labels` and `metadata.annotations` may
	// differ, never the spec. The host repeats it until it succeeds.
	Upgrade(object []byte) Result[*[]byte, Error]
}

// LifecycleExports is set before the host calls: by an init function.
var LifecycleExports Lifecycle
