// Code generated from wit/ by ostler-builder. DO NOT EDIT.

//go:build !wasip1

package wit

// KubernetesGet:
// One object; none when there is none. Errors: denied, invalid, unavailable, budget.
var KubernetesGet = func(ref ObjectRef, options KubernetesGetOptions) (*[]byte, *Error) {
	panic("wit.KubernetesGet is not set: outside of a host a test sets it")
}

// KubernetesList:
// Objects of a kind, ordered by namespace and name. Errors: as `get`.
var KubernetesList = func(gvk Gvk, options KubernetesListOptions) (KubernetesPage, *Error) {
	panic("wit.KubernetesList is not set: outside of a host a test sets it")
}

// KubernetesRequireReady:
// An object whose Ready condition is True for its current generation and
// which is not being deleted; otherwise `not-ready`, also when there is none.
var KubernetesRequireReady = func(ref ObjectRef) ([]byte, *Error) {
	panic("wit.KubernetesRequireReady is not set: outside of a host a test sets it")
}

// KubernetesApply:
// Server-side apply of the fields given; the field manager is the plugin's.
// Suppressed when it would change nothing. Gives the object as it is then.
// Errors: denied, conflict (with the other manager), invalid, unavailable, budget.
var KubernetesApply = func(object []byte, options KubernetesWriteOptions) ([]byte, *Error) {
	panic("wit.KubernetesApply is not set: outside of a host a test sets it")
}

// KubernetesCreate:
// Creates; `conflict` when it is there already. `force` has no meaning.
var KubernetesCreate = func(object []byte, options KubernetesWriteOptions) ([]byte, *Error) {
	panic("wit.KubernetesCreate is not set: outside of a host a test sets it")
}

// KubernetesDelete:
// Deletes; an object that is gone already is no error. Errors: denied, conflict, unavailable, budget.
var KubernetesDelete = func(ref ObjectRef, options KubernetesDeleteOptions) *Error {
	panic("wit.KubernetesDelete is not set: outside of a host a test sets it")
}

// ReferencesHold:
// Holds an object for as long as this one uses it. The set is declared
// afresh in each reconcile: what is not held again is let go. The host
// keeps the finalizers that encode it. Errors: denied, not-found, unsupported.
var ReferencesHold = func(ref ObjectRef) *Error {
	panic("wit.ReferencesHold is not set: outside of a host a test sets it")
}

// HttpSend:
// Sends one request. Any HTTP status is an answer, not an error; a 401 is
// tried once more after a fresh login. A login that is refused is answered
// with status 401 and a text that says why. Redirects are not followed. Errors:
// denied, not-found (upstream or secret), invalid, throttled, unavailable, budget.
// A GET with `Cache-Control: max-age=N`, without body and substitutions, is
// answered with what the upstream said to such a one (same path and other headers)
// up to N seconds ago, if that was a 200: one request serves all objects, whoever
// of them comes first. Any other answer and an error serve those who waited for it.
// The credentials, what they are made of, and the substituted secrets with their
// former values are masked in an answer, as far as the host has come to know them
// since it started; of the credentials' passwords those of 8 characters or more.
var HttpSend = func(request HttpRequest) (HttpResponse, *Error) {
	panic("wit.HttpSend is not set: outside of a host a test sets it")
}

// HttpSendAll:
// Sends them side by side within the upstream's limits; answers in order. More
// than 64 are not sent: each is answered with `budget`.
var HttpSendAll = func(requests []HttpRequest) []Result[HttpResponse, Error] {
	panic("wit.HttpSendAll is not set: outside of a host a test sets it")
}

// HttpSecretDigest:
// A digest of a Secret's key that changes when the value does and tells
// nothing about it; for noticing a rotation. None when there is no such key.
var HttpSecretDigest = func(namespace *string, secret string, key string) (*string, *Error) {
	panic("wit.HttpSecretDigest is not set: outside of a host a test sets it")
}

// HttpSubscribe:
// Keeps an event stream (server-sent events) open on behalf of the object,
// whose events wake it. One connection per upstream and path serves all
// objects; it is opened again with back-off, after the last event where the
// server gives ids. Whenever something may have been missed, the first time
// included, the object is woken once: subscribe first, then read. Ends when a
// reconcile that succeeds doesn't subscribe again, with the object, or with
// this host's leading. Needs the grant of a GET. Errors: denied, not-found,
// invalid, unavailable (also when the upstream has too many streams).
var HttpSubscribe = func(subscription HttpSubscription) *Error {
	panic("wit.HttpSubscribe is not set: outside of a host a test sets it")
}

// HttpReadEvents:
// Reads an event stream through to its end and gives the last events of it;
// the host keeps no more than these. Secrets that it has put into requests since
// it started, and the credentials, are masked, but not one that is split over two
// events. While it reads it is one of the upstream's requests in flight. Wakes
// nobody. Errors: denied, not-found, invalid, throttled, unavailable.
var HttpReadEvents = func(query HttpEventQuery) (HttpEventTail, *Error) {
	panic("wit.HttpReadEvents is not set: outside of a host a test sets it")
}

// MessagingPublish:
// Publishes and waits for the broker's confirmation. Errors: denied,
// not-found (broker), throttled, unavailable, unsupported.
var MessagingPublish = func(broker string, message MessagingMessage) *Error {
	panic("wit.MessagingPublish is not set: outside of a host a test sets it")
}

// StatusCheckpoint:
// Writes these status fields now, merged into the status, before an effect
// that must happen once. The reconcile may go on when it has succeeded.
// Errors: conflict, invalid, unavailable, budget.
var StatusCheckpoint = func(fields []byte) *Error {
	panic("wit.StatusCheckpoint is not set: outside of a host a test sets it")
}

// EventsEmit:
// `reason` is CamelCase, `note` one sentence, never a secret. Never fails:
// an event that can't be written is counted and dropped.
var EventsEmit = func(type_ EventsEventType, reason string, note string) {
	panic("wit.EventsEmit is not set: outside of a host a test sets it")
}

// LogWrite:
// Writes one line. Fields are key and value.
var LogWrite = func(level LogLevel, message string, fields []struct {
	F0 string
	F1 string
}) {
	panic("wit.LogWrite is not set: outside of a host a test sets it")
}

// MetricsCounter:
// Adds to a counter. Names are `[a-z][a-z0-9_]*`; others are dropped.
var MetricsCounter = func(name string, delta uint64) {
	panic("wit.MetricsCounter is not set: outside of a host a test sets it")
}

// MetricsGauge:
// Sets a gauge.
var MetricsGauge = func(name string, value float64) {
	panic("wit.MetricsGauge is not set: outside of a host a test sets it")
}

// ClockNow:
// Milliseconds since the Unix epoch.
var ClockNow = func() uint64 {
	panic("wit.ClockNow is not set: outside of a host a test sets it")
}

// ClockRemaining:
// Milliseconds left for this call, 0 when the host is draining: end early.
var ClockRemaining = func() uint64 {
	panic("wit.ClockRemaining is not set: outside of a host a test sets it")
}

// ConfigGet:
// One JSON object, `{}` without a configuration.
var ConfigGet = func() []byte {
	panic("wit.ConfigGet is not set: outside of a host a test sets it")
}

// MemoGet is of the contract.
var MemoGet = func(key string) *[]byte {
	panic("wit.MemoGet is not set: outside of a host a test sets it")
}

// MemoPut:
// Errors: budget (with the limit in bytes).
var MemoPut = func(key string, value []byte) *Error {
	panic("wit.MemoPut is not set: outside of a host a test sets it")
}

// MemoRemove is of the contract.
var MemoRemove = func(key string) {
	panic("wit.MemoRemove is not set: outside of a host a test sets it")
}
