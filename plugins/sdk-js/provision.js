// Composition of what an object stands for out of steps that are provisioned in order and deprovisioned in reverse. A part
// is an object with the functions `provision(host)` and `deprovision(host)`.
import {
  awaitChange, Failure, falseCondition, HostError, reference, terminal, trueCondition, unknownCondition, wait,
} from "./index.js";

/** Label with the uid of the owner, on objects in a namespace in which owner references to it are impossible. */
export const OWNER_LABEL = "provision.ostler.dev/owner";
/** Label with the uid of the owner, which the host sets on an owned object on another cluster. */
const OWNER_UID_LABEL = "ostler.dev/owner-uid";

/** A composition of steps: their names, and the function that runs them and returns whether all have succeeded. */
class StepTree {
  constructor(names, run) {
    Object.assign(this, { names, run });
  }
  /**
   * Provisions the steps. Returns an outcome that awaits a change and has a condition per step, or throws the failures of
   * the steps as one: its resolution and reason are those of the failure that takes precedence (terminal, denied, throttled,
   * retry, wait), its message has those of all failures with this precedence.
   */
  provision(host) {
    return runTree(this, "provision", host);
  }
  /** Deprovisions the steps, in the reverse order. The outcome releases a deleted object. */
  deprovision(host) {
    return runTree(this, "deprovision", host);
  }
}

/** Names a part. The name is the type of the condition that shows its state, in CamelCase, and occurs once in a tree. */
export const step = (name, part) =>
  new StepTree([name], (direction, host, progress) => progress.recordResult(name, direction, runPart(part, direction, host)));

/** Provisions one after the other, each after the one before it has succeeded, and deprovisions in the reverse order. */
export const serial = (...trees) =>
  new StepTree(listNames(trees), (direction, ...run) =>
    orderTrees(trees, direction).every((tree) => tree.run(direction, ...run)));

/** Provisions and deprovisions all, also after one has failed: none waits for another. */
export const concurrent = (...trees) =>
  new StepTree(listNames(trees), (direction, ...run) =>
    orderTrees(trees, direction).map((tree) => tree.run(direction, ...run)).every((succeeded) => succeeded));

/** Provisions a tree while the condition holds, and deprovisions it while it does not. So a step that may have been
 * provisioned for an earlier spec stays in the tree. */
export const when = (condition, tree) =>
  new StepTree(tree.names, (direction, ...run) => tree.run(condition ? direction : "deprovision", ...run));

const listNames = (trees) => trees.flatMap((tree) => tree.names);
const orderTrees = (trees, direction) => (direction === "provision" ? trees : [...trees].reverse());

function runTree(tree, direction, host) {
  const progress = new Progress(tree.names);
  tree.run(direction, host, progress);
  return progress.finish();
}

/** Runs a part, and returns its failure, or null. Any other exception is a bug, as in a reconcile. */
function runPart(part, direction, host) {
  try {
    checkReturned(direction, part[direction](host));
    return null;
  } catch (e) {
    if (e instanceof Failure) return e;
    if (e instanceof HostError) return e.failure();
    throw e;
  }
}

/** Returns what a function has returned, unless that would be taken for a success by mistake. */
function checkReturned(name, result) {
  if (result instanceof Failure) throw new TypeError(`${name} returned a Failure: throw it`);
  if (typeof result?.then === "function") throw new TypeError(`${name} returned a promise, which is not awaited`);
  return result;
}

/** The conditions of the steps, and their failures as one. All steps are shown, in this order, whichever are reached. */
class Progress {
  constructor(names) {
    const invalid = names.find((name, index) =>
      ["", "Ready", "Reconciling", "Stalled"].includes(name) || names.indexOf(name) !== index);
    if (invalid !== undefined) {
      throw terminal("InvalidStep", `The step ${invalid} needs a name of its own, other than Ready, Reconciling and Stalled.`);
    }
    this.conditions = names.map((name) => unknownCondition(name, "Pending", "Waits for the steps before it."));
    this.failure = null;
  }

  /** Records the failure of a step, or null, and returns whether it is a success. */
  recordResult(name, direction, failure) {
    let condition = falseCondition(name, "Deprovisioned", "");
    if (direction === "provision") condition = trueCondition(name, "Provisioned", "");
    if (failure) {
      condition = falseCondition(name, failure.reason, failure.message);
      // A copy, because the plugin may keep and throw the same failure again.
      const named = new Failure({ ...failure, conditions: [...failure.conditions], message: `${name}: ${failure.message}` });
      this.failure = this.failure ? mergeFailures(this.failure, named) : named;
    }
    this.conditions[this.conditions.findIndex((known) => known.type === name)] = condition;
    return !failure;
  }

  finish() {
    if (!this.failure) return Object.assign(awaitChange(), { conditions: this.conditions });
    this.failure.conditions.unshift(...this.conditions);
    throw this.failure;
  }
}

/** Resolutions in the order of their precedence. A terminal failure needs a user, which a retry would hide; throttled takes
 * precedence over a retry, which would come too early. */
const PRECEDENCE = ["wait", "retry", "throttled", "denied", "terminal"];

/** Merges the failure of a later step with that of the earlier ones. For the modules of the SDK. */
export function mergeFailures(earlier, later) {
  const rank = ({ resolution }) => PRECEDENCE.indexOf(resolution.tag);
  const [merged, other] = rank(later) > rank(earlier) ? [later, earlier] : [earlier, later];
  if (rank(merged) === rank(other)) {
    merged.message += ` ${other.message}`;
    const { tag, val } = other.resolution;
    if (tag === "throttled" && val > merged.resolution.val) merged.resolution = { tag, val };
  }
  merged.conditions.push(...other.conditions);
  merged.status ??= other.status;
  return merged;
}

const describe = (ref, text) => `${ref.gvk.kind} ${ref.name}${text}`;

/**
 * A Kubernetes object as a part: it is applied, and deleted again.
 *
 * It belongs to its owner by the owner reference, or by the label OWNER_LABEL where the owner is in another namespace. On
 * another cluster it is an owned object in the inventory of the host. An object of the same name that does not belong to it
 * is neither changed (`NotOwned`) nor deleted.
 */
class Resource {
  constructor(owner, object, { readyWhen, readyIf, cluster, adopt = false, substitutions = [] } = {}) {
    const { name, namespace, labels } = object.metadata;
    this.ref = reference(object.apiVersion, object.kind, name, namespace, cluster);
    this.options = {
      cluster, force: true, substitutions, owned: Boolean(cluster) || !owner.namespace || namespace === owner.namespace,
    };
    if (!this.options.owned) {
      const metadata = { ...object.metadata, labels: { ...labels, [OWNER_LABEL]: owner.uid } };
      object = { ...object, metadata };
    }
    Object.assign(this, { owner, object, readyWhen, readyIf, adopt });
  }

  /** Returns whether a live object belongs to the owner. */
  belongs({ labels = {}, ownerReferences = [] }) {
    const { uid } = this.owner;
    // An object without the label would have the same value.
    if (!uid) return false;
    if (this.options.cluster) return labels[OWNER_UID_LABEL] === uid;
    return labels[OWNER_LABEL] === uid || ownerReferences.some((owner) => owner.uid === uid);
  }

  /** Returns whether a live object may be changed. On another cluster the host decides between the owners of one object
   * (`conflict`), so that an owner that was restored from a backup takes its objects over. */
  mayApply(metadata) {
    const marked = metadata.labels?.[OWNER_UID_LABEL] !== undefined;
    return this.adopt || this.belongs(metadata) || (this.options.cluster && marked);
  }

  provision(host) {
    const { ref } = this;
    const live = host.get(ref);
    if (live && !this.mayApply(live.metadata)) {
      throw terminal("NotOwned", describe(ref, " belongs to another owner. Delete it, or give this one another name."));
    }
    if (live?.metadata.deletionTimestamp) {
      throw wait("Deprovisioning", describe(ref, " is being deleted, and is made anew after that."));
    }
    const written = host.apply(this.object, this.options);
    if (this.readyWhen) this.requireCondition(host);
    if (this.readyIf && !checkReturned("readyIf", this.readyIf(written))) {
      throw wait("Provisioning", describe(ref, " is not ready yet."));
    }
  }

  requireCondition(host) {
    try {
      host.requireCondition(this.ref, this.readyWhen);
    } catch (e) {
      throw e instanceof HostError && e.tag === "not-ready" ? wait("Provisioning", e.message) : e;
    }
  }

  deprovision(host) {
    const { ref } = this;
    const live = host.getMetadata(ref);
    if (!live || !this.belongs(live.metadata)) return;
    if (!live.metadata.deletionTimestamp) {
      // It is gone only after its dependents: a Deployment after its Pods.
      host.delete(ref, { propagation: "foreground", uid: live.metadata.uid });
      // The deletion of an object without finalizers is complete, and wakes nothing later.
      if (!host.getMetadata(ref)) return;
    }
    throw wait("Deprovisioning", describe(ref, " is being deleted."));
  }
}

/** A Kubernetes object with the fields to apply, which the owner with this metadata owns. */
export const resource = (owner, object, options) => new Resource(owner, object, options);

/** An object of another owner that must exist, and may have to be ready and to be held. It is not changed, and not
 * deleted. */
export const dependency = (ref, { readyWhen, held = false } = {}) => ({
  provision(host) {
    // Before the check, so that it cannot be deleted between the two.
    if (held) host.hold(ref);
    // A hold fails for an object that does not exist.
    if (readyWhen) host.requireCondition(ref, readyWhen);
    else if (!held && !host.getMetadata(ref)) throw new HostError({ tag: "not-found", val: describe(ref, "") });
  },
  deprovision() {
    // The host releases the hold.
  },
});

/** Waits while Kubernetes deletes the dependents of an object, as `kubectl delete --cascade=foreground` asks for. A cleanup
 * that starts with it does not delete them at the same time. */
export function waitForForegroundDeletion({ finalizers = [] }) {
  if (finalizers.includes("foregroundDeletion")) {
    throw wait("ForegroundDeletion", "Kubernetes deletes the dependents of the object first.");
  }
}
