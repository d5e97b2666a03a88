package ostler

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"ostler.dev/sdk/wit"
)

// Provisioner is a part of what an object stands for. Both functions are level-triggered: they may be called at any time
// and any number of times, in any state that an interrupted call has left.
type Provisioner interface {
	// Provision moves the part towards its desired state. It returns nil when that is reached; [Wait] for something that
	// takes its time is no error.
	Provision() error
	// Deprovision removes the part. It returns nil when nothing is left of it, also when there never was anything, and
	// [Wait] while the removal takes its time.
	Deprovision() error
}

// StepTree is a composition of steps; see [Step], [Serial], [Concurrent] and [When].
type StepTree struct {
	names []string
	run   func(direction, *progress) bool
}

// direction is the direction of a run.
type direction uint8

const (
	provision direction = iota
	deprovision
)

// Step names a part. The name is the type of the condition that shows its state, in CamelCase, and occurs once in a tree.
func Step(name string, part Provisioner) StepTree {
	run := func(direction direction, progress *progress) bool {
		var err error
		if direction == provision {
			err = part.Provision()
		} else {
			err = part.Deprovision()
		}
		return progress.recordResult(name, direction, err)
	}
	return StepTree{[]string{name}, run}
}

// Serial provisions one after the other, each after the one before it has succeeded, and deprovisions in the reverse order.
func Serial(trees ...StepTree) StepTree {
	run := func(direction direction, progress *progress) bool {
		for _, tree := range orderTrees(trees, direction) {
			if !tree.run(direction, progress) {
				return false
			}
		}
		return true
	}
	return StepTree{listNames(trees), run}
}

// Concurrent provisions and deprovisions all, also after one has failed: none waits for another.
func Concurrent(trees ...StepTree) StepTree {
	run := func(direction direction, progress *progress) bool {
		succeeded := true
		for _, tree := range orderTrees(trees, direction) {
			succeeded = tree.run(direction, progress) && succeeded
		}
		return succeeded
	}
	return StepTree{listNames(trees), run}
}

// When provisions a tree while the condition holds, and deprovisions it while it does not. So a step that may have been
// provisioned for an earlier spec stays in the tree.
func When(condition bool, tree StepTree) StepTree {
	run := func(direction direction, progress *progress) bool {
		if !condition {
			direction = deprovision
		}
		return tree.run(direction, progress)
	}
	return StepTree{tree.names, run}
}

func listNames(trees []StepTree) []string {
	var names []string
	for _, tree := range trees {
		names = append(names, tree.names...)
	}
	return names
}

func orderTrees(trees []StepTree, direction direction) []StepTree {
	if direction == provision {
		return trees
	}
	reversed := slices.Clone(trees)
	slices.Reverse(reversed)
	return reversed
}

// Provision provisions the steps. The outcome awaits a change, and has a condition per step.
//
// The error has the failures of the steps as one: its resolution and reason are those of the failure that takes precedence
// (terminal, denied, throttled, retry, wait), its message has those of all failures with this precedence. It has the
// conditions of all steps, and is terminal if two steps have the same name. An error of the host or any other error in a
// step becomes the failure that it becomes in a reconcile.
func (t StepTree) Provision() (*Outcome, error) { return t.runSteps(provision) }

// Deprovision deprovisions the steps, in the reverse order. The outcome releases a deleted object. The error is as that of
// [StepTree.Provision].
func (t StepTree) Deprovision() (*Outcome, error) { return t.runSteps(deprovision) }

func (t StepTree) runSteps(direction direction) (*Outcome, error) {
	progress := &progress{}
	for _, name := range t.names {
		if err := progress.addStep(name); err != nil {
			return nil, err
		}
	}
	if t.run != nil {
		t.run(direction, progress)
	}
	return progress.finish()
}

// progress is the conditions of the steps, and their failures as one.
type progress struct {
	conditions []Condition
	failure    *Failure
}

// addStep adds a condition for a step, so that all of them are shown, in this order, whichever are reached.
func (p *progress) addStep(name string) error {
	known := func(condition Condition) bool { return condition.Type == name }
	if slices.Contains([]string{"", "Ready", "Reconciling", "Stalled"}, name) || slices.ContainsFunc(p.conditions, known) {
		return Terminal("InvalidStep",
			"The step "+name+" needs a name of its own, other than Ready, Reconciling and Stalled.")
	}
	p.conditions = append(p.conditions, UnknownCondition(name, "Pending", "Waits for the steps before it."))
	return nil
}

// recordResult records the result of a step, and returns whether it is a success.
func (p *progress) recordResult(name string, direction direction, err error) bool {
	index := slices.IndexFunc(p.conditions, func(condition Condition) bool { return condition.Type == name })
	switch {
	case err == nil && direction == provision:
		p.conditions[index] = TrueCondition(name, "Provisioned", "")
		return true
	case err == nil:
		p.conditions[index] = FalseCondition(name, "Deprovisioned", "")
		return true
	}
	// A copy, because the plugin may keep and return the same failure again.
	failed := *toFailure(err)
	p.conditions[index] = FalseCondition(name, failed.failure.Reason, failed.failure.Message)
	failed.failure.Message = name + ": " + failed.failure.Message
	failed.failure.Conditions = slices.Clone(failed.failure.Conditions)
	p.failure = mergeFailures(p.failure, &failed)
	return false
}

func (p *progress) finish() (*Outcome, error) {
	if p.failure == nil {
		outcome := AwaitChange()
		outcome.outcome.Conditions = p.conditions
		return outcome, nil
	}
	p.failure.failure.Conditions = append(p.conditions, p.failure.failure.Conditions...)
	return nil, p.failure
}

// resolutionRanks has the rank of each resolution: the higher one takes precedence. A terminal failure needs a user, which a
// retry would hide; throttled takes precedence over a retry, which would come too early.
var resolutionRanks = map[wit.ReconcilerResolutionCase]int{
	wit.ReconcilerResolutionWait:      0,
	wit.ReconcilerResolutionRetry:     1,
	wit.ReconcilerResolutionThrottled: 2,
	wit.ReconcilerResolutionDenied:    3,
	wit.ReconcilerResolutionTerminal:  4,
}

// mergeFailures returns the failure of a later step merged with that of the earlier ones, which may be nil.
func mergeFailures(merged, other *Failure) *Failure {
	if merged == nil {
		return other
	}
	known := resolutionRanks[merged.failure.Resolution.Case]
	if rank := resolutionRanks[other.failure.Resolution.Case]; rank > known {
		merged, other = other, merged
	} else if rank == known {
		merged.failure.Message += " " + other.failure.Message
		resolution := &merged.failure.Resolution
		resolution.Throttled = max(resolution.Throttled, other.failure.Resolution.Throttled)
	}
	merged.failure.Conditions = append(merged.failure.Conditions, other.failure.Conditions...)
	if merged.failure.Status == nil {
		merged.failure.Status = other.failure.Status
	}
	return merged
}

// OwnerLabel is the label with the uid of the owner, on objects in a namespace in which owner references to it are
// impossible.
const OwnerLabel = "provision.ostler.dev/owner"

// ownerUIDLabel is the label with the uid of the owner, which the host sets on an owned object on another cluster.
const ownerUIDLabel = "ostler.dev/owner-uid"

// Resource is a Kubernetes object as a part: it is applied, and deleted again.
//
// It belongs to its owner by the owner reference, or by [OwnerLabel] where the owner is in another namespace. On another
// cluster it is an owned object in the inventory of the host. An object of the same name that does not belong to it is
// neither changed (`NotOwned`) nor deleted.
type Resource struct {
	// Owner is the metadata of the reconciled object.
	Owner Metadata
	// Object has the fields to apply.
	Object any
	// ReadyWhen is a condition that must be True for the current generation, such as `Available` of a Deployment. Without
	// this field and ReadyIf the object is ready as soon as it is applied.
	ReadyWhen string
	// ReadyIf is a function of the whole object, which returns nil when it is ready.
	ReadyIf func(object json.RawMessage) error
	// Cluster applies it on another cluster: `namespace/name` of the Cluster object. The kind of the owner needs a finalizer.
	Cluster string
	// Adopt takes over an object of the same name that does not belong to the owner, such as one that another tool has made.
	Adopt bool
	// Substitutions inserts secrets into a Secret; see [Substitution].
	Substitutions []wit.Substitution
}

// liveMetadata is the part of a live object that decides about its ownership.
type liveMetadata struct {
	Metadata struct {
		UID               string            `json:"uid"`
		Labels            map[string]string `json:"labels"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
		OwnerReferences   []struct {
			UID string `json:"uid"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
}

// isOwned returns whether the host can make the reconciled object the owner: on another cluster by its inventory, on the same
// one by an owner reference.
func (r Resource) isOwned(ref ObjectRef) bool {
	namespace := ""
	if ref.Namespace != nil {
		namespace = *ref.Namespace
	}
	return r.Cluster != "" || r.Owner.Namespace == "" || namespace == r.Owner.Namespace
}

// decode returns the object's fields with the label of its owner, and its reference.
func (r Resource) decode() (map[string]any, ObjectRef, error) {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encode(r.Object)))
	// Integers stay as they are.
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, ObjectRef{}, err
	}
	text := func(from map[string]any, key string) string {
		value, _ := from[key].(string)
		return value
	}
	metadata, _ := fields["metadata"].(map[string]any)
	ref := Ref(text(fields, "apiVersion"), text(fields, "kind"), text(metadata, "namespace"), text(metadata, "name"))
	ref.Cluster = some(r.Cluster)
	if metadata != nil && !r.isOwned(ref) {
		labels, _ := metadata["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
		}
		labels[OwnerLabel] = r.Owner.UID
		metadata["labels"] = labels
	}
	return fields, ref, nil
}

// belongs returns whether a live object belongs to the owner.
func (r Resource) belongs(live *liveMetadata) bool {
	metadata := &live.Metadata
	switch {
	case r.Owner.UID == "":
		// An object without the label would have the same value.
		return false
	case r.Cluster != "":
		return metadata.Labels[ownerUIDLabel] == r.Owner.UID
	case metadata.Labels[OwnerLabel] == r.Owner.UID:
		return true
	}
	for _, owner := range metadata.OwnerReferences {
		if owner.UID == r.Owner.UID {
			return true
		}
	}
	return false
}

// mayApply returns whether a live object may be changed. On another cluster the host decides between the owners of one object
// (`conflict`), so that an owner that was restored from a backup takes its objects over.
func (r Resource) mayApply(live *liveMetadata) bool {
	_, marked := live.Metadata.Labels[ownerUIDLabel]
	return r.Adopt || r.belongs(live) || (r.Cluster != "" && marked)
}

// Provision applies the object, and requires it to be ready.
func (r Resource) Provision() error {
	fields, ref, err := r.decode()
	if err != nil {
		return err
	}
	var live liveMetadata
	exists, err := Get(ref, &live)
	if err != nil {
		return err
	}
	if exists && !r.mayApply(&live) {
		return Terminal("NotOwned",
			describe(ref, " belongs to another owner. Delete it, or give this one another name."))
	}
	if exists && live.Metadata.DeletionTimestamp != nil {
		return Wait("Deprovisioning", describe(ref, " is being deleted, and is made anew after that."))
	}
	options := ApplyOptions{
		Cluster: ref.Cluster, Owned: r.isOwned(ref), Force: true, Substitutions: r.Substitutions,
	}
	written, failed := wit.KubernetesApply(encode(fields), options)
	if failed != nil {
		return check(failed)
	}
	if r.ReadyWhen != "" {
		var ready json.RawMessage
		if err := requireProvisioned(RequireCondition(ref, r.ReadyWhen, True, &ready)); err != nil {
			return err
		}
	}
	if r.ReadyIf != nil {
		return r.ReadyIf(written)
	}
	return nil
}

// requireProvisioned gives a failed condition of an applied object the reason of its step.
func requireProvisioned(err error) error {
	var host *HostError
	if errors.As(err, &host) && host.Cause.Case == wit.ErrorNotReady {
		return Wait("Provisioning", host.Error())
	}
	return err
}

// Deprovision deletes the object, and waits until it is gone.
func (r Resource) Deprovision() error {
	_, ref, err := r.decode()
	if err != nil {
		return err
	}
	var live liveMetadata
	exists, err := GetMetadata(ref, &live)
	if err != nil || !exists || !r.belongs(&live) {
		return err
	}
	if live.Metadata.DeletionTimestamp == nil {
		// It is gone only after its dependents: a Deployment after its Pods.
		err := DeleteWith(ref, wit.KubernetesPropagationForeground, Preconditions{UID: live.Metadata.UID})
		if err != nil {
			return err
		}
		// The deletion of an object without finalizers is complete, and wakes nothing later.
		if exists, err = GetMetadata(ref, &live); err != nil || !exists {
			return err
		}
	}
	return Wait("Deprovisioning", describe(ref, " is being deleted."))
}

func describe(ref ObjectRef, text string) string { return ref.Gvk.Kind + " " + ref.Name + text }

// Dependency is an object of another owner as a part: it must exist, and may have to be ready and to be held. It is not
// changed, and not deleted.
type Dependency struct {
	// Ref is the object.
	Ref ObjectRef
	// ReadyWhen is a condition that must be True for its current generation, such as `Ready`.
	ReadyWhen string
	// Held holds the object, so that it is not deleted while the reconciled object uses it. A reconcile that succeeds
	// without this step, or in which [When] turns it off, releases it.
	Held bool
}

// Provision requires the object.
func (d Dependency) Provision() error {
	// Before the check, so that it cannot be deleted between the two.
	if d.Held {
		if err := Hold(d.Ref); err != nil {
			return err
		}
	}
	if d.ReadyWhen != "" {
		var object json.RawMessage
		return RequireCondition(d.Ref, d.ReadyWhen, True, &object)
	}
	// A hold fails for an object that does not exist.
	if d.Held {
		return nil
	}
	var object json.RawMessage
	exists, err := GetMetadata(d.Ref, &object)
	if err == nil && !exists {
		return &HostError{wit.Error{Case: wit.ErrorNotFound, NotFound: describe(d.Ref, "")}}
	}
	return err
}

// Deprovision does nothing: the host releases the hold.
func (d Dependency) Deprovision() error { return nil }

// WaitForForegroundDeletion waits while Kubernetes deletes the dependents of an object, as
// `kubectl delete --cascade=foreground` asks for. A cleanup that starts with it does not delete them at the same time.
func WaitForForegroundDeletion(metadata Metadata) error {
	if slices.Contains(metadata.Finalizers, "foregroundDeletion") {
		return Wait("ForegroundDeletion", "Kubernetes deletes the dependents of the object first.")
	}
	return nil
}
