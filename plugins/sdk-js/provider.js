// Service providers: a kind whose service is installed on other clusters for each of its objects, with the cluster requests of
// openmcp (`clusters.openmcp.cloud`).
import { awaitChange, Failure, HostError, poll, reference, secret, terminal, wait } from "./index.js";
import { mergeFailures, OWNER_LABEL } from "./provision.js";
import { hashBytes } from "./sha256.js";
import { decode, encode, parseJson } from "./runtime.js";

/** The host's own cluster: the platform cluster, with the configuration, the requests and the `Cluster` objects. */
const PLATFORM = "in-cluster";
const CLUSTER_REQUEST = ["clusters.openmcp.cloud/v1alpha1", "ClusterRequest"];
const ACCESS_REQUEST = ["clusters.openmcp.cloud/v1alpha1", "AccessRequest"];
const CLUSTER = ["ostler.dev/v1alpha1", "Cluster"];
/** Key of the kubeconfig in a Secret with credentials. */
const KUBECONFIG_KEY = "kubeconfig";
/** Annotation of a request with the kind, namespace and name of its owner. An owner that was restored from a backup has
 * another uid, and takes its requests over. */
const OWNER_ANNOTATION = "provision.ostler.dev/owner-name";
/** Label with the uid of the owner, which the host sets on an owned object on another cluster. */
const OWNER_UID_LABEL = "ostler.dev/owner-uid";
/** Annotation of an owner with the inventory of the host. */
const INVENTORY_ANNOTATION = "ostler.dev/owned-objects";

/** Returns the reference to the ClusterRequest with the name and namespace of an object. */
export const requestOfSameName = ({ name, namespace }) => ({ name, namespace });

/** A name that is stable and unique for an object of a kind: the prefix and a hash of the namespace and name. */
export const buildStableName = (prefix, { name, namespace = "" }) => `${prefix}-${hashText(`${namespace}/${name}`)}`;

/** First 128 bits of the SHA-256 hash in hexadecimal digits. Names of tenants stand beside each other, and nobody can choose a
 * name of his own whose hash is that of another one. */
const hashText = (text) => hashBytes(encode(text)).slice(0, 32);

/**
 * Builds a kind of a plugin, which makes the requests, waits for them, and releases them when the service is gone.
 *
 * `createOrUpdate` installs or updates the service and returns an outcome; `delete` removes it and returns when nothing is left
 * of it. Both throw a failure otherwise, are level-triggered, and may find any state that an interrupted call has left.
 */
export function serviceProvider(provider) {
  const { group, version, kind, finalizer } = provider;
  const run = (step) => (object, host) => {
    const state = { ...object.status?.provider };
    try {
      return keepState(step(new Service(provider, object, state, host)), state);
    } catch (e) {
      throw keepState(toFailure(e), state);
    }
  };
  return {
    group, version, kind, finalizer, phase: true,
    reconcile: run((service) => service.install()),
    cleanup: run((service) => (service.uninstall(), awaitChange())),
  };
}

/** Returns the failure that an exception becomes. Any other exception is a bug, as in a reconcile. */
function toFailure(e) {
  if (e instanceof HostError) return e.failure();
  if (e instanceof Failure) return e;
  throw e;
}

/** Adds the state to the status fields of the domain, which replace those before. Without any, all fields stay. */
function keepState(result, state) {
  return result?.status ? result.withStatus({ ...parseJson(decode(result.status)), provider: state }) : result;
}

/** Calls all functions, and returns their results, or throws their failures as one. */
function runAll(...functions) {
  let failure = null;
  const results = functions.map((run) => {
    try {
      return run();
    } catch (e) {
      const failed = toFailure(e);
      failure = failure ? mergeFailures(failure, failed) : failed;
    }
  });
  if (failure) throw failure;
  return results;
}

/** The service of an object. `state` is the field `provider` of its status. */
class Service {
  constructor(provider, object, state, host) {
    Object.assign(this, { provider, object, state, host });
  }

  readSettings() {
    const { providerName: name, requestNamespace: namespace } = this.host.config() ?? {};
    const text = (value, fallback) => (typeof value === "string" ? value : fallback);
    return { name: text(name, this.provider.name), namespace: text(namespace, this.object.metadata.namespace) };
  }

  checkpoint(changed) {
    this.host.checkpoint({ provider: Object.assign(this.state, changed) });
  }

  readConfig(name) {
    const { apiVersion, kind } = this.provider.config;
    return this.host.get(reference(apiVersion, kind, name, undefined, PLATFORM));
  }

  /** Reads the configuration for a deletion. One that is missing, invalid or not permitted does not block it; an outage does. */
  readConfigForDeletion(name) {
    try {
      return this.readConfig(name)?.spec ?? null;
    } catch (e) {
      const isOutage = ["unavailable", "throttled", "limit-exceeded", "conflict", "not-ready"].includes(e.tag);
      if (isOutage || !(e instanceof HostError)) throw e;
      return null;
    }
  }

  readInterval(name, spec) {
    const { kind, pollInterval = (spec) => spec.pollInterval } = this.provider.config;
    const text = pollInterval(spec) ?? "0s";
    const interval = parseDuration(text);
    if (interval === null) {
      throw terminal("InvalidConfig", `${kind} ${name}: the poll interval ${text} is not a duration. Write it as 1m.`);
    }
    return interval;
  }

  install() {
    const { name, namespace } = this.readSettings();
    const config = this.readConfig(name);
    if (!config) {
      throw wait("ConfigNotFound", `${this.provider.config.kind} ${name} does not exist. Create it to configure the provider.`);
    }
    const spec = config.spec ?? {};
    const interval = this.readInterval(name, spec);
    // Before the first request, so that the cleanup finds it, whatever the configuration is then.
    if (this.state.requestNamespace === undefined) this.checkpoint({ providerName: name, requestNamespace: namespace });
    const clusters = this.requestClusters();
    // Before the first write on a cluster: what may have been installed is removed, and nothing else is waited for.
    if (this.state.stage !== "Installed") this.checkpoint({ stage: "Installed" });
    const outcome = this.provider.createOrUpdate(this.object, spec, clusters, this.host);
    if (outcome instanceof Failure) throw new TypeError("createOrUpdate returned a Failure: throw it");
    if (interval > 0 && outcome?.next?.tag === "await-change") outcome.next = poll(interval).next;
    return outcome;
  }

  uninstall() {
    // Nothing was requested.
    if (this.state.requestNamespace === undefined) return;
    if (this.state.stage === "Installed") {
      const config = this.readConfigForDeletion(this.readSettings().name);
      const result = this.provider.delete(this.object, config, this.requestClusters(), this.host);
      if (result instanceof Failure) throw new TypeError("delete returned a Failure: throw it");
      if (typeof result?.then === "function") throw new TypeError("delete returned a promise, which is not awaited");
      // With the credentials the host could not do so any more.
      releaseOwned(this.object.metadata, this.host);
      // Before the access is revoked: a request that is missing from now on is not made again.
      this.checkpoint({ stage: "Removed" });
    }
    // Of both roles, also one that an earlier version of the plugin has requested.
    runAll(() => this.role("mcp").releaseAccess(), () => this.role("workload").releaseAccess());
  }

  role(role) {
    return new ClusterRole(this, role);
  }

  /** Requests the clusters. None waits for the other. */
  requestClusters() {
    const { mcpCluster, workloadCluster } = this.provider;
    const [mcp, workload] = runAll(
      () => mcpCluster && this.role("mcp").requestAccess(
        (mcpCluster.find ?? requestOfSameName)(this.object.metadata), mcpCluster.permissions),
      () => workloadCluster && this.role("workload").requestCluster(workloadCluster.permissions),
    );
    return new Clusters(mcp, workload);
  }
}

/** The clusters of a service. One that the provider does not request has no name that could be taken for the host's cluster. */
class Clusters {
  #mcp;
  #workload;
  constructor(mcp, workload) {
    [this.#mcp, this.#workload] = [mcp, workload];
  }
  get mcp() {
    return findRequested(this.#mcp, "mcpCluster");
  }
  get workload() {
    return findRequested(this.#workload, "workloadCluster");
  }
}

function findRequested(cluster, field) {
  if (!cluster) throw terminal("ClusterNotRequested", `The provider requests no such cluster: set ${field}.`);
  return cluster;
}

const describe = (ref, text) => `${ref.gvk.kind} ${ref.namespace}/${ref.name}${text}`;

/** A cluster in its role for an object. */
class ClusterRole {
  constructor({ provider: { group, kind }, object, state, host }, role) {
    Object.assign(this, { host, owner: object.metadata, role, provider: state.providerName, namespace: state.requestNamespace });
    this.ownerName = `${kind}.${group} ${this.owner.namespace}/${this.owner.name}`;
    // The same for an object that was restored from a backup.
    this.requestName = this.buildName(this.ownerName);
  }

  buildName(text) {
    return `${this.provider}-${this.role}-${hashText(text)}`;
  }

  /** Name of the `Cluster`, with the uid: one of an earlier object of the same name may still be there. */
  clusterName(uid) {
    return this.buildName(`${this.ownerName} ${uid}`);
  }

  find([apiVersion, kind], name) {
    return reference(apiVersion, kind, name, this.namespace, PLATFORM);
  }

  /** Requests a cluster, and access to it. */
  requestCluster(permissions) {
    this.applyRequest(this.find(CLUSTER_REQUEST, this.requestName), { purpose: this.role });
    return this.requestAccess({ name: this.requestName, namespace: this.namespace }, permissions);
  }

  /** Requests access to the cluster of a `ClusterRequest`, and makes the `Cluster` object for it. */
  requestAccess({ name, namespace }, permissions) {
    const spec = { requestRef: { name, namespace }, token: { permissions } };
    const granted = this.applyRequest(this.find(ACCESS_REQUEST, this.requestName), spec);
    const credentials = granted.status.secretRef ?? {};
    if (!credentials.name) {
      throw wait("AccessRequestPending", `AccessRequest ${this.requestName} has no status.secretRef yet.`);
    }
    // Earlier versions of openmcp-operator write the namespace, too.
    if (credentials.namespace !== undefined && credentials.namespace !== this.namespace) {
      throw terminal("SecretInOtherNamespace",
        `AccessRequest ${this.requestName}: status.secretRef is in another namespace, where no Cluster can name it.`);
    }
    const cluster = this.clusterName(this.owner.uid);
    this.applyCluster(cluster, credentials.name);
    return { name: `${this.namespace}/${cluster}`, secret: secret(credentials.name, KUBECONFIG_KEY, this.namespace) };
  }

  /** Applies a request, and returns it when it is granted. */
  applyRequest(ref, spec) {
    const live = this.findOwn(ref);
    if (live?.metadata.deletionTimestamp) {
      // Another client deletes it. A cleanup uses the access as long as there is one.
      if (this.owner.deletionTimestamp) return checkGranted(ref, live);
      throw wait("Deprovisioning", describe(ref, " is being deleted, and is made anew after that."));
    }
    if (live) this.deleteFormerCluster(live);
    return checkGranted(ref, this.apply(ref, spec));
  }

  applyCluster(name, secretName) {
    const ref = this.find(CLUSTER, name);
    // One that is being deleted stays until its last user is gone, which is this object, and works until then.
    if (this.findOwn(ref)?.metadata.deletionTimestamp) return;
    const spec = { kubeconfigSecretRef: { name: secretName, key: KUBECONFIG_KEY } };
    if (this.owner.namespace !== this.namespace) spec.allowedNamespaces = [this.owner.namespace];
    this.apply(ref, spec);
  }

  apply({ gvk, name }, spec) {
    const metadata = {
      name, namespace: this.namespace, labels: { [OWNER_LABEL]: this.owner.uid },
      annotations: { [OWNER_ANNOTATION]: this.ownerName },
    };
    const object = { apiVersion: `${gvk.group}/${gvk.version}`, kind: gvk.kind, metadata, spec };
    return this.host.apply(object, { cluster: PLATFORM, force: true });
  }

  /** Deletes the `Cluster`, then the `AccessRequest`, and after that the `ClusterRequest`. */
  releaseAccess() {
    // The Cluster is not waited for: the host keeps it until this object is gone, which may need it for its cleanup.
    this.deleteOwn(this.find(CLUSTER, this.clusterName(this.owner.uid)));
    for (const kind of [ACCESS_REQUEST, CLUSTER_REQUEST]) {
      const ref = this.find(kind, this.requestName);
      if (!this.deleteOwn(ref)) throw wait("Deprovisioning", describe(ref, " is being deleted."));
    }
  }

  /** Deletes the `Cluster` of the owner before it was restored from a backup, whose uid is in its name and on the request. It
   * goes before the request gets the new uid, after which nothing would tell its name. The host keeps it for as long as the
   * inventory of the owner has objects on it. */
  deleteFormerCluster({ metadata }) {
    const uid = metadata.labels?.[OWNER_LABEL];
    if (uid !== undefined && uid !== this.owner.uid) this.deleteOwn(this.find(CLUSTER, this.clusterName(uid)));
  }

  /** Deletes an object unless it belongs to another owner. Returns true if nothing is left of it. */
  deleteOwn(ref) {
    const live = this.host.getMetadata(ref);
    if (!live || !this.isOwn(live)) return true;
    if (ref.gvk.kind !== "Cluster") this.deleteFormerCluster(live);
    if (live.metadata.deletionTimestamp) return false;
    // Not in the foreground: the AccessRequest would wait for the Secret that it owns, and the host keeps that until this
    // object is gone, which waits for the AccessRequest.
    this.host.delete(ref, { uid: live.metadata.uid });
    return !this.host.getMetadata(ref);
  }

  findOwn(ref) {
    const live = this.host.get(ref);
    if (live && !this.isOwn(live)) {
      throw terminal("NotOwned", describe(ref, " belongs to another owner. Delete it if that does not exist any more."));
    }
    return live;
  }

  isOwn({ metadata: { labels = {}, annotations = {} } }) {
    return labels[OWNER_LABEL] === this.owner.uid || annotations[OWNER_ANNOTATION] === this.ownerName;
  }
}

/** Returns a request that is granted in its current generation. */
function checkGranted(ref, live) {
  const { phase = "Pending", message = "", observedGeneration = 0 } = live.status ?? {};
  // A phase of an earlier generation says nothing about the current spec.
  const isCurrent = observedGeneration >= (live.metadata.generation ?? 0);
  if (isCurrent && phase === "Granted") return live;
  if (isCurrent && phase === "Denied") throw terminal(`${ref.gvk.kind}Denied`, describe(ref, ` is Denied. ${message}`).trimEnd());
  throw wait(`${ref.gvk.kind}Pending`, describe(ref, ` is not granted yet. ${message}`).trimEnd());
}

/** Deletes the objects in the inventory that belong to the owner, and waits until they are gone: on all clusters, since an
 * earlier version of the plugin may have requested another one. */
function releaseOwned(owner, host) {
  const left = [];
  for (const ref of listInventory(owner.annotations?.[INVENTORY_ANNOTATION] ?? "")) {
    const live = host.getMetadata(ref);
    if (!live) {
      // The host removes the entry.
      host.delete(ref);
      continue;
    }
    const { labels = {}, uid, deletionTimestamp } = live.metadata;
    // Like the host: an entry alone deletes nothing.
    if (labels[OWNER_UID_LABEL] !== owner.uid) continue;
    if (!deletionTimestamp) {
      host.delete(ref, { uid });
      if (!host.getMetadata(ref)) continue;
    }
    left.push(`${ref.gvk.kind}/${ref.name}`);
  }
  if (left.length) {
    throw wait("OwnedObjectsRemain", `Being deleted before the access to the cluster is revoked: ${left.join(" ")}`);
  }
}

/** Reads the entries of an inventory, each as `Deployment.v1.apps fleet/east apps/web`. */
function listInventory(text) {
  return text.split(", ").flatMap((entry) => {
    const parts = /^([^. ]+)\.([^. ]+)(?:\.([^ ]+))? ([^ ]+) ([^/ ]*)\/([^ ]+)$/.exec(entry);
    if (!parts) return [];
    const [, kind, version, group, cluster, namespace, name] = parts;
    return [reference(group ? `${group}/${version}` : version, kind, name, namespace || undefined, cluster)];
  });
}

/** Nanoseconds of each unit of a duration in Go's syntax. */
const UNITS = { h: 3600e9, m: 60e9, s: 1e9, ms: 1e6, us: 1e3, "µs": 1e3, ns: 1 };
/** Bound of a duration, which Go has as well. */
const MAX_NANOSECONDS = 2 ** 63;

/** Parses a duration in Go's syntax, such as `1h30m`. Returns milliseconds, or null for another text. */
function parseDuration(text) {
  if (typeof text !== "string" || !/^(?:(?:\d+\.?\d*|\.\d+)(?:h|ms|m|s|us|µs|ns))+$/.test(text)) return null;
  let nanoseconds = 0;
  for (const [, number, unit] of text.matchAll(/([\d.]+)([a-zµ]+)/g)) nanoseconds += Number(number) * UNITS[unit];
  return nanoseconds < MAX_NANOSECONDS ? Math.floor(nanoseconds / 1e6) : null;
}
