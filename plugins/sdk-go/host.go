package ostler

import (
	"encoding/json"
	"strings"

	"ostler.dev/sdk/wit"
)

// Get reads an object into a pointer; false when there is none.
func Get(ref ObjectRef, into any) (bool, error) {
	bytes, failed := wit.KubernetesGet(ref, wit.KubernetesGetOptions{})
	if failed != nil || bytes == nil {
		return false, check(failed)
	}
	return true, json.Unmarshal(*bytes, into)
}

// Selection says which objects a list gives; all by default.
type Selection struct{ Namespace, Labels, Fields string }

// List gives the objects that are selected, each as JSON.
func List(apiVersion, kind string, selection Selection) ([]json.RawMessage, error) {
	options := wit.KubernetesListOptions{
		Namespace: some(selection.Namespace), LabelSelector: some(selection.Labels), FieldSelector: some(selection.Fields),
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

// RequireReady reads an object that is Ready for its current generation; until then it fails with not-ready.
func RequireReady(ref ObjectRef, into any) error {
	bytes, failed := wit.KubernetesRequireReady(ref)
	if failed != nil {
		return check(failed)
	}
	return json.Unmarshal(bytes, into)
}

// ApplyOwned applies the fields given, to an object that goes with the reconciled one.
func ApplyOwned(object any) error {
	_, failed := wit.KubernetesApply(encode(object), wit.KubernetesWriteOptions{Owned: true, Force: true})
	return check(failed)
}

// Apply applies the fields given; force overrules whoever else has set them.
func Apply(object any, force bool) error {
	_, failed := wit.KubernetesApply(encode(object), wit.KubernetesWriteOptions{Force: force})
	return check(failed)
}

// Create creates an object; owned makes it go with the reconciled one.
func Create(object any, owned bool) error {
	_, failed := wit.KubernetesCreate(encode(object), wit.KubernetesWriteOptions{Owned: owned})
	return check(failed)
}

// Delete deletes an object.
func Delete(ref ObjectRef) error {
	return check(wit.KubernetesDelete(ref, wit.KubernetesDeleteOptions{}))
}

// Hold keeps an object from going while the reconciled one uses it.
func Hold(ref ObjectRef) error { return check(wit.ReferencesHold(ref)) }

// Checkpoint persists status fields before an effect that must happen once.
func Checkpoint(fields any) error { return check(wit.StatusCheckpoint(encode(fields))) }

// Event emits a normal Event about the object.
func Event(reason, note string) { wit.EventsEmit(wit.EventsEventTypeNormal, reason, note) }

// Warn emits a warning Event about the object.
func Warn(reason, note string) { wit.EventsEmit(wit.EventsEventTypeWarning, reason, note) }

// Log writes a line.
func Log(level wit.LogLevel, message string) { wit.LogWrite(level, message, nil) }

// Info writes a line at level info.
func Info(message string) { Log(wit.LogLevelInfo, message) }

// Now is the host's time in milliseconds since the Unix epoch.
func Now() uint64 { return wit.ClockNow() }

// Remaining is how many milliseconds are left for this call.
func Remaining() uint64 { return wit.ClockRemaining() }

// Config reads the plugin's configuration.
func Config(into any) error { return json.Unmarshal(wit.ConfigGet(), into) }

// Counter adds to a counter.
func Counter(name string, delta uint64) { wit.MetricsCounter(name, delta) }

// Gauge sets a gauge.
func Gauge(name string, value float64) { wit.MetricsGauge(name, value) }

// Upstream is a named upstream; without a namespace, in that of the reconciled object.
type Upstream struct{ Name, Namespace string }

// Request is one to an upstream.
type Request struct {
	Method, Path string
	Headers      map[string]string
	Body         []byte
	// Timeout in milliseconds; 0 for the upstream's.
	Timeout       uint32
	Substitutions []wit.HttpSubstitution
}

// Response is an answer, whatever its status.
type Response struct {
	Status  int
	Headers map[string]string
	Body    []byte
}

// OK says whether the status is one of success.
func (r *Response) OK() bool { return r.Status >= 200 && r.Status < 300 }

// Send sends a request.
func (u Upstream) Send(request Request) (*Response, error) {
	ask := wit.HttpRequest{
		Upstream: wit.HttpUpstream{Namespace: some(u.Namespace), Name: u.Name}, Method: strings.ToUpper(request.Method),
		PathAndQuery: request.Path, Timeout: request.Timeout, Substitutions: request.Substitutions,
	}
	for name, value := range request.Headers {
		ask.Headers = append(ask.Headers, wit.HttpHeader{Name: name, Value: value})
	}
	if request.Body != nil {
		ask.Body = &request.Body
	}
	answer, failed := wit.HttpSend(ask)
	if failed != nil {
		return nil, check(failed)
	}
	response := &Response{Status: int(answer.Status), Headers: map[string]string{}, Body: answer.Body}
	for _, header := range answer.Headers {
		response.Headers[header.Name] = header.Value
	}
	return response, nil
}

// Get reads.
func (u Upstream) Get(path string) (*Response, error) {
	return u.Send(Request{Method: "GET", Path: path})
}

// Delete deletes.
func (u Upstream) Delete(path string) (*Response, error) {
	return u.Send(Request{Method: "DELETE", Path: path})
}
