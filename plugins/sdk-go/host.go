package ostler

import (
	"encoding/json"
	"fmt"
	"strings"

	"ostler.dev/sdk/wit"
)

// Get reads an object into a pointer. It returns false if there is no such object.
func Get(ref ObjectRef, into any) (bool, error) {
	return get(ref, wit.KubernetesProjection{Case: wit.KubernetesProjectionFull}, into)
}

// GetMetadata reads the apiVersion, kind and metadata of an object into a pointer. It returns false if there is no such
// object. The host caches no more of the object if nothing else reads more.
func GetMetadata(ref ObjectRef, into any) (bool, error) {
	return get(ref, wit.KubernetesProjection{Case: wit.KubernetesProjectionMetadata}, into)
}

func get(ref ObjectRef, projection wit.KubernetesProjection, into any) (bool, error) {
	bytes, failed := wit.KubernetesGet(ref, wit.KubernetesGetOptions{Projection: projection})
	if failed != nil || bytes == nil {
		return false, check(failed)
	}
	return true, Decode(*bytes, into)
}

// Selection selects the objects to list. The zero value selects all of them on the cluster of the reconciled object.
type Selection struct{ Namespace, Labels, Fields, Cluster string }

// List returns the selected objects, each as JSON.
func List(apiVersion, kind string, selection Selection) ([]json.RawMessage, error) {
	return list(apiVersion, kind, selection, wit.KubernetesProjection{Case: wit.KubernetesProjectionFull})
}

// ListMetadata returns the apiVersion, kind and metadata of the selected objects, each as JSON.
func ListMetadata(apiVersion, kind string, selection Selection) ([]json.RawMessage, error) {
	return list(apiVersion, kind, selection, wit.KubernetesProjection{Case: wit.KubernetesProjectionMetadata})
}

func list(apiVersion, kind string, selection Selection, projection wit.KubernetesProjection) ([]json.RawMessage, error) {
	options := wit.KubernetesListOptions{
		Cluster: some(selection.Cluster), Namespace: some(selection.Namespace),
		LabelSelector: some(selection.Labels), FieldSelector: some(selection.Fields),
		Projection: projection,
	}
	var items []json.RawMessage
	for {
		page, failed := wit.KubernetesList(gvk(apiVersion, kind), options)
		if failed != nil {
			return nil, check(failed)
		}
		for _, item := range page.Items {
			items = append(items, item)
		}
		if options.ContinueToken = page.ContinueToken; options.ContinueToken == nil {
			return items, nil
		}
	}
}

// RequireReady reads an object that is ready for its current generation: a custom resource by its condition Ready, a
// built-in kind by the rule that kstatus has for it. It fails with not-ready until then.
func RequireReady(ref ObjectRef, into any) error {
	bytes, failed := wit.KubernetesRequireReady(ref)
	if failed != nil {
		return check(failed)
	}
	return Decode(bytes, into)
}

// RequireCondition reads an object whose condition of this type has this status for its current generation. It fails
// with not-ready until then.
func RequireCondition(ref ObjectRef, kind string, status ConditionStatus, into any) error {
	bytes, failed := wit.KubernetesRequireCondition(ref, kind, status)
	if failed != nil {
		return check(failed)
	}
	return Decode(bytes, into)
}

// ApplyOptions are the options of [ApplyWith].
type ApplyOptions = wit.KubernetesApplyOptions

// ApplyOwned applies the given fields to an object that the reconciled object owns. Other managers are overruled.
func ApplyOwned(object any) error { return ApplyWith(object, ApplyOptions{Owned: true, Force: true}) }

// Apply applies the given fields; with force other managers of these fields are overruled.
func Apply(object any, force bool) error { return ApplyWith(object, ApplyOptions{Force: force}) }

// ApplyWith applies the given fields, with all options.
func ApplyWith(object any, options ApplyOptions) error {
	_, failed := wit.KubernetesApply(encode(object), options)
	return check(failed)
}

// ApplyInto applies the given fields, with all options, and reads the resulting object into a pointer.
func ApplyInto(object any, options ApplyOptions, into any) error {
	bytes, failed := wit.KubernetesApply(encode(object), options)
	if failed != nil {
		return check(failed)
	}
	return Decode(bytes, into)
}

// OnCluster returns the reference on another cluster: namespace and name of its Cluster, or the name of one in the
// namespace of the reconciled object.
func OnCluster(ref ObjectRef, cluster string) ObjectRef {
	ref.Cluster = some(cluster)
	return ref
}

// Create creates an object; with owned the reconciled object owns it.
func Create(object any, owned bool) error {
	_, failed := wit.KubernetesCreate(encode(object), wit.KubernetesCreateOptions{Owned: owned})
	return check(failed)
}

// Preconditions must hold for a write to happen.
type Preconditions struct{ UID, ResourceVersion string }

func (p Preconditions) wit() wit.KubernetesPreconditions {
	return wit.KubernetesPreconditions{Uid: some(p.UID), ResourceVersion: some(p.ResourceVersion)}
}

// Patch applies a JSON merge patch (RFC 7386) to an object.
func Patch(ref ObjectRef, patch any, preconditions Preconditions) error {
	_, failed := wit.KubernetesPatch(ref, encode(patch), preconditions.wit())
	return check(failed)
}

// PatchSubresource applies a JSON merge patch (RFC 7386) to a subresource that has the form of the object, such as "resize"
// of a Pod.
func PatchSubresource(ref ObjectRef, subresource string, patch any, preconditions Preconditions) error {
	_, failed := wit.KubernetesPatchSubresource(ref, subresource, encode(patch), preconditions.wit())
	return check(failed)
}

// LogOptions selects a part of a log.
type LogOptions struct {
	// Container is the name of the container. It may be empty for a pod with one container.
	Container string
	// TailLines is the number of lines from the end, 1000 at most. Zero stands for 100.
	TailLines uint32
	// Previous selects the instance of the container before its restart.
	Previous bool
}

// ReadLog returns the newest lines of the log of a container. It is a request each time, and wakes nobody when the log grows.
// It fails as invalid if the container does not exist or has not started.
func ReadLog(pod ObjectRef, options LogOptions) (string, error) {
	selected := wit.KubernetesLogOptions{TailLines: options.TailLines, Previous: options.Previous}
	if options.Container != "" {
		selected.Container = &options.Container
	}
	if options.TailLines == 0 {
		selected.TailLines = 100
	}
	log, failed := wit.KubernetesReadLog(pod, selected)
	return log, check(failed)
}

// Delete deletes an object in the background.
func Delete(ref ObjectRef) error {
	return DeleteWith(ref, wit.KubernetesPropagationBackground, Preconditions{})
}

// DeleteWith deletes an object, with all options.
func DeleteWith(ref ObjectRef, propagation wit.KubernetesPropagation, preconditions Preconditions) error {
	options := wit.KubernetesDeleteOptions{Propagation: propagation, Preconditions: preconditions.wit()}
	return check(wit.KubernetesDelete(ref, options))
}

// Hold holds an object: it is not deleted while the reconciled object uses it.
func Hold(ref ObjectRef) error { return check(wit.ReferencesHold(ref)) }

// ListHolders returns the objects that hold an object.
func ListHolders(ref ObjectRef) ([]ObjectRef, error) {
	holders, failed := wit.ReferencesListHolders(ref)
	return holders, check(failed)
}

// Checkpoint persists status fields before an effect that must happen exactly once.
func Checkpoint(fields any) error { return check(wit.StatusCheckpoint(encode(fields))) }

// Event emits a normal Event about the object.
func Event(reason, note string) { wit.EventsEmit(wit.EventsEventTypeNormal, reason, note) }

// Warn emits a warning Event about the object.
func Warn(reason, note string) { wit.EventsEmit(wit.EventsEventTypeWarning, reason, note) }

// Log writes a log line.
func Log(level wit.LogLevel, message string) { wit.LogWrite(level, message, nil) }

// Info writes a log line at level info.
func Info(message string) { Log(wit.LogLevelInfo, message) }

// Now returns the current time in milliseconds since the Unix epoch.
func Now() uint64 { return wit.ClockNow() }

// Remaining returns the milliseconds that are left for this call.
func Remaining() uint64 { return wit.ClockRemaining() }

// Config parses the configuration of the plugin.
func Config(into any) error { return Decode(wit.ConfigGet(), into) }

// Counter adds to a counter.
func Counter(name string, delta uint64) { wit.MetricsCounter(name, delta) }

// Gauge sets a gauge.
func Gauge(name string, value float64) { wit.MetricsGauge(name, value) }

// CacheGet returns the cached value of a key, or nil if it is not cached.
func CacheGet(key string) []byte {
	if value := wit.CacheGet(key); value != nil {
		return *value
	}
	return nil
}

// CacheSet caches a value for the next reconciles of this object. The cache does not survive a restart of the host.
func CacheSet(key string, value []byte) error { return check(wit.CacheSet(key, value)) }

// CacheDelete removes a key from the cache.
func CacheDelete(key string) { wit.CacheDelete(key) }

// AcquirePermit requests a permit of a pool of the plugin, which has limit of them. It returns false if the object waits for
// one: it is reconciled again when it gets it. With held it has begun already what the permit is for, and gets it in any case.
// A permit that a successful reconcile does not request again is released.
func AcquirePermit(pool string, limit uint32, held bool) (bool, error) {
	granted, failed := wit.PermitsAcquire(pool, limit, held)
	return granted, check(failed)
}

// ReleasePermit releases the permit of the object at once, or ends its wait for one.
func ReleasePermit(pool string) { wit.PermitsRelease(pool) }

// Secret returns a reference to a key of a Secret in the namespace of the reconciled object.
func Secret(name, key string) wit.SecretKeyRef { return wit.SecretKeyRef{Name: name, Key: key} }

// SecretDigest returns a digest of a secret's value that changes when the value does, or false if there is no such key.
func SecretDigest(secret wit.SecretKeyRef) (string, bool, error) {
	digest, failed := wit.HttpSecretDigest(secret)
	if failed != nil || digest == nil {
		return "", false, check(failed)
	}
	return *digest, true, nil
}

// Substitution replaces a placeholder of at least 16 bytes by the value of a secret.
func Substitution(placeholder string, secret wit.SecretKeyRef, encoding wit.Encoding) wit.Substitution {
	source := wit.SecretSource{Case: wit.SecretSourceKey, Key: secret}
	return wit.Substitution{Placeholder: placeholder, Source: source, Encoding: encoding}
}

// Upstream is a named upstream: an HTTP server or a message broker. An empty namespace is that of the reconciled object.
type Upstream struct{ Name, Namespace string }

func (u Upstream) ref() wit.UpstreamRef {
	return wit.UpstreamRef{Namespace: some(u.Namespace), Name: u.Name}
}

// Message is a message to publish; see [Upstream.Publish].
type Message = wit.MessagingMessage

// NewMessage returns a persistent message that must reach a queue. Set its `Properties.MessageId` to an id by which
// consumers recognize a duplicate.
func NewMessage(exchange, routingKey string, body []byte) Message {
	properties := wit.MessageProperties{Persistent: true}
	return Message{Exchange: exchange, RoutingKey: routingKey, Properties: properties, Body: body, Mandatory: true}
}

// Publish publishes a message and waits for the confirmation of the broker.
func (u Upstream) Publish(message Message) error {
	return check(wit.MessagingPublish(u.ref(), message))
}

// Request is a request to an upstream.
type Request struct {
	Method, Path string
	Headers      map[string]string
	Body         []byte
	// Timeout in milliseconds; 0 is that of the upstream.
	Timeout       uint64
	Substitutions []wit.Substitution
}

// Response is a response with any status.
type Response struct {
	Status  int
	Headers map[string]string
	Body    []byte
}

// OK returns whether the status is between 200 and 299.
func (r *Response) OK() bool { return r.Status >= 200 && r.Status < 300 }

var methods = map[string]wit.HttpMethod{
	"GET": wit.HttpMethodGet, "HEAD": wit.HttpMethodHead, "OPTIONS": wit.HttpMethodOptions, "POST": wit.HttpMethodPost,
	"PUT": wit.HttpMethodPut, "PATCH": wit.HttpMethodPatch, "DELETE": wit.HttpMethodDelete,
}

// request converts a request.
func (u Upstream) request(request Request) (wit.HttpRequest, error) {
	method, known := methods[strings.ToUpper(request.Method)]
	if !known {
		return wit.HttpRequest{}, Terminal("Invalid", fmt.Sprintf("The method %q cannot be sent.", request.Method))
	}
	sent := wit.HttpRequest{
		Upstream: u.ref(), Method: method, PathAndQuery: request.Path, Substitutions: request.Substitutions,
	}
	if request.Timeout > 0 {
		sent.Timeout = &request.Timeout
	}
	for name, value := range request.Headers {
		sent.Headers = append(sent.Headers, wit.HttpHeader{Name: name, Value: value})
	}
	if request.Body != nil {
		sent.Body = &request.Body
	}
	return sent, nil
}

// response converts a response.
func response(received wit.HttpResponse) *Response {
	response := &Response{Status: int(received.Status), Headers: map[string]string{}, Body: received.Body}
	for _, header := range received.Headers {
		response.Headers[header.Name] = header.Value
	}
	return response
}

// Send sends a request.
func (u Upstream) Send(request Request) (*Response, error) {
	sent, err := u.request(request)
	if err != nil {
		return nil, err
	}
	received, failed := wit.HttpSend(sent)
	if failed != nil {
		return nil, check(failed)
	}
	return response(received), nil
}

// Result is the result of one of several requests: a response, or an error.
type Result struct {
	*Response
	Err error
}

// SendAll sends requests concurrently and returns their results in the same order. It fails if a method is unknown.
func (u Upstream) SendAll(requests []Request) ([]Result, error) {
	sent := make([]wit.HttpRequest, len(requests))
	for i, request := range requests {
		var err error
		if sent[i], err = u.request(request); err != nil {
			return nil, err
		}
	}
	results := make([]Result, len(requests))
	for i, received := range wit.HttpSendAll(sent) {
		if received.Err != nil {
			results[i] = Result{Err: check(received.Err)}
		} else {
			results[i] = Result{Response: response(received.Ok)}
		}
	}
	return results, nil
}

// EventMatch is a pattern of events in a stream. The zero value matches every event.
type EventMatch = wit.HttpEventMatch

// EventNamed returns a pattern of events of this name.
func EventNamed(name string) EventMatch { return EventMatch{Name: &name} }

// EventWith returns a pattern of events of this name with this value at a JSON pointer into their data.
func EventWith(name, pointer, value string) EventMatch {
	return EventMatch{Name: &name, Data: &wit.HttpDataMatch{Pointer: pointer, Value: value}}
}

// Subscribe reconciles the object on events of a stream (server-sent events) that match wake, and ends the subscription
// after an event that matches until. Subscribe first, then read: a change in between then causes a reconcile.
func (u Upstream) Subscribe(path string, wake, until []EventMatch) error {
	subscription := wit.HttpSubscription{Upstream: u.ref(), PathAndQuery: path, Wake: wake, Until: until}
	return check(wit.HttpSubscribe(subscription))
}

// EventQuery is a query for the last events of a stream. The limits and the timeout (in milliseconds) are optional.
type EventQuery struct {
	Path                string
	Select, Until       []EventMatch
	MaxEvents, MaxBytes uint32
	Timeout             uint64
}

// EventTail are the last events of a stream.
type EventTail = wit.HttpEventTail

// ReadEvents reads a stream up to an event that matches Until, and returns the last of the selected events.
func (u Upstream) ReadEvents(query EventQuery) (EventTail, error) {
	sent := wit.HttpEventQuery{
		Upstream: u.ref(), PathAndQuery: query.Path, Select: query.Select, Until: query.Until,
	}
	if query.MaxEvents > 0 {
		sent.MaxEvents = &query.MaxEvents
	}
	if query.MaxBytes > 0 {
		sent.MaxBytes = &query.MaxBytes
	}
	if query.Timeout > 0 {
		sent.Timeout = &query.Timeout
	}
	tail, failed := wit.HttpReadEvents(sent)
	return tail, check(failed)
}

// Get sends a GET request.
func (u Upstream) Get(path string) (*Response, error) {
	return u.Send(Request{Method: "GET", Path: path})
}

// Delete sends a DELETE request.
func (u Upstream) Delete(path string) (*Response, error) {
	return u.Send(Request{Method: "DELETE", Path: path})
}
