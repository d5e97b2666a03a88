// A host in memory for native tests of a plugin: `node --import ostler/register --test`. A test adds objects with `put` and HTTP
// responses with `answer`, calls the plugin as the host does, and then reads back its requests, writes and Events. A request
// without a response throws an error that names the request.
import { decode, encode, parseJson, stringifyJson } from "../runtime.js";
import { checkReady, findCondition, isBuiltIn } from "./readiness.js";
import { parseSelectors } from "./selectors.js";

const testing = globalThis[Symbol.for("ostler.testing")];
const OWNER_LABEL = "ostler.dev/owner-uid";
const DELETION_TIME = "2026-01-01T00:00:00Z";
const MASKED = { "true": "True", "false": "False", unknown: "Unknown" };

const parse = (bytes) => parseJson(decode(bytes));
const toBytes = (value) => encode(stringifyJson(value));
const copy = (value) => structuredClone(value);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const fail = (tag, val) => {
  throw { tag, val };
};

function gvkOf({ apiVersion = "", kind }) {
  const [version, group = ""] = apiVersion.split("/").reverse();
  return { group, version, kind };
}

const clusterOf = (cluster) => (!cluster || cluster === "in-cluster" ? "" : cluster);
const keyOf = ({ gvk, namespace, name, cluster }) =>
  JSON.stringify([gvk.group, gvk.kind, namespace ?? "", name, clusterOf(cluster)]);
const keyOn = (cluster, object) =>
  keyOf({ gvk: gvkOf(object), namespace: object.metadata?.namespace, name: object.metadata?.name ?? "", cluster });
const format = ({ gvk, namespace, name }) => `${gvk.kind} ${namespace ?? ""}/${name}`;
const on = (cluster) => (clusterOf(cluster) ? ` on ${cluster}` : "");
/** An entry of an inventory, such as `Deployment.v1.apps fleet/east apps/web`. */
const entryOf = ({ gvk: { group, version, kind }, namespace, name, cluster }) =>
  `${kind}.${version}${group && `.${group}`} ${clusterOf(cluster)} ${namespace ?? ""}/${name}`;

/** The result of a reconcile that failed. */
export class TestFailure extends Error {
  constructor({ resolution, reason, message, conditions, status }) {
    super(message);
    Object.assign(this, { resolution, reason, conditions, status: status && parse(status) });
  }
}

/** The error of a message handler or of a life-cycle hook. */
export class TestHostError extends Error {
  constructor({ tag, val }) {
    super(`${tag}: ${typeof val === "string" ? val : JSON.stringify(val)}`);
    Object.assign(this, { tag, val });
  }
}

/** A host in memory. */
export class TestHost {
  #objects = new Map();
  #uncached = new Set();
  #created = 0;
  /** The reference to the object being reconciled, as the objects that it owns have it. */
  #owner = { uid: "" };
  /** What an object owns on other clusters, by its uid. */
  #owned = new Map();
  #answers = new Map();
  #streams = new Map();
  #secrets = new Map();
  #failing = new Map();
  #cache = new Map();
  #containerLogs = new Map();
  #holders = new Map();
  #held = new Set();
  #heldBefore = new Set();
  #usedPermits = new Map();
  #permits = new Set();
  #requested = new Set();
  #config = {};
  #now = 0;
  /** The writes to the cluster, each as `apply Kind name`. */
  writes = [];
  /** The requests, as the plugin sent them. */
  sent = [];
  /** The Events, each with its `type`, `reason` and `note`. */
  events = [];
  /** The log lines. */
  logs = [];
  /** The published messages, each with its `broker`. */
  messages = [];
  /** The checkpointed status fields. */
  checkpoints = [];
  /** The paths of the subscribed event streams. */
  subscriptions = [];

  constructor() {
    if (!testing) throw new Error("Node was started without the functions of the host: run `node --import ostler/register --test`");
    testing.current = this.#functions();
  }

  /** Adds an object to the cluster, or replaces the one of that name. */
  put(object) {
    return this.putOn(null, object);
  }
  /** Adds an object to another cluster, which is named as the plugin names it. */
  putOn(cluster, object) {
    this.#objects.set(keyOn(cluster, object), copy(object));
    return this;
  }
  /** Removes an object from the cluster. */
  remove(ref) {
    this.#objects.delete(keyOf(ref));
    return this;
  }
  /** Hides an object from reads of the cache, as a watch that is behind does. Live reads return it. */
  hideFromCache(ref) {
    this.#uncached.add(keyOf(ref));
    return this;
  }
  /** Returns the current state of an object, or undefined. */
  object(ref) {
    return copy(this.#objects.get(keyOf(ref)));
  }
  /** Returns the current state of all objects of a kind, on all clusters, by their names. */
  objects(apiVersion, kind) {
    const { group } = gvkOf({ apiVersion, kind });
    return this.#sorted().filter(([key]) => key[0] === group && key[1] === kind).map(([, object]) => copy(object));
  }
  #sorted() {
    const compare = ([a], [b]) => a.map((part, i) => (part < b[i] ? -1 : part > b[i] ? 1 : 0)).find(Boolean) ?? 0;
    return [...this.#objects].map(([key, object]) => [JSON.parse(key), object]).sort(compare);
  }
  /**
   * Sets the response to a request: this status and body, which is a text, bytes, or a value that is encoded as JSON. Further calls
   * for the same request add responses that are returned in turn; the last one stays.
   */
  answer(method, path, status, body, headers = {}) {
    const bytes = body == null ? new Uint8Array() : typeof body === "string" ? encode(body) : body instanceof Uint8Array ? body : toBytes(body);
    const list = Object.entries(headers).map(([name, value]) => ({ name, value }));
    return this.#answer(method, path, () => ({ status, headers: list, body: bytes }));
  }
  /** Sets an error of the host as the result of a request: its `tag` and `val`. */
  answerError(method, path, tag, val) {
    return this.#answer(method, path, () => fail(tag, val));
  }
  #answer(method, path, make) {
    const name = `${method} ${path}`;
    this.#answers.set(name, [...(this.#answers.get(name) ?? []), make]);
    return this;
  }
  /** Sets the events of a stream, each with its `name` and `data`. */
  setStream(path, ...events) {
    this.#streams.set(path, events.map(({ id = null, name, data }) => ({ id, name, data })));
    return this;
  }
  /** Sets the digest of a key of a Secret; without one it removes the key. */
  setSecret(name, key, digest) {
    if (digest === undefined) this.#secrets.delete(`${name}/${key}`);
    else this.#secrets.set(`${name}/${key}`, digest);
    return this;
  }
  /** Sets the log of a container of a pod; the empty name is that of the only container. */
  setLog(pod, container, log) {
    this.#containerLogs.set(`${keyOf(pod)} ${container}`, log);
    return this;
  }
  /** Sets the configuration of the plugin. */
  setConfig(config) {
    this.#config = config;
    return this;
  }
  /** Sets the time, in milliseconds since the Unix epoch. */
  setNow(milliseconds) {
    this.#now = milliseconds;
    return this;
  }
  /** Makes a function of the host, such as `kubernetes.apply`, fail as one that is not permitted. */
  deny(name) {
    return this.fail(name, "denied", name);
  }
  /** Makes a function of the host fail with an error of this tag; without one it works again. */
  fail(name, tag, val = "") {
    if (tag === undefined) this.#failing.delete(name);
    else this.#failing.set(name, { tag, val });
    return this;
  }
  /** Makes an object hold another one, as `listHolders` returns it. */
  addHolder(held, holder) {
    const key = format(held);
    this.#holders.set(key, [...(this.#holders.get(key) ?? []), holder]);
    return this;
  }
  /** Lets objects outside of the test have this many permits of a pool. */
  usePermits(pool, count) {
    this.#usedPermits.set(pool, count);
    return this;
  }
  /** Returns the number of permits of a pool that objects of the test have. */
  permits(pool) {
    return [...this.#permits].filter((permit) => permit.startsWith(`${pool}\n`)).length;
  }
  /** Returns the objects that the last reconcile holds, each as `Kind namespace/name`. */
  get held() {
    return [...this.#held].sort();
  }
  /** The requests, each as `METHOD /path`. */
  get requests() {
    return this.sent.map(({ method, pathAndQuery }) => `${method.toUpperCase()} ${pathAndQuery}`);
  }
  /** Clears the record of what the plugin did. */
  forget() {
    for (const list of [this.writes, this.sent, this.events, this.logs, this.messages, this.checkpoints, this.subscriptions]) {
      list.length = 0;
    }
  }

  /**
   * Reconciles an object as the host does, with the `reconciler` that the plugin exports. Returns the conditions, the status and
   * what comes next; throws a `TestFailure`. The object need not name its kind if the plugin reconciles one only.
   */
  reconcile(reconciler, object) {
    return this.#call(reconciler, "reconcile", object);
  }
  /** Cleans up an object as the host does. */
  cleanup(reconciler, object) {
    return this.#call(reconciler, "cleanup", object);
  }
  #call(reconciler, step, given) {
    const object = copy(given);
    if (!object.kind) {
      const { kinds } = reconciler.describe();
      if (kinds.length !== 1) throw new Error(`the object names no kind, and the plugin reconciles ${kinds.length}`);
      const { group, version, kind } = kinds[0].gvk;
      Object.assign(object, { apiVersion: group ? `${group}/${version}` : version, kind });
    }
    const { name = "", namespace = null, uid = "" } = object.metadata ?? {};
    const owned = [...(this.#owned.get(uid) ?? [])].sort();
    if (owned.length) {
      object.metadata.annotations = { ...object.metadata.annotations, "ostler.dev/owned-objects": owned.join(", ") };
    }
    this.#owner = { apiVersion: object.apiVersion, kind: object.kind, name, uid, controller: true };
    for (const held of this.#held) this.#heldBefore.add(held);
    this.#held.clear();
    let succeeded = false;
    try {
      const ref = { gvk: gvkOf(object), cluster: null, namespace, name };
      const { conditions, status, next } = reconciler[step]({ object: toBytes(object), ref, attempt: 0, causes: ["change"] });
      succeeded = true;
      return { conditions, status: status && parse(status), next };
    } catch (e) {
      throw e?.resolution ? new TestFailure(e) : e;
    } finally {
      this.#settle(succeeded);
    }
  }
  /** Releases what a successful reconcile has not held or requested again. */
  #settle(succeeded) {
    if (!succeeded) for (const held of this.#heldBefore) this.#held.add(held);
    else {
      const isOurs = (permit) => permit.endsWith(`\n${this.#owner.uid}`);
      for (const permit of this.#permits) if (isOurs(permit) && !this.#requested.has(permit)) this.#permits.delete(permit);
    }
    this.#heldBefore.clear();
    this.#requested.clear();
  }
  /**
   * Gives a message to the `messages` that the plugin exports, and returns the disposition. `delivery` has a `queue` and a
   * `body` or `json`, and may have every other field of a delivery.
   */
  handle(messages, { queue = "", body, json, properties = {}, ...rest }) {
    const bytes = json !== undefined ? toBytes(json) : typeof body === "string" ? encode(body) : body ?? new Uint8Array();
    return this.#hook(() => messages.handle({
      broker: { cluster: null, namespace: "default", name: "broker" }, queue, exchange: "", routingKey: queue, body: bytes,
      deliveryCount: 0, ...rest,
      properties: { headers: [], persistent: true, ...properties },
    }));
  }

  /** Calls `initialize` of the `lifecycle` that the plugin exports. */
  initialize(lifecycle) {
    this.#hook(() => lifecycle.initialize());
  }
  /** Calls `upgrade` of the `lifecycle` that the plugin exports, and returns the upgraded object, or undefined. */
  upgrade(lifecycle, object) {
    const upgraded = this.#hook(() => lifecycle.upgrade(toBytes(object)));
    return upgraded ? parse(upgraded) : undefined;
  }
  #hook(run) {
    try {
      return run();
    } catch (e) {
      throw e?.tag ? new TestHostError(e) : e;
    }
  }

  #check(name) {
    const failure = this.#failing.get(name);
    if (failure) throw { ...failure };
  }

  /** The functions of the host, by interface. Each fails if the test wants it to. */
  #functions() {
    const checked = (interfaceName, functions) => Object.fromEntries(Object.entries(functions).map(([name, run]) => {
      const kebab = name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
      return [name, (...parameters) => {
        this.#check(`${interfaceName}.${kebab}`);
        return run(...parameters);
      }];
    }));
    const interfaces = {
      kubernetes: this.#kubernetes(),
      http: this.#http(),
      references: {
        hold: (ref) => this.#hold(ref),
        listHolders: (ref) => this.#holders.get(format(ref)) ?? [],
      },
      permits: {
        acquire: (pool, limit, held) => {
          const permit = `${pool}\n${this.#owner.uid}`;
          const used = (this.#usedPermits.get(pool) ?? 0) + this.permits(pool);
          const isGranted = held || this.#permits.has(permit) || used < limit;
          if (isGranted) for (const set of [this.#permits, this.#requested]) set.add(permit);
          return isGranted;
        },
        release: (pool) => {
          for (const set of [this.#permits, this.#requested]) set.delete(`${pool}\n${this.#owner.uid}`);
        },
      },
      messaging: { publish: (broker, message) => void this.messages.push({ broker: broker.name, ...message }) },
      status: { checkpoint: (fields) => void this.checkpoints.push(parse(fields)) },
      events: { emit: (type, reason, note) => void this.events.push({ type, reason, note }) },
      log: {
        write: (level, message) => {
          this.logs.push(message);
          testing.console[level === "trace" ? "debug" : level](message);
        },
      },
      metrics: { counter() {}, gauge() {} },
      clock: { now: () => BigInt(this.#now), remaining: () => 60_000n },
      config: { get: () => toBytes(this.#config) },
      cache: {
        get: (key) => this.#cache.get(key) ?? null,
        set: (key, value) => void this.#cache.set(key, value),
        delete: (key) => void this.#cache.delete(key),
      },
    };
    return Object.fromEntries(Object.entries(interfaces).map(([name, functions]) => [name, checked(name, functions)]));
  }

  #http() {
    const send = (request) => {
      this.sent.push(request);
      const name = this.requests.at(-1);
      const answers = this.#answers.get(name);
      if (!answers) throw new Error(`unexpected request: ${name}`);
      // The last answer stays.
      return (answers.length > 1 ? answers.shift() : answers[0])();
    };
    return {
      send,
      sendAll: (requests) => requests.map((request) => {
        try {
          this.#check("http.send");
          return { tag: "ok", val: send(request) };
        } catch (e) {
          if (e?.tag) return { tag: "err", val: e };
          throw e;
        }
      }),
      secretDigest: ({ name, key }) => this.#secrets.get(`${name}/${key}`) ?? null,
      subscribe: ({ pathAndQuery }) => void this.subscriptions.push(pathAndQuery),
      readEvents: ({ pathAndQuery, maxEvents }) => {
        const events = this.#streams.get(pathAndQuery);
        if (!events) throw new Error(`unexpected event stream: ${pathAndQuery}`);
        const skipped = maxEvents == null ? 0 : Math.max(0, events.length - maxEvents);
        return { events: events.slice(skipped), skipped: BigInt(skipped), complete: true };
      },
    };
  }

  #kubernetes() {
    const find = (ref) => this.#objects.get(keyOf(ref));
    const requireCondition = (ref, condition, status) => {
      const object = find(ref);
      const found = findCondition(object, condition);
      if (found?.status === MASKED[status]) return toBytes(object);
      const { reason = "", message = "" } = found ?? {};
      return fail("not-ready", { ref, condition, status, exists: object !== undefined, reason, message });
    };
    return {
      get: (ref, { live, projection }) => {
        const object = find(ref);
        return !object || (!live && this.#uncached.has(keyOf(ref))) ? null : toBytes(project(object, projection));
      },
      list: (gvk, options) => ({ items: this.#list(gvk, options), continueToken: null }),
      requireReady: (ref) => {
        const object = find(ref);
        if (!object || !isBuiltIn(ref.gvk.group)) return requireCondition(ref, "Ready", "true");
        const cause = checkReady(ref.gvk.group, ref.gvk.kind, object);
        return cause ? fail("not-ready", { ref, condition: "Ready", status: "true", exists: true, ...cause }) : toBytes(object);
      },
      requireCondition,
      apply: (bytes, { cluster, owned }) => this.#write("apply", bytes, cluster, owned),
      create: (bytes, { cluster, owned }) => this.#write("create", bytes, cluster, owned),
      patch: (ref, bytes, required) => this.#patch(ref, null, bytes, required),
      patchSubresource: (ref, subresource, bytes, required) => this.#patch(ref, subresource, bytes, required),
      delete: (ref, options) => this.#delete(ref, options),
      readLog: (pod, { container, tailLines }) => {
        if (!find(pod)) fail("not-found", `Pod ${pod.name} not found`);
        const log = this.#containerLogs.get(`${keyOf(pod)} ${container ?? ""}`);
        if (log === undefined) fail("invalid", `a container of pod ${pod.name} is waiting to start`);
        return log.match(/[^\n]*\n|[^\n]+/g)?.slice(-tailLines).join("") ?? "";
      },
    };
  }

  #list(gvk, { cluster, namespace, labelSelector, fieldSelector, projection, limit, live }) {
    let selects;
    try {
      selects = parseSelectors(labelSelector, fieldSelector);
    } catch (e) {
      fail("invalid", e.message);
    }
    const isWanted = ([[group, kind, within, name, where], object]) =>
      group === gvk.group && kind === gvk.kind && where === clusterOf(cluster) && (namespace == null || namespace === within) &&
      (live || !this.#uncached.has(JSON.stringify([group, kind, within, name, where]))) && selects(object);
    // There are no pages: a limit selects the first objects, and no token continues.
    const found = this.#sorted().filter(isWanted).slice(0, limit ?? undefined);
    return found.map(([, object]) => toBytes(project(object, projection)));
  }

  /** Applies or creates an object. */
  #write(verb, bytes, cluster, owned) {
    const object = readObject(bytes);
    const key = keyOn(cluster, object);
    const { name = "" } = object.metadata ?? {};
    const before = this.#objects.get(key);
    if (owned) this.#own(object, cluster, before);
    if (verb === "create" && before) fail("conflict", `${name} exists`);
    const after = mergeApplied(copy(before) ?? {}, object);
    // The host does not send a write that changes nothing.
    if (!before || stringifySorted(before) !== stringifySorted(after)) {
      after.metadata ??= {};
      if (!before) after.metadata.uid ??= `00000000-0000-4000-8000-${(++this.#created).toString(16).padStart(12, "0")}`;
      raiseVersion(after);
      this.writes.push(`${verb} ${object.kind} ${name}${owned ? " owned" : ""}${on(cluster)}`);
    }
    this.#objects.set(key, after);
    return toBytes(after);
  }

  /** Marks an object as one that the reconciled object owns. Owner references do not cross clusters. */
  #own(object, cluster, live) {
    const { uid } = this.#owner;
    object.metadata ??= {};
    object.metadata.labels = { ...object.metadata.labels, [OWNER_LABEL]: uid };
    if (!clusterOf(cluster)) {
      object.metadata.ownerReferences = [{ ...this.#owner }];
      return;
    }
    const mark = live?.metadata?.labels?.[OWNER_LABEL];
    if (mark !== undefined && mark !== uid) fail("conflict", `${object.metadata.name}: another object owns it`);
    const entry = entryOf({ gvk: gvkOf(object), ...object.metadata, cluster });
    this.#owned.set(uid, (this.#owned.get(uid) ?? new Set()).add(entry));
  }

  #patch(ref, subresource, bytes, required) {
    const patch = readObject(bytes);
    const found = this.#objects.get(keyOf(ref));
    if (!found) fail("not-found", format(ref));
    checkPreconditions(found, required);
    const object = copy(found);
    if (subresource === "resize") resizeContainers(object, patch);
    else mergePatch(object, patch);
    raiseVersion(object);
    this.writes.push(`patch ${ref.gvk.kind}${subresource ? `/${subresource}` : ""} ${ref.name}${on(ref.cluster)}`);
    this.#objects.set(keyOf(ref), object);
    return toBytes(object);
  }

  #delete(ref, { propagation, preconditions }) {
    const key = keyOf(ref);
    const found = this.#objects.get(key);
    if (found) checkPreconditions(found, preconditions);
    this.#objects.delete(key);
    if (found && propagation === "foreground") {
      const object = copy(found);
      const finalizers = new Set(object.metadata?.finalizers);
      if (this.#hasDependents(object)) finalizers.add("foregroundDeletion");
      // One with finalizers stays until they are gone.
      if (finalizers.size) {
        Object.assign(object.metadata, { finalizers: [...finalizers], deletionTimestamp: DELETION_TIME });
        this.#objects.set(key, object);
      }
    }
    if (!this.#objects.has(key)) this.#owned.get(this.#owner.uid)?.delete(entryOf(ref));
    if (found && !found.metadata?.deletionTimestamp) this.writes.push(`delete ${ref.gvk.kind} ${ref.name}${on(ref.cluster)}`);
  }

  /** Returns whether another object has an owner reference to this one. */
  #hasDependents({ metadata: { uid } = {} }) {
    const isOwned = ({ metadata }) => metadata?.ownerReferences?.some((owner) => owner.uid === uid);
    return Boolean(uid) && [...this.#objects.values()].some(isOwned);
  }

  #hold(ref) {
    const object = this.#objects.get(keyOf(ref));
    if (!object) fail("not-found", format(ref));
    // One that is held already may be held on.
    if (object.metadata?.deletionTimestamp && !this.#heldBefore.has(format(ref))) {
      fail("not-ready", { ref, condition: "Ready", status: "true", exists: true, reason: "", message: "It is being deleted." });
    }
    this.#held.add(format(ref));
  }
}

function readObject(bytes) {
  let object;
  try {
    object = parse(bytes);
  } catch (e) {
    fail("invalid", e.message);
  }
  return isObject(object) ? object : fail("invalid", "this is not an object");
}

/** Returns the part of an object that a read asks for. */
function project(object, { tag, val }) {
  if (tag === "full") return object;
  const { apiVersion, kind, metadata } = object;
  const part = copy({ apiVersion, kind, metadata });
  for (const field of val ?? []) copyPath(object, part, field.split("."));
  return part;
}

function copyPath(from, to, [first, ...rest]) {
  if (!isObject(from) || !Object.hasOwn(from, first)) return;
  if (!rest.length) to[first] = copy(from[first]);
  else {
    if (!isObject(to[first])) to[first] = {};
    copyPath(from[first], to[first], rest);
  }
}

function mergeApplied(into, from) {
  for (const [field, value] of Object.entries(from)) {
    into[field] = isObject(into[field]) && isObject(value) ? mergeApplied(into[field], value) : value;
  }
  return into;
}

/** Applies a JSON merge patch, which removes the fields that are null (RFC 7386). */
function mergePatch(into, patch) {
  for (const [field, value] of Object.entries(patch)) {
    if (value === null) delete into[field];
    else into[field] = isObject(value) ? mergePatch(isObject(into[field]) ? into[field] : {}, value) : value;
  }
  return into;
}

/** Sets the resources of containers, which is all that the subresource `resize` takes of a patch. */
function resizeContainers(pod, patch) {
  for (const container of pod.spec?.containers ?? []) {
    const resized = patch.spec?.containers?.find(({ name }) => name === container.name);
    if (resized) container.resources = resized.resources;
  }
}

/** Raises the resourceVersion of an object that has one, as each write does. */
function raiseVersion({ metadata }) {
  if (/^\d+$/.test(metadata?.resourceVersion)) metadata.resourceVersion = `${BigInt(metadata.resourceVersion) + 1n}`;
}

function checkPreconditions({ metadata = {} }, { uid, resourceVersion }) {
  for (const [field, required] of Object.entries({ uid, resourceVersion })) {
    if (required != null && metadata[field] !== required) {
      fail("conflict", `${field} is ${metadata[field]}, the precondition requires ${required}`);
    }
  }
}

/** JSON with sorted fields, by which objects are compared. */
function stringifySorted(value) {
  const sorted = (inner) => (Array.isArray(inner) ? inner.map(sorted) : !isObject(inner) ? inner
    : Object.fromEntries(Object.keys(inner).sort().map((field) => [field, sorted(inner[field])])));
  return stringifyJson(sorted(value));
}
