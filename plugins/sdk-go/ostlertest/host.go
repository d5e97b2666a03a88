//go:build !wasip1

// Package ostlertest has a host in memory for native tests of a plugin. A test adds objects with [Host.Put] and HTTP responses
// with [Host.Answer], calls the plugin as the host does, and then reads back its requests, writes and Events:
//
//	host := ostlertest.NewHost(t)
//	host.Answer("GET", "/a", 200, "Hello")
//	outcome, err := host.Reconcile(page)
//
// A request without a response fails the test and names the request.
package ostlertest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/messages"
	"ostler.dev/sdk/wit"
)

// Object is a Kubernetes object as JSON values. Numbers are [json.Number], so that none is rounded.
type Object = map[string]any

// Event is an Event about the reconciled object.
type Event struct{ Reason, Note string }

// Message is a published message with the name of its broker.
type Message struct {
	Broker string
	ostler.Message
}

// Host is a host in memory: a cluster, upstreams, and the record of what the plugin did.
type Host struct {
	t       testing.TB
	objects map[key]Object
	// uncached are the objects that reads of the cache do not return.
	uncached map[key]bool
	// created counts the objects that the plugin has created, from which their UIDs are made.
	created int
	// owner is the reference to the object being reconciled, as the objects that it owns have it.
	owner Object
	// owned are the inventories: what an object owns on other clusters, by its UID.
	owned map[string]map[string]bool

	answers       map[string][]answer
	requests      []wit.HttpRequest
	streams       map[string][]wit.HttpEvent
	subscriptions []string
	secrets       map[string]string
	failing       map[string]wit.Error
	config        []byte
	now           uint64
	cache         map[string][]byte
	containerLogs map[string]string

	holders          map[string][]ostler.ObjectRef
	held, heldBefore map[string]bool
	// usedPermits counts the permits that objects outside of the test have, by pool.
	usedPermits        map[string]int
	permits, requested map[permit]bool

	writes, logs []string
	events       []Event
	checkpoints  []Object
	messages     []Message
}

// permit is a permit of a pool, and the UID of the object that has it.
type permit struct{ pool, uid string }

type answer struct {
	response wit.HttpResponse
	failure  *wit.Error
}

// NewHost returns an empty host, whose functions the plugin calls until the test ends.
func NewHost(t testing.TB) *Host {
	h := &Host{
		t: t, objects: map[key]Object{}, uncached: map[key]bool{}, owner: Object{}, owned: map[string]map[string]bool{},
		answers: map[string][]answer{}, streams: map[string][]wit.HttpEvent{}, secrets: map[string]string{},
		failing: map[string]wit.Error{}, config: []byte("{}"), cache: map[string][]byte{}, containerLogs: map[string]string{},
		holders: map[string][]ostler.ObjectRef{}, held: map[string]bool{}, heldBefore: map[string]bool{},
		usedPermits: map[string]int{}, permits: map[permit]bool{}, requested: map[permit]bool{},
	}
	h.offer()
	return h
}

// set replaces a function of the host until the test ends.
func set[F any](t testing.TB, function *F, by F) {
	before := *function
	*function = by
	t.Cleanup(func() { *function = before })
}

// offer replaces the functions of the host that are not about objects.
func (h *Host) offer() {
	h.offerObjects()
	set(h.t, &wit.HttpSend, h.send)
	set(h.t, &wit.HttpSendAll, func(requests []wit.HttpRequest) []wit.Result[wit.HttpResponse, wit.Error] {
		var results []wit.Result[wit.HttpResponse, wit.Error]
		for _, request := range requests {
			response, failed := h.send(request)
			results = append(results, wit.Result[wit.HttpResponse, wit.Error]{Ok: response, Err: failed})
		}
		return results
	})
	set(h.t, &wit.HttpSecretDigest, func(secret wit.SecretKeyRef) (*string, *wit.Error) {
		if failed := h.check("http.secret-digest"); failed != nil {
			return nil, failed
		}
		if digest, ok := h.secrets[secret.Name+"/"+secret.Key]; ok {
			return &digest, nil
		}
		return nil, nil
	})
	set(h.t, &wit.HttpSubscribe, func(subscription wit.HttpSubscription) *wit.Error {
		if failed := h.check("http.subscribe"); failed != nil {
			return failed
		}
		h.subscriptions = append(h.subscriptions, subscription.PathAndQuery)
		return nil
	})
	set(h.t, &wit.HttpReadEvents, func(query wit.HttpEventQuery) (wit.HttpEventTail, *wit.Error) {
		if failed := h.check("http.read-events"); failed != nil {
			return wit.HttpEventTail{}, failed
		}
		events, ok := h.streams[query.PathAndQuery]
		if !ok {
			h.t.Fatalf("unexpected event stream: %s", query.PathAndQuery)
		}
		skipped := 0
		if query.MaxEvents != nil {
			skipped = max(0, len(events)-int(*query.MaxEvents))
		}
		return wit.HttpEventTail{Events: events[skipped:], Skipped: uint64(skipped), Complete: true}, nil
	})
	set(h.t, &wit.MessagingPublish, func(broker wit.UpstreamRef, message wit.MessagingMessage) *wit.Error {
		if failed := h.check("messaging.publish"); failed != nil {
			return failed
		}
		h.messages = append(h.messages, Message{broker.Name, message})
		return nil
	})
	set(h.t, &wit.StatusCheckpoint, func(fields []byte) *wit.Error {
		if failed := h.check("status.checkpoint"); failed != nil {
			return failed
		}
		parsed, err := parse(fields)
		if err != nil {
			return invalid(err.Error())
		}
		h.checkpoints = append(h.checkpoints, parsed)
		return nil
	})
	set(h.t, &wit.EventsEmit, func(_ wit.EventsEventType, reason, note string) {
		h.events = append(h.events, Event{reason, note})
	})
	set(h.t, &wit.LogWrite, func(_ wit.LogLevel, message string, _ []struct{ F0, F1 string }) {
		h.logs = append(h.logs, message)
	})
	set(h.t, &wit.MetricsCounter, func(string, uint64) {})
	set(h.t, &wit.MetricsGauge, func(string, float64) {})
	set(h.t, &wit.ClockNow, func() uint64 { return h.now })
	set(h.t, &wit.ClockRemaining, func() uint64 { return 60_000 })
	set(h.t, &wit.ConfigGet, func() []byte { return h.config })
	set(h.t, &wit.CacheGet, func(key string) *[]byte {
		if value, ok := h.cache[key]; ok {
			return &value
		}
		return nil
	})
	set(h.t, &wit.CacheSet, func(key string, value []byte) *wit.Error {
		h.cache[key] = value
		return nil
	})
	set(h.t, &wit.CacheDelete, func(key string) { delete(h.cache, key) })
	set(h.t, &wit.PermitsAcquire, h.acquirePermit)
	set(h.t, &wit.PermitsRelease, func(pool string) {
		delete(h.permits, h.permitOf(pool))
		delete(h.requested, h.permitOf(pool))
	})
}

func (h *Host) send(request wit.HttpRequest) (wit.HttpResponse, *wit.Error) {
	if failed := h.check("http.send"); failed != nil {
		return wit.HttpResponse{}, failed
	}
	h.requests = append(h.requests, request)
	name := requestLine(request)
	answers := h.answers[name]
	if len(answers) == 0 {
		h.t.Fatalf("unexpected request: %s", name)
	}
	// The last answer stays.
	if len(answers) > 1 {
		h.answers[name] = answers[1:]
	}
	return answers[0].response, answers[0].failure
}

func requestLine(request wit.HttpRequest) string {
	methods := []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}
	return methods[request.Method] + " " + request.PathAndQuery
}

func (h *Host) permitOf(pool string) permit { return permit{pool, text(h.owner["uid"])} }

func (h *Host) acquirePermit(pool string, limit uint32, held bool) (bool, *wit.Error) {
	if failed := h.check("permits.acquire"); failed != nil {
		return false, failed
	}
	wanted := h.permitOf(pool)
	granted := held || h.permits[wanted] || h.usedPermits[pool]+h.Permits(pool) < int(limit)
	if granted {
		h.permits[wanted], h.requested[wanted] = true, true
	}
	return granted, nil
}

// Put adds an object to the cluster, or replaces the one of that name. The object is a struct or a map that is encoded as JSON.
func (h *Host) Put(object any) *Host { return h.PutOn("", object) }

// PutOn adds an object to another cluster, which is named as the plugin names it.
func (h *Host) PutOn(cluster string, object any) *Host {
	parsed := h.parse(object)
	h.objects[keyOn(&cluster, parsed)] = parsed
	return h
}

// Remove removes an object from the cluster.
func (h *Host) Remove(ref ostler.ObjectRef) *Host {
	delete(h.objects, keyOf(ref))
	return h
}

// HideFromCache hides an object from reads of the cache, as a watch that is behind does. Live reads return it.
func (h *Host) HideFromCache(ref ostler.ObjectRef) *Host {
	h.uncached[keyOf(ref)] = true
	return h
}

// Object returns the current state of an object, or nil.
func (h *Host) Object(ref ostler.ObjectRef) Object { return h.objects[keyOf(ref)] }

// Objects returns the current state of all objects of a kind, on all clusters, by their names.
func (h *Host) Objects(apiVersion, kind string) []Object {
	gvk := ostler.Ref(apiVersion, kind, "", "").Gvk
	var found []Object
	for _, key := range h.sortedKeys() {
		if key.group == gvk.Group && key.kind == gvk.Kind {
			found = append(found, h.objects[key])
		}
	}
	return found
}

// Answer sets the response to a request: this status and body, which is a text, bytes, nil or a value that is encoded as JSON.
// Further calls for the same request add responses that are returned in turn; the last one stays.
func (h *Host) Answer(method, path string, status int, body any) *Host {
	response := wit.HttpResponse{Status: uint16(status)}
	switch body := body.(type) {
	case nil:
	case string:
		response.Body = []byte(body)
	case []byte:
		response.Body = body
	default:
		response.Body = h.encode(body)
	}
	return h.AnswerWith(method, path, response, nil)
}

// AnswerWith is [Host.Answer] with a whole response, or with an error of the host.
func (h *Host) AnswerWith(method, path string, response wit.HttpResponse, failure *wit.Error) *Host {
	name := method + " " + path
	h.answers[name] = append(h.answers[name], answer{response, failure})
	return h
}

// SetStream sets the events of a stream.
func (h *Host) SetStream(path string, events ...wit.HttpEvent) *Host {
	h.streams[path] = events
	return h
}

// SetSecret sets the digest of a key of a Secret; an empty one removes the key.
func (h *Host) SetSecret(name, key, digest string) *Host {
	h.secrets[name+"/"+key] = digest
	if digest == "" {
		delete(h.secrets, name+"/"+key)
	}
	return h
}

// SetLog sets the log of a container of a pod; the empty name is that of the only container.
func (h *Host) SetLog(pod ostler.ObjectRef, container, log string) *Host {
	h.containerLogs[formatRef(pod)+" "+container] = log
	return h
}

// SetConfig sets the configuration of the plugin.
func (h *Host) SetConfig(config any) *Host {
	h.config = h.encode(config)
	return h
}

// SetNow sets the time, in milliseconds since the Unix epoch.
func (h *Host) SetNow(milliseconds uint64) *Host {
	h.now = milliseconds
	return h
}

// Deny makes a function of the host, such as `kubernetes.apply`, fail as one that is not permitted.
func (h *Host) Deny(function string) *Host {
	return h.Fail(function, &wit.Error{Case: wit.ErrorDenied, Denied: function})
}

// Fail makes a function of the host fail with an error; with nil it works again.
func (h *Host) Fail(function string, failure *wit.Error) *Host {
	delete(h.failing, function)
	if failure != nil {
		h.failing[function] = *failure
	}
	return h
}

func (h *Host) check(function string) *wit.Error {
	if failure, ok := h.failing[function]; ok {
		return &failure
	}
	return nil
}

// AddHolder makes an object hold another one, as ListHolders returns it.
func (h *Host) AddHolder(held, holder ostler.ObjectRef) *Host {
	h.holders[formatRef(held)] = append(h.holders[formatRef(held)], holder)
	return h
}

// UsePermits lets objects outside of the test have this many permits of a pool.
func (h *Host) UsePermits(pool string, count int) *Host {
	h.usedPermits[pool] = count
	return h
}

// Permits returns the number of permits of a pool that objects of the test have.
func (h *Host) Permits(pool string) int {
	count := 0
	for permit := range h.permits {
		if permit.pool == pool {
			count++
		}
	}
	return count
}

// Outcome is the result of a reconcile that succeeded.
type Outcome struct {
	Conditions []ostler.Condition
	// Status has the status fields; nil if the plugin has set none.
	Status Object
	Next   wit.ReconcilerNext
}

// Failure is the result of a reconcile that failed.
type Failure struct {
	Resolution      wit.ReconcilerResolution
	Reason, Message string
	Conditions      []ostler.Condition
	Status          Object
}

func (f *Failure) Error() string { return f.Reason + ": " + f.Message }

// Reconcile reconciles an object as the host does. The error is a *[Failure]. The object need not name its kind if the plugin
// reconciles one only.
func (h *Host) Reconcile(object any) (*Outcome, error) { return h.call(object, false) }

// Cleanup cleans up an object as the host does. The error is a *[Failure].
func (h *Host) Cleanup(object any) (*Outcome, error) { return h.call(object, true) }

func (h *Host) call(given any, cleanup bool) (*Outcome, error) {
	h.t.Helper()
	if wit.ReconcilerExports == nil {
		h.t.Fatal("the package exports no plugin: ostler.Export is called by an init function")
	}
	object := h.parse(given)
	gvk := h.kindOf(object)
	metadata, _ := object["metadata"].(Object)
	uid := text(metadata["uid"])
	if owned := h.owned[uid]; len(owned) > 0 {
		metadata = maps.Clone(metadata)
		annotations, _ := metadata["annotations"].(Object)
		annotations = maps.Clone(annotations)
		if annotations == nil {
			annotations = Object{}
		}
		annotations["ostler.dev/owned-objects"] = strings.Join(slices.Sorted(maps.Keys(owned)), ", ")
		metadata["annotations"] = annotations
		object["metadata"] = metadata
	}
	h.owner = Object{
		"apiVersion": object["apiVersion"], "kind": gvk.Kind, "name": metadata["name"], "uid": uid, "controller": true,
	}
	ref := ostler.ObjectRef{Gvk: gvk, Name: text(metadata["name"])}
	if namespace := text(metadata["namespace"]); namespace != "" {
		ref.Namespace = &namespace
	}
	request := wit.ReconcilerRequest{Object: h.encode(object), Ref: ref, Causes: []string{"change"}}
	maps.Copy(h.heldBefore, h.held)
	h.held = map[string]bool{}
	run := wit.ReconcilerExports.Reconcile
	if cleanup {
		run = wit.ReconcilerExports.Cleanup
	}
	result := run(request)
	h.settle(result.Err == nil)
	if failed := result.Err; failed != nil {
		return nil, &Failure{failed.Resolution, failed.Reason, failed.Message, failed.Conditions, h.status(failed.Status)}
	}
	return &Outcome{result.Ok.Conditions, h.status(result.Ok.Status), result.Ok.Next}, nil
}

// kindOf returns the kind of an object, and sets that of an object without one.
func (h *Host) kindOf(object Object) wit.Gvk {
	h.t.Helper()
	kinds := wit.ReconcilerExports.Describe().Kinds
	if object["kind"] == nil {
		if len(kinds) != 1 {
			h.t.Fatalf("the object names no kind, and the plugin reconciles %d", len(kinds))
		}
		gvk := kinds[0].Gvk
		object["kind"], object["apiVersion"] = gvk.Kind, gvk.Version
		if gvk.Group != "" {
			object["apiVersion"] = gvk.Group + "/" + gvk.Version
		}
	}
	return ostler.Ref(text(object["apiVersion"]), text(object["kind"]), "", "").Gvk
}

// settle releases what a successful reconcile has not held or requested again.
func (h *Host) settle(succeeded bool) {
	if !succeeded {
		maps.Copy(h.held, h.heldBefore)
	} else {
		uid := text(h.owner["uid"])
		maps.DeleteFunc(h.permits, func(permit permit, _ bool) bool { return permit.uid == uid && !h.requested[permit] })
	}
	h.heldBefore, h.requested = map[string]bool{}, map[permit]bool{}
}

func (h *Host) status(fields *[]byte) Object {
	if fields == nil {
		return nil
	}
	return h.parse(json.RawMessage(*fields))
}

// Handle gives a message to the plugin's handler as the host does. The error is an [ostler.HostError].
func (h *Host) Handle(delivery messages.Delivery) (messages.Disposition, error) {
	h.t.Helper()
	if wit.MessagesExports == nil {
		h.t.Fatal("the package exports no message handler: messages.Export is called by an init function")
	}
	result := wit.MessagesExports.Handle(delivery.MessagesDelivery)
	if result.Err != nil {
		return result.Ok, &ostler.HostError{Cause: *result.Err}
	}
	return result.Ok, nil
}

// Initialize calls the hook of the plugin as the host does. The error is an [ostler.HostError].
func (h *Host) Initialize() error {
	h.t.Helper()
	h.requireHooks()
	return hookError(wit.LifecycleExports.Initialize().Err)
}

// Upgrade calls the hook of the plugin as the host does, and returns the upgraded object, or nil if there is nothing to change.
// The error is an [ostler.HostError].
func (h *Host) Upgrade(object any) (Object, error) {
	h.t.Helper()
	h.requireHooks()
	result := wit.LifecycleExports.Upgrade(h.encode(object))
	return h.status(result.Ok), hookError(result.Err)
}

func (h *Host) requireHooks() {
	h.t.Helper()
	if wit.LifecycleExports == nil {
		h.t.Fatal("the package exports no hooks: lifecycle.Export is called by an init function")
	}
}

func hookError(failure *wit.Error) error {
	if failure == nil {
		return nil
	}
	return &ostler.HostError{Cause: *failure}
}

// Delivery returns a message of a queue with this body.
func Delivery(queue string, body []byte) messages.Delivery {
	namespace := "default"
	return messages.Delivery{MessagesDelivery: wit.MessagesDelivery{
		Broker: wit.UpstreamRef{Namespace: &namespace, Name: "broker"}, Queue: queue, RoutingKey: queue, Body: body,
		Properties: wit.MessageProperties{Persistent: true},
	}}
}

// Writes returns the writes to the cluster, each as `apply Kind name`.
func (h *Host) Writes() []string { return h.writes }

// Requests returns the requests, each as `METHOD /path`.
func (h *Host) Requests() []string {
	var lines []string
	for _, request := range h.requests {
		lines = append(lines, requestLine(request))
	}
	return lines
}

// Sent returns the whole requests.
func (h *Host) Sent() []wit.HttpRequest { return h.requests }

// Events returns the Events.
func (h *Host) Events() []Event { return h.events }

// Logs returns the log lines.
func (h *Host) Logs() []string { return h.logs }

// Messages returns the published messages.
func (h *Host) Messages() []Message { return h.messages }

// Checkpoints returns the checkpointed status fields.
func (h *Host) Checkpoints() []Object { return h.checkpoints }

// Subscriptions returns the paths of the subscribed event streams.
func (h *Host) Subscriptions() []string { return h.subscriptions }

// Held returns the objects that the last reconcile holds, each as `Kind namespace/name`. A failed one holds also what the one
// before it held.
func (h *Host) Held() []string { return slices.Sorted(maps.Keys(h.held)) }

// Forget clears the record of what the plugin did.
func (h *Host) Forget() {
	h.writes, h.requests, h.events, h.logs, h.messages = nil, nil, nil, nil, nil
	h.checkpoints, h.subscriptions = nil, nil
}

func (h *Host) encode(value any) []byte {
	h.t.Helper()
	bytes, err := json.Marshal(value)
	if err != nil {
		h.t.Fatal(err)
	}
	return bytes
}

func (h *Host) parse(value any) Object {
	h.t.Helper()
	object, err := parse(h.encode(value))
	if err != nil {
		h.t.Fatalf("not an object: %v", err)
	}
	return object
}

// parse parses an object without rounding its numbers.
func parse(bytes []byte) (Object, error) {
	decoder := json.NewDecoder(strings.NewReader(string(bytes)))
	decoder.UseNumber()
	var object Object
	if err := decoder.Decode(&object); err != nil {
		return nil, err
	}
	if object == nil {
		return nil, fmt.Errorf("null is no object")
	}
	return object, nil
}
