"""Composition of what an object stands for out of steps that are provisioned in order and deprovisioned in reverse.

A part is an object with two methods, `provision(self, host)` and `deprovision(self, host)`. Both are level-triggered: they
may be called at any time and any number of times, in any state that an interrupted call has left. The first returns when
the desired state is reached, the second when nothing is left of the part, also when there never was anything. Until then
they raise a failure; `wait` for something that takes its time is no error."""

from ostler import (
    Failure, HostError, await_change, false_condition, reference, terminal, true_condition, unknown_condition, wait,
)
from wit_world.exports import reconciler
from wit_world.imports import types

__all__ = [
    "OWNER_LABEL", "Dependency", "Resource", "StepTree", "concurrent", "serial", "step", "wait_for_foreground_deletion",
    "when",
]

OWNER_LABEL = "provision.ostler.dev/owner"
"""Label with the uid of the owner, on objects in a namespace in which owner references to it are impossible."""
_OWNER_UID_LABEL = "ostler.dev/owner-uid"
"""Label with the uid of the owner, which the host sets on an owned object on another cluster."""


class StepTree:
    """A composition of steps: their names, and the function that runs them and returns whether all have succeeded."""

    def __init__(self, names, run):
        self._names, self._run = names, run

    def provision(self, host):
        """Provisions the steps. Returns an outcome that awaits a change and has a condition per step, or raises the failures
        of the steps as one: its resolution and reason are those of the failure that takes precedence (terminal, denied,
        throttled, retry, wait), its message has those of all failures with this precedence."""
        return self._run_steps("provision", host)

    def deprovision(self, host):
        """Deprovisions the steps, in the reverse order. The outcome releases a deleted object."""
        return self._run_steps("deprovision", host)

    def _run_steps(self, direction, host):
        progress = _Progress(self._names)
        self._run(direction, host, progress)
        return progress.finish()


def step(name, part):
    """Names a part. The name is the type of the condition that shows its state, in CamelCase, and occurs once in a tree."""

    def run(direction, host, progress):
        return progress.record_result(name, direction, _run_part(part, direction, host))

    return StepTree([name], run)


def serial(*trees):
    """Provisions one after the other, each after the one before it has succeeded, and deprovisions in the reverse order."""

    def run(direction, host, progress):
        return all(tree._run(direction, host, progress) for tree in _order_trees(trees, direction))

    return StepTree(_list_names(trees), run)


def concurrent(*trees):
    """Provisions and deprovisions all, also after one has failed: none waits for another."""

    def run(direction, host, progress):
        return all([tree._run(direction, host, progress) for tree in _order_trees(trees, direction)])

    return StepTree(_list_names(trees), run)


def when(condition, tree):
    """Provisions a tree while the condition holds, and deprovisions it while it does not. So a step that may have been
    provisioned for an earlier spec stays in the tree."""

    def run(direction, host, progress):
        return tree._run(direction if condition else "deprovision", host, progress)

    return StepTree(tree._names, run)


def _list_names(trees):
    return [name for tree in trees for name in tree._names]


def _order_trees(trees, direction):
    return trees if direction == "provision" else trees[::-1]


def _run_part(part, direction, host):
    """Runs a part, and returns its failure, or None. Any other exception is a bug, as in a reconcile."""
    try:
        _check_returned(direction, getattr(part, direction)(host))
    except Failure as e:
        return e
    except HostError as e:
        return e.failure()
    return None


def _check_returned(name, result):
    """Returns what a function has returned, unless that would be taken for a success by mistake."""
    if isinstance(result, Failure):
        raise TypeError(f"{name} returned a Failure: raise it")
    if hasattr(result, "__await__"):
        raise TypeError(f"{name} returned an awaitable, which is not awaited")
    return result


class _Progress:
    """The conditions of the steps, and their failures as one. All steps are shown, in this order, whichever are reached."""

    def __init__(self, names):
        self.conditions, self.failure = {}, None
        for name in names:
            if name in ("", "Ready", "Reconciling", "Stalled") or name in self.conditions:
                raise terminal(
                    "InvalidStep",
                    f"The step {name} needs a name of its own, other than Ready, Reconciling and Stalled.")
            self.conditions[name] = unknown_condition(name, "Pending", "Waits for the steps before it.")

    def record_result(self, name, direction, failure):
        """Records the failure of a step, or None, and returns whether it is a success."""
        if failure is None:
            provisioned = direction == "provision"
            self.conditions[name] = (
                true_condition(name, "Provisioned", "") if provisioned else false_condition(name, "Deprovisioned", ""))
            return True
        self.conditions[name] = false_condition(name, failure.reason, failure.message)
        # A copy, because the plugin may keep and raise the same failure again.
        named = Failure(failure.resolution, failure.reason, f"{name}: {failure.message}")
        named.conditions, named.status = [*failure.conditions], failure.status
        self.failure = named if self.failure is None else _merge_failures(self.failure, named)
        return False

    def finish(self):
        conditions = [*self.conditions.values()]
        if self.failure is None:
            outcome = await_change()
            outcome.conditions = conditions
            return outcome
        self.failure.conditions = conditions + self.failure.conditions
        raise self.failure


_PRECEDENCE = [
    reconciler.Resolution_Wait, reconciler.Resolution_Retry, reconciler.Resolution_Throttled,
    reconciler.Resolution_Denied, reconciler.Resolution_Terminal,
]
"""Resolutions in the order of their precedence. A terminal failure needs a user, which a retry would hide; throttled takes
precedence over a retry, which would come too early."""


def _merge_failures(merged, other):
    """Merges the failure of a later step with that of the earlier ones."""
    known, rank = (_PRECEDENCE.index(type(failure.resolution)) for failure in (merged, other))
    if rank > known:
        merged, other = other, merged
    elif rank == known:
        merged.message += f" {other.message}"
        if isinstance(other.resolution, reconciler.Resolution_Throttled):
            longest = max(merged.resolution.value, other.resolution.value)
            merged.resolution = reconciler.Resolution_Throttled(longest)
    merged.conditions += other.conditions
    merged.status = other.status if merged.status is None else merged.status
    return merged


def _describe(ref, text):
    return f"{ref.gvk.kind} {ref.name}{text}"


class Resource:
    """A Kubernetes object as a part: it is applied, and deleted again.

    It belongs to its owner by the owner reference, or by OWNER_LABEL where the owner is in another namespace. On another
    cluster it is an owned object in the inventory of the host. An object of the same name that does not belong to it is
    neither changed (`NotOwned`) nor deleted."""

    def __init__(self, owner, object, ready_when=None, ready_if=None, cluster=None, adopt=False, substitutions=()):
        """`owner` is the metadata of the reconciled object, `object` has the fields to apply.

        It is ready as soon as it is applied; with `ready_when`, when this condition is True for its current generation; with
        `ready_if`, when this function of the whole object returns true, which may raise a failure. `cluster` is the
        `namespace/name` of the `Cluster` object of another cluster; the kind of the owner needs a finalizer then. `adopt`
        takes over an object of the same name that does not belong to the owner. `substitutions` are inserted into a
        `Secret`."""
        metadata = object["metadata"]
        namespace = metadata.get("namespace")
        self.ref = reference(object["apiVersion"], object["kind"], metadata["name"], namespace, cluster)
        self.owner, self.object, self.ready_when, self.ready_if = owner, object, ready_when, ready_if
        self.cluster, self.adopt, self.substitutions = cluster, adopt, substitutions
        self.is_owned = bool(cluster or not owner.get("namespace") or namespace == owner["namespace"])
        if not self.is_owned:
            labels = {**(metadata.get("labels") or {}), OWNER_LABEL: owner["uid"]}
            self.object = {**object, "metadata": {**metadata, "labels": labels}}

    def _belongs(self, metadata):
        """Returns whether a live object belongs to the owner."""
        uid, labels = self.owner.get("uid"), metadata.get("labels") or {}
        if not uid:
            # An object without the label would have the same value.
            return False
        if self.cluster:
            return labels.get(_OWNER_UID_LABEL) == uid
        owners = metadata.get("ownerReferences") or []
        return labels.get(OWNER_LABEL) == uid or any(owner.get("uid") == uid for owner in owners)

    def _may_apply(self, metadata):
        """Returns whether a live object may be changed. On another cluster the host decides between the owners of one object
        (`conflict`), so that an owner that was restored from a backup takes its objects over."""
        is_marked = _OWNER_UID_LABEL in (metadata.get("labels") or {})
        return self.adopt or self._belongs(metadata) or (self.cluster and is_marked)

    def provision(self, host):
        live = host.get(self.ref)
        if live is not None and not self._may_apply(live["metadata"]):
            raise terminal(
                "NotOwned", _describe(self.ref, " belongs to another owner. Delete it, or give this one another name."))
        if live is not None and live["metadata"].get("deletionTimestamp"):
            raise wait("Deprovisioning", _describe(self.ref, " is being deleted, and is made anew after that."))
        written = host.apply(
            self.object, owned=self.is_owned, force=True, substitutions=self.substitutions, cluster=self.cluster)
        if self.ready_when:
            try:
                host.require_condition(self.ref, self.ready_when)
            except HostError as e:
                if isinstance(e.error, types.Error_NotReady):
                    raise wait("Provisioning", str(e)) from None
                raise
        if self.ready_if and not _check_returned("ready_if", self.ready_if(written)):
            raise wait("Provisioning", _describe(self.ref, " is not ready yet."))

    def deprovision(self, host):
        live = host.get_metadata(self.ref)
        if live is None or not self._belongs(live["metadata"]):
            return
        if not live["metadata"].get("deletionTimestamp"):
            # It is gone only after its dependents: a Deployment after its Pods.
            host.delete(self.ref, propagation="foreground", uid=live["metadata"].get("uid"))
            # The deletion of an object without finalizers is complete, and wakes nothing later.
            if host.get_metadata(self.ref) is None:
                return
        raise wait("Deprovisioning", _describe(self.ref, " is being deleted."))


class Dependency:
    """An object of another owner as a part: it must exist, and may have to be ready (`ready_when` a condition) and to be held
    (`held`): not deleted while the reconciled object uses it. It is not changed, and not deleted."""

    def __init__(self, ref, ready_when=None, held=False):
        self.ref, self.ready_when, self.held = ref, ready_when, held

    def provision(self, host):
        # Before the check, so that it cannot be deleted between the two.
        if self.held:
            host.hold(self.ref)
        if self.ready_when:
            host.require_condition(self.ref, self.ready_when)
        # A hold fails for an object that does not exist.
        elif not self.held and host.get_metadata(self.ref) is None:
            raise HostError(types.Error_NotFound(_describe(self.ref, "")))

    def deprovision(self, host):
        """Does nothing: the host releases the hold."""


def wait_for_foreground_deletion(metadata):
    """Waits while Kubernetes deletes the dependents of an object, as `kubectl delete --cascade=foreground` asks for. A cleanup
    that starts with it does not delete them at the same time."""
    if "foregroundDeletion" in (metadata.get("finalizers") or []):
        raise wait("ForegroundDeletion", "Kubernetes deletes the dependents of the object first.")
