// Code generated from wit/ by ostler-builder. DO NOT EDIT.

//go:build !wasip1

package wit

// KubernetesGet:
// Returns an object, or none if there is no such object.
//
// Fails with `invalid` if the reference is malformed, and with `unavailable`
// if the cache cannot be filled or, for a live read, if the API server
// cannot be reached.
var KubernetesGet = func(ref ObjectRef, options KubernetesGetOptions) (*[]byte, *Error) {
	panic("wit.KubernetesGet is not set: outside of a host a test sets it")
}

// KubernetesList:
// Returns the objects of a kind that match the options, one page at a time.
//
// Fails with `invalid` if a selector or the token is malformed, and with
// `unavailable` as `get` does.
var KubernetesList = func(gvk Gvk, options KubernetesListOptions) (KubernetesPage, *Error) {
	panic("wit.KubernetesList is not set: outside of a host a test sets it")
}

// KubernetesRequireReady:
// Returns an object that is ready for its current generation, and not being
// deleted: a custom resource by its condition `Ready`, a built-in kind by
// the rule that kstatus has for it. A Deployment has all pods updated and
// available, a Job is complete, a PersistentVolumeClaim is bound, a
// ConfigMap exists.
//
// Fails with `not-ready` if there is no such object or it is not ready, and
// otherwise as `get` does.
var KubernetesRequireReady = func(ref ObjectRef) ([]byte, *Error) {
	panic("wit.KubernetesRequireReady is not set: outside of a host a test sets it")
}

// KubernetesRequireCondition:
// Returns an object whose condition of this type has this status for its
// current generation, and which is not being deleted. A condition without
// `observedGeneration` counts by `status.observedGeneration`; if the object
// has neither, the condition counts as it is.
//
// Fails with `not-ready` if there is no such object or its condition differs,
// with `invalid` if the type is empty, and otherwise as `get` does.
var KubernetesRequireCondition = func(ref ObjectRef, type_ string, status ConditionStatus) ([]byte, *Error) {
	panic("wit.KubernetesRequireCondition is not set: outside of a host a test sets it")
}

// KubernetesApply:
// Applies the given fields by server-side apply and returns the resulting
// object. The field manager is the name of the plugin. An apply that would
// change nothing is not sent.
//
// Fails with `conflict` if another manager owns a field and `force` is not
// set, with `invalid` if the object or a substitution is malformed or the
// API server rejects it, with `not-found` if a substituted secret does not
// exist, and with `unavailable` if the API server cannot be reached.
var KubernetesApply = func(object []byte, options KubernetesApplyOptions) ([]byte, *Error) {
	panic("wit.KubernetesApply is not set: outside of a host a test sets it")
}

// KubernetesCreate:
// Creates an object and returns it.
//
// Fails with `conflict` if the object exists, and otherwise as `apply` does.
var KubernetesCreate = func(object []byte, options KubernetesCreateOptions) ([]byte, *Error) {
	panic("wit.KubernetesCreate is not set: outside of a host a test sets it")
}

// KubernetesPatch:
// Applies a JSON merge patch (RFC 7386) to an object and returns the
// result. Prefer `apply`, which records the ownership of fields; a patch is
// for changes that depend on the current object, for example to an element
// of a list. The patch may change `metadata` in labels and annotations alone,
// and `status` only if the kind has no status subresource. A patch that would
// change nothing is not sent.
//
// Fails with `not-found` if there is no such object, with `conflict` if a
// precondition is not met, with `invalid` if the patch is malformed or the
// API server rejects it, and with `unavailable` if the API server cannot be
// reached.
var KubernetesPatch = func(ref ObjectRef, patch []byte, preconditions KubernetesPreconditions) ([]byte, *Error) {
	panic("wit.KubernetesPatch is not set: outside of a host a test sets it")
}

// KubernetesPatchSubresource:
// Applies a JSON merge patch (RFC 7386) to a subresource that has the form of
// the object itself, such as `resize` of a Pod, and returns the object. The
// API server takes from it what belongs to the subresource. The permission
// names it after the kind, as `Pod/resize` with the verb `patch`. `status` is
// refused: it belongs to the controller of the object. The patch is sent even
// if it would change nothing.
//
// Fails with `unsupported` if the API server has no such subresource of the
// kind, and otherwise as `patch` does.
var KubernetesPatchSubresource = func(ref ObjectRef, subresource string, patch []byte, preconditions KubernetesPreconditions) ([]byte, *Error) {
	panic("wit.KubernetesPatchSubresource is not set: outside of a host a test sets it")
}

// KubernetesDelete:
// Deletes an object. It succeeds if there is no such object.
//
// Fails with `conflict` if a precondition is not met, and with `unavailable`
// if the API server cannot be reached.
var KubernetesDelete = func(ref ObjectRef, options KubernetesDeleteOptions) *Error {
	panic("wit.KubernetesDelete is not set: outside of a host a test sets it")
}

// KubernetesReadLog:
// Returns the newest lines of the log of a container, of a pod that may be
// running. The permission names it as `Pod/log` with the verb `get`. It is
// a request to the API server and through it to the kubelet, and wakes
// nobody when the log grows. Of lines that have more than 64 KiB together,
// fewer are returned; bytes that are not UTF-8 are replaced.
//
// Fails with `not-found` if there is no such pod, with `invalid` if there
// is no such container or it has not started yet, with `denied` without
// the permission, and with `unavailable` if API server or kubelet cannot be
// reached.
var KubernetesReadLog = func(pod ObjectRef, options KubernetesLogOptions) (string, *Error) {
	panic("wit.KubernetesReadLog is not set: outside of a host a test sets it")
}

// ReferencesHold:
// Holds an object for as long as the reconciled object uses it. Each
// reconcile declares the whole set: what a successful reconcile does not
// hold again is released. The host encodes holds as finalizers.
//
// Fails with `not-found` if there is no such object, with `not-ready` if it
// is being deleted already, with `invalid` if the hold would close a cycle
// of holds, and with `unavailable` if the API server cannot be reached.
var ReferencesHold = func(ref ObjectRef) *Error {
	panic("wit.ReferencesHold is not set: outside of a host a test sets it")
}

// ReferencesListHolders:
// Returns the objects that hold an object, ordered by kind, namespace and
// name; an empty list if there are none or the object does not exist. The
// reconciled object is reconciled again when the list changes. It needs the
// permission to read the object.
//
// Fails as `kubernetes.get` does.
var ReferencesListHolders = func(ref ObjectRef) ([]ObjectRef, *Error) {
	panic("wit.ReferencesListHolders is not set: outside of a host a test sets it")
}

// PermitsAcquire:
// Requests a permit of a pool for the reconciled object. False means that
// the object waits for one: it is reconciled again when it gets it, and only
// then, however many wait. A permit that becomes free goes to the namespace
// with the fewest permits, and there to the oldest object that waits.
//
// Each reconcile requests what it needs: a permit that a successful
// reconcile does not request again is released, as is that of an object that
// is gone. After a failure the object keeps what it has.
//
// `limit` is the number of permits of the pool. With `held` the object has
// begun already what the permit is for, and gets it in any case: permits are
// in the memory of the host, and it is by this that they survive a restart,
// after which none is granted before all objects have been reconciled once.
//
// Fails with `invalid` if the name is not a DNS label, and with
// `limit-exceeded` if the plugin has too many pools.
var PermitsAcquire = func(pool string, limit uint32, held bool) (bool, *Error) {
	panic("wit.PermitsAcquire is not set: outside of a host a test sets it")
}

// PermitsRelease:
// Releases the permit of the reconciled object at once, or ends its wait for
// one. It is for an object that cannot use its permit for now.
var PermitsRelease = func(pool string) {
	panic("wit.PermitsRelease is not set: outside of a host a test sets it")
}

// HttpSend:
// Sends a request and returns the response. A response with any status code
// is a success of this function. Redirects are not followed.
//
// # Authentication
//
// The host adds the credentials of the upstream. After a response with
// status 401 it logs in again and repeats the request once. If the login
// itself is refused, the function returns a response with status 401 and
// the reason in its body.
//
// # Caching
//
// A GET request with the header `Cache-Control: max-age=N`, and without body
// and substitutions, may be answered with an earlier response of status 200
// that is at most N seconds old and belongs to the same path and header
// fields. Concurrent requests of this kind share one request to the
// upstream, whichever object they are for. Other responses and errors are
// not cached; they are shared with the requests that were waiting for them.
//
// # Redaction
//
// In a response the host redacts the credentials, the values that they are
// derived from, and the secrets that were substituted in requests to the
// upstream with their previous values, as far as it has known them since it
// started. Passwords of the credentials are redacted if they have 8
// characters or more. Redaction guards against accidents, not against a
// hostile server or plugin.
//
// # Errors
//
// Fails with `not-found` if the upstream or a secret does not exist, with
// `invalid` if the request is malformed, with `throttled` if a limit of the
// upstream is reached, and with `unavailable` if the upstream cannot be
// reached, breaks the connection or exceeds the timeout.
var HttpSend = func(request HttpRequest) (HttpResponse, *Error) {
	panic("wit.HttpSend is not set: outside of a host a test sets it")
}

// HttpSendAll:
// Sends several requests concurrently, within the limits of their
// upstreams, and returns their results in the same order. At most 64
// requests are sent at once; with more, each result is `limit-exceeded`.
var HttpSendAll = func(requests []HttpRequest) []Result[HttpResponse, Error] {
	panic("wit.HttpSendAll is not set: outside of a host a test sets it")
}

// HttpSecretDigest:
// Returns a keyed digest of the value of a secret, or none if there is no
// such key. It changes when the value changes and reveals nothing about it,
// so a plugin can notice a rotation. The reconciled object is reconciled
// again when the secret changes.
//
// Fails with `invalid` if the reference is malformed.
var HttpSecretDigest = func(secret SecretKeyRef) (*string, *Error) {
	panic("wit.HttpSecretDigest is not set: outside of a host a test sets it")
}

// HttpSubscribe:
// Keeps an event stream open on behalf of the reconciled object. Its events
// cause a reconcile.
//
// One connection per upstream and path serves all objects. The host
// reconnects with backoff, after the last event if the server sends ids.
// Whenever events may have been missed, which includes the first
// connection, it reconciles the object once; so subscribe first, then read.
// The subscription ends when a successful reconcile does not repeat it, with
// the object, and with the leadership of the host. It needs the grant for a
// GET request.
//
// Fails with `not-found` if the upstream does not exist, with `invalid` if
// the subscription is malformed, and with `unavailable` if the upstream has
// too many streams.
var HttpSubscribe = func(subscription HttpSubscription) *Error {
	panic("wit.HttpSubscribe is not set: outside of a host a test sets it")
}

// HttpReadEvents:
// Reads an event stream to its end and returns its last events; the host
// keeps no more than these. The query counts as one concurrent request to
// the upstream, and its events cause no reconcile. Redaction works as in
// `send`, but a secret that is split over two events is not recognized.
//
// Fails as `send` does.
var HttpReadEvents = func(query HttpEventQuery) (HttpEventTail, *Error) {
	panic("wit.HttpReadEvents is not set: outside of a host a test sets it")
}

// MessagingPublish:
// Publishes a message and waits until the broker confirms it. A message
// whose confirmation is lost may have been published, so give it a
// `message-id` by which consumers recognize the duplicate.
//
// Fails with `not-found` if the broker or the exchange does not exist, with
// `invalid` if the message is malformed, with `throttled` if a limit of the
// broker is reached, with `unavailable` if the broker cannot be reached or
// does not confirm, and with `unsupported` if this host has no brokers.
var MessagingPublish = func(broker UpstreamRef, message MessagingMessage) *Error {
	panic("wit.MessagingPublish is not set: outside of a host a test sets it")
}

// StatusCheckpoint:
// Merges these fields into the status of the reconciled object and writes it
// at once, before an effect that must happen exactly once. Only after a
// success may the plugin go on to that effect.
//
// Fails with `conflict` if the object was replaced or changed, with
// `invalid` if the fields are not a JSON object or the API server rejects
// them, and with `unavailable` if the API server cannot be reached.
var StatusCheckpoint = func(fields []byte) *Error {
	panic("wit.StatusCheckpoint is not set: outside of a host a test sets it")
}

// EventsEmit:
// Emits an Event. The host aggregates repeated Events and limits their
// rate. The reason is CamelCase, the note one sentence that must never
// contain a secret. It never fails: an Event that cannot be written is
// counted and dropped.
var EventsEmit = func(type_ EventsEventType, reason string, note string) {
	panic("wit.EventsEmit is not set: outside of a host a test sets it")
}

// LogWrite:
// Writes a line. The fields are pairs of key and value.
//
// A line of level error with the field `exception.location` (file and line,
// or empty) reports a panic: if the call traps next, the message of the
// trap is that of the line. `exception.stacktrace` is for the log.
var LogWrite = func(level LogLevel, message string, fields []struct {
	F0 string
	F1 string
}) {
	panic("wit.LogWrite is not set: outside of a host a test sets it")
}

// MetricsCounter:
// Adds to a counter.
var MetricsCounter = func(name string, delta uint64) {
	panic("wit.MetricsCounter is not set: outside of a host a test sets it")
}

// MetricsGauge:
// Sets a gauge.
var MetricsGauge = func(name string, value float64) {
	panic("wit.MetricsGauge is not set: outside of a host a test sets it")
}

// ClockNow:
// Returns the current time.
var ClockNow = func() uint64 {
	panic("wit.ClockNow is not set: outside of a host a test sets it")
}

// ClockRemaining:
// Returns the time that is left for this call. It is 0 while the host shuts
// down: the plugin should finish early.
var ClockRemaining = func() uint64 {
	panic("wit.ClockRemaining is not set: outside of a host a test sets it")
}

// ConfigGet:
// Returns the configuration from the administrator as a JSON object; `{}`
// if there is none.
var ConfigGet = func() []byte {
	panic("wit.ConfigGet is not set: outside of a host a test sets it")
}

// CacheGet:
// Returns the value of a key, or none if there is none.
var CacheGet = func(key string) *[]byte {
	panic("wit.CacheGet is not set: outside of a host a test sets it")
}

// CacheSet:
// Sets the value of a key. Fails with `limit-exceeded` if the object would
// keep more bytes than its limit, which the text names.
var CacheSet = func(key string, value []byte) *Error {
	panic("wit.CacheSet is not set: outside of a host a test sets it")
}

// CacheDelete:
// Removes a key.
var CacheDelete = func(key string) {
	panic("wit.CacheDelete is not set: outside of a host a test sets it")
}
