//go:build !wasip1

package ostlertest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	ostler "ostler.dev/sdk"
	"ostler.dev/sdk/wit"
)

// key identifies an object. The cluster is empty for the own one.
type key struct{ group, kind, namespace, name, cluster string }

// ownerLabel is the label that the host gives what an object owns.
const ownerLabel = "ostler.dev/owner-uid"

// deletionTime is the time at which objects are deleted that have finalizers.
const deletionTime = "2026-01-01T00:00:00Z"

func clusterOf(name *string) string {
	if name == nil || *name == "in-cluster" {
		return ""
	}
	return *name
}

func keyOf(ref ostler.ObjectRef) key {
	namespace := ""
	if ref.Namespace != nil {
		namespace = *ref.Namespace
	}
	return key{ref.Gvk.Group, ref.Gvk.Kind, namespace, ref.Name, clusterOf(ref.Cluster)}
}

func keyOn(cluster *string, object Object) key {
	gvk := ostler.Ref(text(object["apiVersion"]), text(object["kind"]), "", "").Gvk
	return key{gvk.Group, gvk.Kind, text(at(object, "metadata", "namespace")), text(at(object, "metadata", "name")), clusterOf(cluster)}
}

func (h *Host) sortedKeys() []key {
	return slices.SortedFunc(maps.Keys(h.objects), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.kind, b.kind), cmp.Compare(a.namespace, b.namespace),
			cmp.Compare(a.name, b.name), cmp.Compare(a.cluster, b.cluster))
	})
}

// at returns the value at a path; nil if there is none.
func at(value any, path ...string) any {
	for _, field := range path {
		object, ok := value.(Object)
		if !ok {
			return nil
		}
		value = object[field]
	}
	return value
}

func text(value any) string {
	text, _ := value.(string)
	return text
}

// number returns an integer; 0 for anything else, since controllers leave out counts of 0.
func number(value any) int64 {
	found, ok := value.(json.Number)
	if !ok {
		return 0
	}
	parsed, _ := found.Int64()
	return parsed
}

func clone(object Object) Object {
	return copyValue(object).(Object)
}

func copyValue(value any) any {
	switch value := value.(type) {
	case Object:
		made := Object{}
		for name, inner := range value {
			made[name] = copyValue(inner)
		}
		return made
	case []any:
		made := make([]any, len(value))
		for i, inner := range value {
			made[i] = copyValue(inner)
		}
		return made
	}
	return value
}

// child returns an object in a field, which it makes if there is none.
func child(object Object, field string) Object {
	inner, ok := object[field].(Object)
	if !ok {
		inner = Object{}
		object[field] = inner
	}
	return inner
}

func invalid(message string) *wit.Error { return &wit.Error{Case: wit.ErrorInvalid, Invalid: message} }

func conflict(message string) *wit.Error {
	return &wit.Error{Case: wit.ErrorConflict, Conflict: message}
}

func notFound(message string) *wit.Error {
	return &wit.Error{Case: wit.ErrorNotFound, NotFound: message}
}

// formatRef writes a reference as `Kind namespace/name`.
func formatRef(ref ostler.ObjectRef) string {
	key := keyOf(ref)
	return fmt.Sprintf("%s %s/%s", key.kind, key.namespace, key.name)
}

func formatCluster(cluster string) string {
	if cluster == "" {
		return ""
	}
	return " on " + cluster
}

// formatEntry is an entry of an inventory, such as `Deployment.v1.apps fleet/east apps/web`.
func formatEntry(apiVersion string, key key) string {
	gvk := ostler.Ref(apiVersion, key.kind, "", "").Gvk
	group := ""
	if key.group != "" {
		group = "." + key.group
	}
	return fmt.Sprintf("%s.%s%s %s %s/%s", key.kind, gvk.Version, group, key.cluster, key.namespace, key.name)
}

// offerObjects replaces the functions of the host that are about objects.
func (h *Host) offerObjects() {
	set(h.t, &wit.KubernetesGet, h.get)
	set(h.t, &wit.KubernetesList, h.list)
	set(h.t, &wit.KubernetesRequireReady, h.requireReady)
	set(h.t, &wit.KubernetesRequireCondition, func(ref wit.ObjectRef, kind string, status wit.ConditionStatus) ([]byte, *wit.Error) {
		if failed := h.check("kubernetes.require-condition"); failed != nil {
			return nil, failed
		}
		return h.requireCondition(ref, kind, status)
	})
	set(h.t, &wit.KubernetesApply, func(object []byte, options wit.KubernetesApplyOptions) ([]byte, *wit.Error) {
		if failed := h.check("kubernetes.apply"); failed != nil {
			return nil, failed
		}
		return h.write("apply", object, options.Cluster, options.Owned)
	})
	set(h.t, &wit.KubernetesCreate, func(object []byte, options wit.KubernetesCreateOptions) ([]byte, *wit.Error) {
		if failed := h.check("kubernetes.create"); failed != nil {
			return nil, failed
		}
		return h.write("create", object, options.Cluster, options.Owned)
	})
	set(h.t, &wit.KubernetesPatch, func(ref wit.ObjectRef, patch []byte, preconditions wit.KubernetesPreconditions) ([]byte, *wit.Error) {
		if failed := h.check("kubernetes.patch"); failed != nil {
			return nil, failed
		}
		return h.patch(ref, "", patch, preconditions)
	})
	set(h.t, &wit.KubernetesPatchSubresource, func(ref wit.ObjectRef, subresource string, patch []byte, preconditions wit.KubernetesPreconditions) ([]byte, *wit.Error) {
		if failed := h.check("kubernetes.patch-subresource"); failed != nil {
			return nil, failed
		}
		return h.patch(ref, subresource, patch, preconditions)
	})
	set(h.t, &wit.KubernetesDelete, h.delete)
	set(h.t, &wit.KubernetesReadLog, h.readLog)
	set(h.t, &wit.ReferencesHold, h.hold)
	set(h.t, &wit.ReferencesListHolders, func(ref wit.ObjectRef) ([]wit.ObjectRef, *wit.Error) {
		return h.holders[formatRef(ref)], h.check("references.list-holders")
	})
}

func (h *Host) get(ref wit.ObjectRef, options wit.KubernetesGetOptions) (*[]byte, *wit.Error) {
	if failed := h.check("kubernetes.get"); failed != nil {
		return nil, failed
	}
	object := h.Object(ref)
	if object == nil || !options.Live && h.uncached[keyOf(ref)] {
		return nil, nil
	}
	bytes := h.encode(project(object, options.Projection))
	return &bytes, nil
}

func (h *Host) list(gvk wit.Gvk, options wit.KubernetesListOptions) (wit.KubernetesPage, *wit.Error) {
	if failed := h.check("kubernetes.list"); failed != nil {
		return wit.KubernetesPage{}, failed
	}
	selects, err := parseSelectors(options.LabelSelector, options.FieldSelector)
	if err != nil {
		return wit.KubernetesPage{}, invalid(err.Error())
	}
	var page wit.KubernetesPage
	for _, key := range h.sortedKeys() {
		object := h.objects[key]
		isWanted := key.group == gvk.Group && key.kind == gvk.Kind && key.cluster == clusterOf(options.Cluster) &&
			(options.Live || !h.uncached[key]) && (options.Namespace == nil || *options.Namespace == key.namespace) &&
			selects(object)
		// There are no pages: a limit selects the first objects, and no token continues.
		isWithin := options.Limit == nil || len(page.Items) < int(*options.Limit)
		if isWanted && isWithin {
			page.Items = append(page.Items, h.encode(project(object, options.Projection)))
		}
	}
	return page, nil
}

// project returns the part of an object that a read asks for.
func project(object Object, projection wit.KubernetesProjection) Object {
	if projection.Case == wit.KubernetesProjectionFull {
		return object
	}
	part := clone(Object{"apiVersion": object["apiVersion"], "kind": object["kind"], "metadata": object["metadata"]})
	for _, field := range projection.Fields {
		copyPath(object, part, strings.Split(field, "."))
	}
	return part
}

func copyPath(from any, to Object, path []string) {
	object, _ := from.(Object)
	value, ok := object[path[0]]
	switch {
	case !ok:
	case len(path) == 1:
		to[path[0]] = copyValue(value)
	default:
		copyPath(value, child(to, path[0]), path[1:])
	}
}

func (h *Host) requireReady(ref wit.ObjectRef) ([]byte, *wit.Error) {
	if failed := h.check("kubernetes.require-ready"); failed != nil {
		return nil, failed
	}
	object := h.Object(ref)
	if object == nil || !isBuiltIn(ref.Gvk.Group) {
		return h.requireCondition(ref, "Ready", wit.ConditionStatusTrue)
	}
	if cause := checkReady(ref.Gvk.Group, ref.Gvk.Kind, object); cause != nil {
		return nil, &wit.Error{Case: wit.ErrorNotReady, NotReady: wit.NotReady{
			Ref: ref, Condition: "Ready", Status: wit.ConditionStatusTrue, Exists: true, Reason: cause.reason, Message: cause.message,
		}}
	}
	return h.encode(object), nil
}

func (h *Host) requireCondition(ref wit.ObjectRef, kind string, status wit.ConditionStatus) ([]byte, *wit.Error) {
	object := h.Object(ref)
	condition := findCondition(object, kind)
	required := []string{"True", "False", "Unknown"}[status]
	if condition != nil && condition["status"] == required {
		return h.encode(object), nil
	}
	return nil, &wit.Error{Case: wit.ErrorNotReady, NotReady: wit.NotReady{
		Ref: ref, Condition: kind, Status: status, Exists: object != nil, Reason: text(condition["reason"]),
		Message: text(condition["message"]),
	}}
}

// write applies or creates an object.
func (h *Host) write(verb string, bytes []byte, cluster *string, owned bool) ([]byte, *wit.Error) {
	object, err := parse(bytes)
	if err != nil {
		return nil, invalid(err.Error())
	}
	key := keyOn(cluster, object)
	if key.kind == "" {
		return nil, invalid("an object without a kind")
	}
	before, exists := h.objects[key]
	line := fmt.Sprintf("%s %s %s", verb, key.kind, key.name)
	if owned {
		line += " owned"
		if failed := h.own(object, key, before); failed != nil {
			return nil, failed
		}
	}
	if verb == "create" && exists {
		return nil, conflict(key.name + " exists")
	}
	after := Object{}
	if exists {
		after = clone(before)
	}
	mergeApplied(after, object)
	// The host does not send a write that changes nothing.
	if !exists || !reflect.DeepEqual(before, after) {
		if metadata := child(after, "metadata"); !exists && metadata["uid"] == nil {
			h.created++
			metadata["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012x", h.created)
		}
		raiseVersion(after)
		h.writes = append(h.writes, line+formatCluster(key.cluster))
	}
	h.objects[key] = after
	return h.encode(after), nil
}

// own marks an object as one that the reconciled object owns. Owner references do not cross clusters.
func (h *Host) own(object Object, key key, live Object) *wit.Error {
	uid := text(h.owner["uid"])
	metadata := child(object, "metadata")
	child(metadata, "labels")[ownerLabel] = uid
	if key.cluster == "" {
		metadata["ownerReferences"] = []any{h.owner}
		return nil
	}
	if mark, ok := at(live, "metadata", "labels", ownerLabel).(string); ok && mark != uid {
		return conflict(key.name + ": another object owns it")
	}
	if h.owned[uid] == nil {
		h.owned[uid] = map[string]bool{}
	}
	h.owned[uid][formatEntry(text(object["apiVersion"]), key)] = true
	return nil
}

func mergeApplied(into, from Object) {
	for field, value := range from {
		inner, isObject := value.(Object)
		if there, ok := into[field].(Object); ok && isObject {
			mergeApplied(there, inner)
		} else {
			into[field] = copyValue(value)
		}
	}
}

// raiseVersion raises the resourceVersion of an object that has one, as each write does.
func raiseVersion(object Object) {
	metadata := child(object, "metadata")
	if version, err := strconv.ParseUint(text(metadata["resourceVersion"]), 10, 64); err == nil {
		metadata["resourceVersion"] = strconv.FormatUint(version+1, 10)
	}
}

func (h *Host) patch(ref wit.ObjectRef, subresource string, bytes []byte, preconditions wit.KubernetesPreconditions) ([]byte, *wit.Error) {
	patch, err := parse(bytes)
	if err != nil {
		return nil, invalid(err.Error())
	}
	object := h.Object(ref)
	if object == nil {
		return nil, notFound(formatRef(ref))
	}
	if failed := checkPreconditions(object, preconditions); failed != nil {
		return nil, failed
	}
	object = clone(object)
	line := "patch " + ref.Gvk.Kind
	if subresource != "" {
		line += "/" + subresource
	}
	if subresource == "resize" {
		resizeContainers(object, patch)
	} else {
		mergePatch(object, patch)
	}
	raiseVersion(object)
	key := keyOf(ref)
	h.writes = append(h.writes, line+" "+ref.Name+formatCluster(key.cluster))
	h.objects[key] = object
	return h.encode(object), nil
}

// mergePatch applies a JSON merge patch, which removes the fields that are null (RFC 7386).
func mergePatch(into, patch Object) {
	for field, value := range patch {
		inner, isObject := value.(Object)
		switch {
		case value == nil:
			delete(into, field)
		case isObject:
			mergePatch(child(into, field), inner)
		default:
			into[field] = copyValue(value)
		}
	}
}

// resizeContainers sets the resources of containers, which is all that the subresource `resize` takes of a patch.
func resizeContainers(pod, patch Object) {
	containers, _ := at(pod, "spec", "containers").([]any)
	resized, _ := at(patch, "spec", "containers").([]any)
	for _, container := range containers {
		for _, other := range resized {
			if at(container, "name") == at(other, "name") {
				container.(Object)["resources"] = copyValue(at(other, "resources"))
			}
		}
	}
}

func checkPreconditions(object Object, required wit.KubernetesPreconditions) *wit.Error {
	for field, value := range map[string]*string{"uid": required.Uid, "resourceVersion": required.ResourceVersion} {
		if found := text(at(object, "metadata", field)); value != nil && found != *value {
			return conflict(fmt.Sprintf("%s is %s, the precondition requires %s", field, found, *value))
		}
	}
	return nil
}

func (h *Host) delete(ref wit.ObjectRef, options wit.KubernetesDeleteOptions) *wit.Error {
	if failed := h.check("kubernetes.delete"); failed != nil {
		return failed
	}
	key := keyOf(ref)
	object, exists := h.objects[key]
	if exists {
		if failed := checkPreconditions(object, options.Preconditions); failed != nil {
			return failed
		}
	}
	delete(h.objects, key)
	wasDeleted := at(object, "metadata", "deletionTimestamp") != nil
	if exists && options.Propagation == wit.KubernetesPropagationForeground {
		object = clone(object)
		metadata := child(object, "metadata")
		finalizers, _ := metadata["finalizers"].([]any)
		if h.hasDependents(object) && !slices.Contains(finalizers, any("foregroundDeletion")) {
			finalizers = append(finalizers, "foregroundDeletion")
		}
		// One with finalizers stays until they are gone.
		if len(finalizers) > 0 {
			metadata["finalizers"], metadata["deletionTimestamp"] = finalizers, deletionTime
			h.objects[key] = object
		}
	}
	if _, stays := h.objects[key]; !stays {
		apiVersion := ref.Gvk.Version
		if ref.Gvk.Group != "" {
			apiVersion = ref.Gvk.Group + "/" + apiVersion
		}
		delete(h.owned[text(h.owner["uid"])], formatEntry(apiVersion, key))
	}
	if exists && !wasDeleted {
		h.writes = append(h.writes, "delete "+ref.Gvk.Kind+" "+ref.Name+formatCluster(key.cluster))
	}
	return nil
}

// hasDependents returns whether another object has an owner reference to this one.
func (h *Host) hasDependents(object Object) bool {
	uid := text(at(object, "metadata", "uid"))
	for _, other := range h.objects {
		owners, _ := at(other, "metadata", "ownerReferences").([]any)
		for _, owner := range owners {
			if uid != "" && at(owner, "uid") == uid {
				return true
			}
		}
	}
	return false
}

func (h *Host) readLog(pod wit.ObjectRef, options wit.KubernetesLogOptions) (string, *wit.Error) {
	if failed := h.check("kubernetes.read-log"); failed != nil {
		return "", failed
	}
	if h.Object(pod) == nil {
		return "", notFound("Pod " + pod.Name + " not found")
	}
	container := ""
	if options.Container != nil {
		container = *options.Container
	}
	log, ok := h.containerLogs[formatRef(pod)+" "+container]
	if !ok {
		return "", invalid("a container of pod " + pod.Name + " is waiting to start")
	}
	lines := strings.SplitAfter(log, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return strings.Join(lines[max(0, len(lines)-int(options.TailLines)):], ""), nil
}

func (h *Host) hold(ref wit.ObjectRef) *wit.Error {
	if failed := h.check("references.hold"); failed != nil {
		return failed
	}
	object, name := h.Object(ref), formatRef(ref)
	if object == nil {
		return notFound(name)
	}
	// One that is held already may be held on.
	if at(object, "metadata", "deletionTimestamp") != nil && !h.heldBefore[name] {
		return &wit.Error{Case: wit.ErrorNotReady, NotReady: wit.NotReady{
			Ref: ref, Condition: "Ready", Status: wit.ConditionStatusTrue, Exists: true, Message: "It is being deleted.",
		}}
	}
	h.held[name] = true
	return nil
}
