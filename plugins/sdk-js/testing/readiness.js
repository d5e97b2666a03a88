// Readiness of the built-in kinds, by the rules of the host.

/** API groups of Kubernetes itself. */
const GROUPS = ["", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps",
  "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io",
  "discovery.k8s.io", "events.k8s.io", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io",
  "node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io"];

export const isBuiltIn = (group) => GROUPS.includes(group);

const notReady = (reason, message) => ({ reason, message });
const ofCondition = ({ reason = "", message = "" }) => notReady(reason, message);
export const findCondition = (object, type) => object?.status?.conditions?.find((condition) => condition.type === type);

function findTrue(object, type) {
  const condition = findCondition(object, type);
  return condition?.status === "True" ? condition : undefined;
}

function requireTrue(object, type) {
  const condition = findCondition(object, type);
  if (!condition) return notReady("ConditionMissing", `it has no condition ${type} yet`);
  return condition.status === "True" ? undefined : ofCondition(condition);
}

function requirePhase(object, ...ready) {
  const phase = object.status?.phase;
  if (!phase) return notReady("PhaseMissing", "it has no phase yet");
  return ready.includes(phase) ? undefined : notReady(phase, `its phase is ${phase}`);
}

/** Requires that counts of pods in the status have reached another one. Controllers leave out counts of 0. */
function requireCounts({ status = {} }, desired, ...counts) {
  for (const [field, reason, done] of counts) {
    const count = status[field] ?? 0;
    if (field === "replicas" && !reason) {
      if (count > desired) return notReady("PodsNotRemoved", `${count - desired} old pods are not removed yet`);
    } else if (count < desired) {
      return notReady(reason, `${count} of ${desired} pods are ${done}`);
    }
  }
  return undefined;
}

const NO_EXCESS = ["replicas"];
const CREATED = ["replicas", "PodsNotCreated", "created"];
const UPDATED = ["updatedReplicas", "PodsNotUpdated", "updated"];
const AVAILABLE = ["availableReplicas", "PodsNotAvailable", "available"];
const READY = ["readyReplicas", "PodsNotReady", "ready"];
const desiredReplicas = ({ spec }) => spec?.replicas ?? 1;

/** A field that is null counts as missing. */
const dropNulls = (value) => (Array.isArray(value) ? value.map(dropNulls) : typeof value !== "object" ? value
  : Object.fromEntries(Object.entries(value).filter(([, inner]) => inner !== null).map(([name, inner]) => [name, dropNulls(inner)])));

/** Returns the cause for which an object of a built-in kind is not ready for its current generation; undefined if it is. */
export function checkReady(group, kind, given) {
  const object = dropNulls(given);
  const { metadata = {}, status = {} } = object;
  if (metadata.deletionTimestamp) return notReady("Terminating", "it is being deleted");
  const observed = status.observedGeneration ?? null;
  const hasController = (group === "apps" && ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"].includes(kind)) ||
    (group === "policy" && kind === "PodDisruptionBudget");
  if (observed !== (metadata.generation ?? null) && (hasController || observed !== null)) {
    return notReady("GenerationNotObserved", `its controller has not observed generation ${metadata.generation ?? null} yet`);
  }
  const check = CHECKS[`${group}/${kind}`];
  if (check) return check(object);
  return findCondition(object, "Ready") ? requireTrue(object, "Ready") : undefined;
}

const CHECKS = {
  "apps/Deployment"(object) {
    const progressing = findCondition(object, "Progressing");
    if (progressing?.reason === "ProgressDeadlineExceeded") return ofCondition(progressing);
    const failure = findTrue(object, "ReplicaFailure");
    if (failure) return ofCondition(failure);
    return requireCounts(object, desiredReplicas(object), CREATED, UPDATED, NO_EXCESS, AVAILABLE, READY) ??
      (findCondition(object, "Available") ? requireTrue(object, "Available") : undefined);
  },
  "apps/StatefulSet"(object) {
    const { updateStrategy = {} } = object.spec ?? {};
    // Its pods are updated when their administrator deletes them.
    if (updateStrategy.type === "OnDelete") return undefined;
    const desired = desiredReplicas(object);
    const missing = requireCounts(object, desired, CREATED, READY, NO_EXCESS);
    if (missing) return missing;
    const partition = updateStrategy.rollingUpdate?.partition ?? 0;
    if (partition > 0) return requireCounts(object, Math.max(0, desired - partition), UPDATED);
    const { currentRevision, updateRevision, updatedReplicas = 0 } = object.status ?? {};
    if (currentRevision === updateRevision) return undefined;
    return notReady("PodsNotUpdated", `${updatedReplicas} of ${desired} pods are updated`);
  },
  "apps/DaemonSet"(object) {
    const desired = object.status?.desiredNumberScheduled;
    if (desired === undefined) return notReady("PodsNotScheduled", "its pods are not counted yet");
    const updated = object.spec?.updateStrategy?.type === "OnDelete" ? [] : [["updatedNumberScheduled", "PodsNotUpdated", "updated"]];
    return requireCounts(object, desired, ["currentNumberScheduled", "PodsNotScheduled", "scheduled"], ...updated,
      ["numberAvailable", "PodsNotAvailable", "available"], ["numberReady", "PodsNotReady", "ready"]);
  },
  "apps/ReplicaSet"(object) {
    const failure = findTrue(object, "ReplicaFailure");
    if (failure) return ofCondition(failure);
    const labelled = ["fullyLabeledReplicas", "PodsNotCreated", "created"];
    return requireCounts(object, desiredReplicas(object), labelled, AVAILABLE, READY, NO_EXCESS);
  },
  "/ReplicationController": (object) => CHECKS["apps/ReplicaSet"](object),
  "batch/Job"(object) {
    const failed = findTrue(object, "Failed");
    if (failed) return ofCondition(failed);
    if (findTrue(object, "Complete")) return undefined;
    const suspended = findTrue(object, "Suspended");
    if (suspended) return ofCondition(suspended);
    const { active = 0, succeeded = 0, failed: count = 0 } = object.status ?? {};
    return notReady("JobNotComplete", `it is not complete: ${active} pods active, ${succeeded} succeeded, ${count} failed`);
  },
  /** A pod that has succeeded is ready. */
  "/Pod"(object) {
    const { phase, reason = "Failed", message = "its phase is Failed", initContainerStatuses = [], containerStatuses = [] } =
      object.status ?? {};
    if (phase === "Succeeded") return undefined;
    for (const { name = "", state } of [...initContainerStatuses, ...containerStatuses]) {
      const waiting = state?.waiting;
      if (waiting?.reason && !["ContainerCreating", "PodInitializing"].includes(waiting.reason)) {
        return notReady(waiting.reason, `container ${name}: ${waiting.message ?? "it waits"}`);
      }
    }
    if (phase === "Failed") return notReady(reason, message);
    const scheduled = findCondition(object, "PodScheduled");
    return scheduled?.status === "False" ? ofCondition(scheduled) : requireTrue(object, "Ready");
  },
  "/Service"({ spec = {}, status = {} }) {
    const hasAddress = spec.externalIPs?.length || status.loadBalancer?.ingress?.length;
    if (spec.type !== "LoadBalancer" || hasAddress) return undefined;
    return notReady("AddressPending", "its load balancer has no address yet");
  },
  "/PersistentVolumeClaim": (object) => requirePhase(object, "Bound"),
  "/PersistentVolume": (object) => requirePhase(object, "Available", "Bound"),
  "/Namespace": (object) => requirePhase(object, "Active"),
  "/Node": (object) => requireTrue(object, "Ready"),
  "apiextensions.k8s.io/CustomResourceDefinition"(object) {
    const accepted = findCondition(object, "NamesAccepted");
    return accepted?.status === "False" ? ofCondition(accepted) : requireTrue(object, "Established");
  },
  "apiregistration.k8s.io/APIService": (object) => requireTrue(object, "Available"),
  "certificates.k8s.io/CertificateSigningRequest"(object) {
    const refused = findTrue(object, "Denied") ?? findTrue(object, "Failed");
    if (refused) return ofCondition(refused);
    return object.status?.certificate ? undefined : notReady("CertificatePending", "its certificate is not issued yet");
  },
};
