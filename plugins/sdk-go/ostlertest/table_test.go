package ostlertest

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/wit"
)

// The calls of host functions have the results that they have with the mock of the Rust SDK.
func TestCallsOfTheTableHaveItsResults(t *testing.T) {
	bytes, err := os.ReadFile("../../sdk/tests/mock/table.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(bytes)))
	decoder.UseNumber()
	var table []Object
	if err := decoder.Decode(&table); err != nil {
		t.Fatal(err)
	}
	for _, one := range table {
		t.Run(text(one["name"]), func(t *testing.T) {
			found, expected := runCase(t, one), one["expect"].(Object)
			for field := range expected {
				value, wanted := throughJSON(t, found[field]), throughJSON(t, expected[field])
				if !reflect.DeepEqual(value, wanted) {
					t.Errorf("%s is %v, not %v", field, value, wanted)
				}
			}
		})
	}
}

// throughJSON returns a value as it is after it was encoded, for comparisons.
func throughJSON(t *testing.T, value any) any {
	bytes, err := json.Marshal(Object{"value": value})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parse(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed["value"]
}

func items(of any) []any {
	list, _ := of.([]any)
	return list
}

func reference(of any) ostler.ObjectRef {
	ref := ostler.Ref(text(at(of, "apiVersion")), text(at(of, "kind")), text(at(of, "namespace")), text(at(of, "name")))
	ref.Cluster = optional(at(of, "cluster"))
	return ref
}

func optional(of any) *string {
	if text, ok := of.(string); ok {
		return &text
	}
	return nil
}

func runCase(t *testing.T, one Object) Object {
	h := NewHost(t)
	for _, object := range items(one["objects"]) {
		h.Put(object)
	}
	for cluster, objects := range child(one, "objectsOn") {
		for _, object := range items(objects) {
			h.PutOn(cluster, object)
		}
	}
	for _, hidden := range items(one["hidden"]) {
		h.HideFromCache(reference(hidden))
	}
	for _, log := range items(one["logs"]) {
		parts := items(log)
		h.SetLog(reference(parts[0]), text(parts[1]), text(parts[2]))
	}
	for _, pair := range items(one["holders"]) {
		h.AddHolder(reference(items(pair)[0]), reference(items(pair)[1]))
	}
	for pool, count := range child(one, "usedPermits") {
		h.UsePermits(pool, int(number(count)))
	}
	for _, denied := range items(one["denied"]) {
		h.Deny(text(denied))
	}
	for _, secret := range items(one["secrets"]) {
		parts := items(secret)
		h.SetSecret(text(parts[0]), text(parts[1]), text(parts[2]))
	}
	if one["config"] != nil {
		h.SetConfig(one["config"])
	}
	h.SetNow(uint64(number(one["now"])))
	for _, answer := range items(one["answers"]) {
		parts := items(answer)
		h.Answer(text(parts[0]), text(parts[1]), int(number(parts[2])), parts[3])
	}
	var results []any
	for _, calls := range items(one["reconciles"]) {
		made := []any{}
		before := wit.ReconcilerExports
		ostler.Export("caller", "1", ostler.Reconciler[any]{
			APIVersion: "example.dev/v1", Kind: "Caller", Reconcile: func(*ostler.Object[any]) (*ostler.Outcome, error) {
				fails := false
				for _, call := range items(calls) {
					if at(call, "do") == "fail" {
						fails = true
						continue
					}
					made = append(made, makeCall(t, call.(Object)))
				}
				if fails {
					return nil, ostler.Retry("Asked", "as asked")
				}
				return ostler.AwaitChange(), nil
			},
		})
		_, _ = h.Reconcile(Object{"metadata": Object{"name": "caller", "namespace": "n", "uid": "owner"}})
		wit.ReconcilerExports = before
		results = append(results, made)
	}
	objects := []any{}
	for _, kind := range [][2]string{{"v1", "ConfigMap"}, {"v1", "Pod"}, {"example.dev/v1", "ConfigMap"}} {
		for _, object := range h.Objects(kind[0], kind[1]) {
			objects = append(objects, object)
		}
	}
	return Object{
		"results": results, "objects": objects, "writes": append([]string{}, h.Writes()...),
		"requests": append([]string{}, h.Requests()...), "held": append([]string{}, h.Held()...),
		"permits": h.Permits("p") + h.Permits("q") + h.Permits("r"),
	}
}

// makeCall makes a call, and returns its value or its error as the table has it.
func makeCall(t *testing.T, call Object) any {
	value, failed := callHost(t, call)
	if failed == nil {
		return Object{"ok": value}
	}
	if failed.Case == wit.ErrorNotReady {
		other := failed.NotReady
		return Object{
			"error": "not-ready", "condition": other.Condition, "exists": other.Exists, "reason": other.Reason, "message": other.Message,
		}
	}
	tags := []string{"denied", "not-found", "conflict", "invalid", "throttled", "unavailable", "not-ready", "limit-exceeded", "unsupported"}
	return Object{"error": tags[failed.Case]}
}

func callHost(t *testing.T, call Object) (any, *wit.Error) {
	body := func(field string) []byte {
		if raw, ok := call["raw"].(string); ok {
			return []byte(raw)
		}
		bytes, err := json.Marshal(call[field])
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	parsed := func(bytes []byte, failed *wit.Error) (any, *wit.Error) {
		if failed != nil {
			return nil, failed
		}
		return json.RawMessage(bytes), nil
	}
	ref, cluster, pool := reference(call["ref"]), optional(call["cluster"]), text(call["pool"])
	owned, live, limit := call["owned"] == true, call["live"] == true, uint32(number(call["limit"]))
	preconditions := wit.KubernetesPreconditions{Uid: optional(call["uid"]), ResourceVersion: optional(call["resourceVersion"])}
	projection := wit.KubernetesProjection{Case: wit.KubernetesProjectionFull}
	if call["metadata"] == true {
		projection.Case = wit.KubernetesProjectionMetadata
	}
	for _, field := range items(call["fields"]) {
		projection.Case = wit.KubernetesProjectionFields
		projection.Fields = append(projection.Fields, text(field))
	}
	switch text(call["do"]) {
	case "get":
		bytes, failed := wit.KubernetesGet(ref, wit.KubernetesGetOptions{Live: live, Projection: projection})
		if bytes == nil {
			return nil, failed
		}
		return json.RawMessage(*bytes), failed
	case "list":
		options := wit.KubernetesListOptions{
			Cluster: cluster, Namespace: optional(call["namespace"]), LabelSelector: optional(call["labels"]),
			FieldSelector: optional(call["fieldSelector"]), Projection: projection, Live: live,
		}
		if call["limit"] != nil {
			options.Limit = &limit
		}
		page, failed := wit.KubernetesList(reference(call).Gvk, options)
		listed := []any{}
		for _, item := range page.Items {
			listed = append(listed, json.RawMessage(item))
		}
		return listed, failed
	case "requireReady":
		return parsed(wit.KubernetesRequireReady(ref))
	case "requireCondition":
		status := map[string]wit.ConditionStatus{"true": ostler.True, "false": ostler.False, "unknown": ostler.Unknown}[text(call["status"])]
		return parsed(wit.KubernetesRequireCondition(ref, text(call["type"]), status))
	case "apply":
		return parsed(wit.KubernetesApply(body("object"), wit.KubernetesApplyOptions{Cluster: cluster, Owned: owned, Force: true}))
	case "create":
		return parsed(wit.KubernetesCreate(body("object"), wit.KubernetesCreateOptions{Cluster: cluster, Owned: owned}))
	case "patch":
		return parsed(wit.KubernetesPatch(ref, body("patch"), preconditions))
	case "patchSubresource":
		return parsed(wit.KubernetesPatchSubresource(ref, text(call["subresource"]), body("patch"), preconditions))
	case "delete":
		options := wit.KubernetesDeleteOptions{Preconditions: preconditions}
		if call["propagation"] == "foreground" {
			options.Propagation = wit.KubernetesPropagationForeground
		}
		return nil, wit.KubernetesDelete(ref, options)
	case "readLog":
		options := wit.KubernetesLogOptions{Container: optional(call["container"]), TailLines: uint32(number(call["tailLines"]))}
		return wit.KubernetesReadLog(ref, options)
	case "hold":
		return nil, wit.ReferencesHold(ref)
	case "listHolders":
		holders, failed := wit.ReferencesListHolders(ref)
		names := []string{}
		for _, holder := range holders {
			names = append(names, holder.Gvk.Kind+" "+holder.Name)
		}
		return names, failed
	case "acquire":
		return wit.PermitsAcquire(pool, limit, call["held"] == true)
	case "release":
		wit.PermitsRelease(pool)
		return nil, nil
	case "digest":
		return wit.HttpSecretDigest(wit.SecretKeyRef{Name: text(call["name"]), Key: text(call["key"])})
	case "config":
		return json.RawMessage(wit.ConfigGet()), nil
	case "now":
		return wit.ClockNow(), nil
	case "send":
		request := wit.HttpRequest{PathAndQuery: text(call["path"])}
		if call["method"] == "POST" {
			request.Method = wit.HttpMethodPost
		}
		response, failed := wit.HttpSend(request)
		return []any{response.Status, string(response.Body)}, failed
	}
	panic(fmt.Sprint(call["do"], ": no call of the table"))
}
