package ostler

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ostler.dev/sdk/wit"
)

type copySpec struct {
	Text string `json:"text"`
}

type copyConfig struct {
	Interval string `json:"pollInterval"`
}

func (c copyConfig) PollInterval() string { return c.Interval }

// stopped is the panic of a host that stops, so that the plugin gets no answer.
type stopped struct{}

type jsonObject = map[string]any

// providerWorld is the clusters, the object of the provider, and the provider: a text is copied to the workload cluster.
type providerWorld struct {
	owner        jsonObject
	objects      map[string]jsonObject
	pluginConfig any
	owned        map[string]map[string]bool
	writes       []string
	calls        []string
	deletion     string
	created      int
	// effectsLeft is the number of effects before the host stops; 0 for no limit.
	effectsLeft int
	provider    ServiceProvider[copySpec, copyConfig]
}

func newProviderWorld(withMCP bool) *providerWorld {
	w := &providerWorld{
		owner: jsonObject{
			"apiVersion": "g/v1", "kind": "Copy", "metadata": jsonObject{"name": "a", "namespace": "n", "uid": "u-1"},
			"spec": jsonObject{"text": "hello"},
		},
		objects: map[string]jsonObject{}, pluginConfig: jsonObject{}, owned: map[string]map[string]bool{}, writes: []string{},
		calls: []string{}, deletion: "complete",
	}
	permissions := []Permissions{{Rules: []PolicyRule{{[]string{""}, []string{"configmaps"}, []string{"*"}}}}}
	w.provider = ServiceProvider[copySpec, copyConfig]{
		Name: "copies", APIVersion: "g/v1", Kind: "Copy", Finalizer: "g/copy",
		ConfigAPIVersion: "g/v1", ConfigKind: "CopyConfig", WorkloadCluster: &WorkloadCluster{permissions},
		CreateOrUpdate: w.createOrUpdate, Delete: w.deleteCopy,
	}
	if withMCP {
		w.provider.MCPCluster = &MCPCluster{Permissions: permissions}
	}
	w.setConfig("copies", jsonObject{})
	wit.KubernetesGet, wit.KubernetesApply, wit.KubernetesDelete = w.get, w.apply, w.delete
	wit.ConfigGet = func() []byte { return encode(w.pluginConfig) }
	wit.StatusCheckpoint = func(fields []byte) *wit.Error {
		mergePatch(w.owner, jsonObject{"status": decodeJSON[any](fields)})
		w.countEffect()
		return nil
	}
	return w
}

func decodeJSON[T any](bytes []byte) (value T) {
	if err := json.Unmarshal(bytes, &value); err != nil {
		panic(err)
	}
	return value
}

// mergePatch applies a JSON merge patch (RFC 7386).
func mergePatch(into, patch jsonObject) {
	for name, value := range patch {
		switch fields, nested := value.(jsonObject); {
		case value == nil:
			delete(into, name)
		case nested:
			live, exists := into[name].(jsonObject)
			if !exists {
				live = jsonObject{}
				into[name] = live
			}
			mergePatch(live, fields)
		default:
			into[name] = value
		}
	}
}

func buildCopy(object *Object[copySpec], clusters Clusters) (Resource, error) {
	cluster, err := clusters.Workload()
	configMap := jsonObject{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": jsonObject{"name": object.Metadata.Name, "namespace": "copies"},
		"data": jsonObject{"text": object.Spec.Text},
	}
	return Resource{Owner: object.Metadata, Object: configMap, Cluster: cluster.Name}, err
}

func (w *providerWorld) createOrUpdate(object *Object[copySpec], config *copyConfig, clusters Clusters) (*Outcome, error) {
	w.calls = append(w.calls, fmt.Sprintf("create config=%t", config != nil))
	resource, err := buildCopy(object, clusters)
	if err != nil {
		return nil, err
	}
	if err := resource.Provision(); err != nil {
		return nil, err
	}
	return AwaitChange().Status(jsonObject{"text": object.Spec.Text}), nil
}

func (w *providerWorld) deleteCopy(object *Object[copySpec], config *copyConfig, clusters Clusters) error {
	w.calls = append(w.calls, fmt.Sprintf("delete config=%t", config != nil))
	resource, err := buildCopy(object, clusters)
	switch {
	case err != nil || w.deletion == "skipped":
		return err
	case w.deletion == "failing":
		return Retry("StillUsed", "The copy is used.")
	default:
		return resource.Deprovision()
	}
}

// writtenOn names the cluster of a reference. Nothing that a provider reads or writes is on its home cluster, `home`.
func writtenOn(cluster *string) string {
	switch {
	case cluster == nil:
		return " on home"
	case *cluster == "in-cluster":
		return ""
	default:
		return " on " + *cluster
	}
}

func keyInWorld(ref ObjectRef) string {
	namespace := ""
	if ref.Namespace != nil {
		namespace = *ref.Namespace
	}
	return ref.Gvk.Kind + " " + namespace + " " + ref.Name + writtenOn(ref.Cluster)
}

func inventoryEntry(ref ObjectRef) string {
	kind := ref.Gvk.Kind + "." + ref.Gvk.Version
	if ref.Gvk.Group != "" {
		kind += "." + ref.Gvk.Group
	}
	return fmt.Sprintf("%s %s %s/%s", kind, *ref.Cluster, *ref.Namespace, ref.Name)
}

func (w *providerWorld) countEffect() {
	if w.effectsLeft > 0 {
		if w.effectsLeft--; w.effectsLeft == 0 {
			panic(stopped{})
		}
	}
}

func (w *providerWorld) setConfig(name string, spec any) {
	key := "CopyConfig  " + name
	if spec == nil {
		delete(w.objects, key)
		return
	}
	w.objects[key] = jsonObject{"apiVersion": "g/v1", "kind": "CopyConfig", "metadata": jsonObject{"name": name}, "spec": spec}
}

func (w *providerWorld) uid() string { return w.owner["metadata"].(jsonObject)["uid"].(string) }

func (w *providerWorld) inventory() map[string]bool {
	if w.owned[w.uid()] == nil {
		w.owned[w.uid()] = map[string]bool{}
	}
	return w.owned[w.uid()]
}

func (w *providerWorld) get(ref ObjectRef, options wit.KubernetesGetOptions) (*[]byte, *wit.Error) {
	object, exists := w.objects[keyInWorld(ref)]
	if !exists {
		return nil, nil
	}
	text := encode(object)
	if options.Projection.Case == wit.KubernetesProjectionMetadata {
		text = encode(jsonObject{"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": object["metadata"]})
	}
	return &text, nil
}

func (w *providerWorld) apply(text []byte, options wit.KubernetesApplyOptions) ([]byte, *wit.Error) {
	applied := decodeJSON[jsonObject](text)
	metadata := applied["metadata"].(jsonObject)
	ref := Ref(applied["apiVersion"].(string), applied["kind"].(string), metadata["namespace"].(string), metadata["name"].(string))
	ref.Cluster = options.Cluster
	key, owned := keyInWorld(ref), ""
	if options.Owned {
		mergePatch(applied, jsonObject{"metadata": jsonObject{"labels": jsonObject{ownerUIDLabel: w.uid()}}})
		w.inventory()[inventoryEntry(ref)] = true
		owned = " owned"
	}
	live := w.objects[key]
	object := jsonObject{}
	if live != nil {
		object = decodeJSON[jsonObject](encode(live))
	}
	mergePatch(object, applied)
	changed := live == nil || !reflect.DeepEqual(decodeJSON[any](encode(live)), decodeJSON[any](encode(object)))
	if metadata := object["metadata"].(jsonObject); metadata["uid"] == nil {
		w.created++
		metadata["uid"] = fmt.Sprintf("uid-%d", w.created)
	}
	w.objects[key] = object
	if changed {
		w.writes = append(w.writes, "apply "+ref.Gvk.Kind+" "+ref.Name+owned+writtenOn(ref.Cluster))
		w.countEffect()
	}
	return encode(object), nil
}

func (w *providerWorld) delete(ref ObjectRef, options wit.KubernetesDeleteOptions) *wit.Error {
	key := keyInWorld(ref)
	live, exists := w.objects[key]
	if uid := options.Preconditions.Uid; exists && uid != nil && *uid != live["metadata"].(jsonObject)["uid"] {
		return &wit.Error{Case: wit.ErrorConflict, Conflict: key}
	}
	if ref.Cluster != nil {
		delete(w.inventory(), inventoryEntry(ref))
	}
	if !exists {
		return nil
	}
	delete(w.objects, key)
	if live["metadata"].(jsonObject)["deletionTimestamp"] == nil {
		w.writes = append(w.writes, "delete "+ref.Gvk.Kind+" "+ref.Name+writtenOn(ref.Cluster))
		w.countEffect()
	}
	return nil
}

// call calls the provider as the host does, and returns the result as the table has it.
func (w *providerWorld) call(step string, stopAfter int) (result jsonObject) {
	object := decodeJSON[jsonObject](encode(w.owner))
	metadata := object["metadata"].(jsonObject)
	if step == "delete" {
		metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	if entries := slices.Sorted(maps.Keys(w.inventory())); len(entries) > 0 {
		metadata["annotations"] = jsonObject{inventoryAnnotation: strings.Join(entries, ", ")}
	}
	defer func() {
		w.effectsLeft = 0
		if panicked := recover(); panicked == (stopped{}) {
			result = jsonObject{"stopped": true}
		} else if panicked != nil {
			panic(panicked)
		}
	}()
	w.effectsLeft = stopAfter
	outcome, err := w.provider.run(encode(object), step == "delete")
	if err != nil {
		failed := toFailure(err).failure
		w.storeStatus(failed.Status)
		resolution := map[wit.ReconcilerResolutionCase]string{
			wit.ReconcilerResolutionWait: "wait", wit.ReconcilerResolutionTerminal: "terminal",
			wit.ReconcilerResolutionRetry: "retry", wit.ReconcilerResolutionThrottled: "throttled",
		}[failed.Resolution.Case]
		return jsonObject{"resolution": resolution, "reason": failed.Reason, "message": failed.Message}
	}
	w.storeStatus(outcome.outcome.Status)
	switch next := outcome.outcome.Next; next.Case {
	case wit.ReconcilerNextAwaitChange:
		return jsonObject{"next": "await-change"}
	case wit.ReconcilerNextPoll:
		return jsonObject{"next": "poll", "milliseconds": float64(*next.Poll)}
	default:
		panic(fmt.Sprintf("%+v", next))
	}
}

func (w *providerWorld) storeStatus(status *[]byte) {
	if status != nil {
		w.owner["status"] = decodeJSON[any](*status)
	}
}

// finish calls the provider, and grants each request, until it succeeds.
func (w *providerWorld) finish(t *testing.T, step string) {
	t.Helper()
	for range 10 {
		if w.call(step, 0)["next"] != nil {
			w.take()
			return
		}
		w.grantAll()
	}
	t.Fatalf("%s does not end: %v", step, w.call(step, 0))
}

// grantAll grants each request, as openmcp does.
func (w *providerWorld) grantAll() {
	for _, object := range w.objects {
		switch object["kind"] {
		case "ClusterRequest":
			object["status"] = jsonObject{"phase": "Granted"}
		case "AccessRequest":
			object["status"] = jsonObject{"phase": "Granted", "secretRef": jsonObject{"name": "credentials"}}
		}
	}
}

// show returns the objects as the table has them.
func (w *providerWorld) show() any {
	shown := jsonObject{}
	for key, object := range w.objects {
		if object["kind"] == "CopyConfig" {
			continue
		}
		fields := jsonObject{}
		for _, from := range []jsonObject{object["metadata"].(jsonObject), object} {
			for _, name := range []string{"labels", "annotations", "spec", "data"} {
				if value, exists := from[name]; exists {
					fields[name] = value
				}
			}
		}
		shown[key] = fields
	}
	return decodeJSON[any](encode(shown))
}

func (w *providerWorld) take() (writes, calls []string) {
	writes, calls = w.writes, w.calls
	w.writes, w.calls = []string{}, []string{}
	return writes, calls
}

// providerStep is a step of a case: a call with what it must result in, a change of the world, or a check of the objects.
type providerStep struct {
	Call      string
	StopAfter int
	Result    jsonObject
	Writes    []string
	Calls     []string
	Status    jsonObject

	Install, Grant bool
	Patch, Remove  string
	With           jsonObject
	Config         string
	Spec           any
	PluginConfig   any
	Deletion       string
	Owner, Objects jsonObject
}

func (w *providerWorld) runStep(t *testing.T, step providerStep) {
	switch {
	case step.Call != "":
		result := w.call(step.Call, step.StopAfter)
		writes, calls := w.take()
		status := jsonObject{}
		mergePatch(status, jsonObject{"status": w.owner["status"]})
		shown := jsonObject{"result": result, "writes": writes, "calls": calls, "status": jsonObject{}}
		mergePatch(shown, status)
		expected := jsonObject{"result": step.Result, "writes": step.Writes, "calls": step.Calls, "status": step.Status}
		if !reflect.DeepEqual(decodeJSON[any](encode(shown)), decodeJSON[any](encode(expected))) {
			t.Fatalf("%s\nexpected %s", encode(shown), encode(expected))
		}
	case step.Install:
		w.finish(t, "reconcile")
	case step.Grant:
		w.grantAll()
	case step.Patch != "":
		mergePatch(w.objects[step.Patch], step.With)
	case step.Remove != "":
		delete(w.objects, step.Remove)
	case step.Config != "":
		w.setConfig(step.Config, step.Spec)
	case step.PluginConfig != nil:
		w.pluginConfig = step.PluginConfig
	case step.Deletion != "":
		w.deletion = step.Deletion
	case step.Owner != nil:
		mergePatch(w.owner, step.Owner)
	default:
		if shown := w.show(); !reflect.DeepEqual(shown, decodeJSON[any](encode(step.Objects))) {
			t.Fatalf("%s\nexpected %s", encode(shown), encode(step.Objects))
		}
	}
}

func TestProviderActsAsInTheTableOfAllLanguages(t *testing.T) {
	text, err := os.ReadFile("../sdk/tests/provider/table.json")
	if err != nil {
		t.Fatal(err)
	}
	table := decodeJSON[struct {
		Cases []struct {
			Name  string
			MCP   bool
			Steps []json.RawMessage
		}
	}](text)
	if len(table.Cases) == 0 {
		t.Fatal("the table is empty")
	}
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			world := newProviderWorld(c.MCP)
			for index, step := range c.Steps {
				t.Logf("step %d: %s", index, step)
				world.runStep(t, decodeJSON[providerStep](step))
			}
		})
	}
}

func TestProviderInterruptedAnywhereLeavesNothingBehind(t *testing.T) {
	revocation := regexp.MustCompile("^delete (Cluster|AccessRequest|ClusterRequest) ")
	for installed := 1; installed < 9; installed++ {
		for removed := 1; removed < 9; removed++ {
			w := newProviderWorld(true)
			for range installed {
				w.call("reconcile", 1)
				w.grantAll()
			}
			for _, stopAfter := range []int{removed, 1, 2} {
				w.call("delete", stopAfter)
				revoked := slices.ContainsFunc(w.writes, revocation.MatchString)
				left := slices.ContainsFunc(slices.Collect(maps.Keys(w.objects)), func(key string) bool {
					return strings.HasPrefix(key, "ConfigMap ")
				})
				if revoked && left {
					t.Fatalf("revoked too early: %v", w.writes)
				}
			}
			w.finish(t, "delete")
			if shown := w.show(); len(shown.(jsonObject)) > 0 {
				t.Fatalf("left: %v", shown)
			}
		}
	}
}

func TestClusterThatIsNotRequestedIsTerminalFailure(t *testing.T) {
	w := newProviderWorld(false)
	w.provider.CreateOrUpdate = func(_ *Object[copySpec], _ *copyConfig, clusters Clusters) (*Outcome, error) {
		_, err := clusters.MCP()
		return nil, err
	}
	w.call("reconcile", 0)
	w.grantAll()
	w.call("reconcile", 0)
	w.grantAll()
	if result := w.call("reconcile", 0); result["reason"] != "ClusterNotRequested" {
		t.Error(result)
	}
}

func TestFailureThatTheDomainReturnsAgainIsNotChanged(t *testing.T) {
	w := newProviderWorld(false)
	w.finish(t, "reconcile")
	kept := Retry("StillUsed", "The copy is used.").Status(jsonObject{"text": "kept"})
	w.provider.Delete = func(*Object[copySpec], *copyConfig, Clusters) error { return kept }
	w.call("delete", 0)
	if status := w.owner["status"].(jsonObject); status["text"] != "kept" || status["provider"] == nil {
		t.Error(status)
	}
	if string(*kept.failure.Status) != `{"text":"kept"}` {
		t.Errorf("%s", *kept.failure.Status)
	}
}

func TestOutageBlocksTheDeletionAndInvalidConfigurationDoesNot(t *testing.T) {
	for _, test := range []struct {
		cause   *wit.Error
		blocked bool
	}{
		{&wit.Error{Case: wit.ErrorUnavailable, Unavailable: "x"}, true},
		{&wit.Error{Case: wit.ErrorThrottled, Throttled: 5}, true},
		{&wit.Error{Case: wit.ErrorDenied, Denied: "x"}, false},
		{nil, false},
	} {
		w := newProviderWorld(false)
		w.finish(t, "reconcile")
		if test.cause == nil {
			w.setConfig("copies", jsonObject{"pollInterval": []string{"not a text"}})
			if result := w.call("reconcile", 0); result["reason"] != "InvalidConfig" {
				t.Error(result)
			}
		} else {
			wit.KubernetesGet = func(ref ObjectRef, options wit.KubernetesGetOptions) (*[]byte, *wit.Error) {
				if ref.Gvk.Kind == "CopyConfig" {
					return nil, test.cause
				}
				return w.get(ref, options)
			}
		}
		w.take()
		result := w.call("delete", 0)
		if (result["next"] == nil) != test.blocked || slices.Contains(w.calls, "delete config=false") == test.blocked {
			t.Errorf("%+v: %v, %v", test.cause, result, w.calls)
		}
	}
}

func TestInventoryWithForeignTextListsNothingOfIt(t *testing.T) {
	for _, text := range []string{"", "x", "Kind fleet/east a/b", ".v1 c/d a/b", "K.v1 c/d a/", "K.v1 c/d a/b c"} {
		if refs := listInventory(text); len(refs) > 0 {
			t.Errorf("%q: %v", text, refs)
		}
	}
	listed := listInventory("Deployment.v1.apps fleet/east apps/web, Namespace.v1 fleet/east /apps")
	expected := []ObjectRef{
		OnCluster(Ref("apps/v1", "Deployment", "apps", "web"), "fleet/east"),
		OnCluster(Ref("v1", "Namespace", "", "apps"), "fleet/east"),
	}
	if !reflect.DeepEqual(listed, expected) {
		t.Errorf("%+v", listed)
	}
}

func TestNameOfAnObjectIsStable(t *testing.T) {
	metadata := Metadata{Name: "a", Namespace: "n"}
	if name := BuildStableName("foo", metadata); name != "foo-a683c5c5349f6f7fb903ba8a9e7e55d0" {
		t.Error(name)
	}
	if request := RequestOfSameName(metadata); request != (RequestRef{"a", "n"}) {
		t.Error(request)
	}
	var failed *Failure
	if !errors.As(mergeErrors(nil, Wait("Because", "Not yet.")), &failed) {
		t.Error("the failure is lost")
	}
}
