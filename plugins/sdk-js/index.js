// The JavaScript SDK for Ostler plugins. Kubernetes objects are plain objects, and an error of the host becomes the
// fitting failure when the plugin does not catch it.
import cache from "ostler:plugin/cache@0.1.0";
import clock from "ostler:plugin/clock@0.1.0";
import config from "ostler:plugin/config@0.1.0";
import events from "ostler:plugin/events@0.1.0";
import http from "ostler:plugin/http@0.1.0";
import kubernetes from "ostler:plugin/kubernetes@0.1.0";
import log from "ostler:plugin/log@0.1.0";
import messaging from "ostler:plugin/messaging@0.1.0";
import metrics from "ostler:plugin/metrics@0.1.0";
import permits from "ostler:plugin/permits@0.1.0";
import references from "ostler:plugin/references@0.1.0";
import status from "ostler:plugin/status@0.1.0";
import { decode, encode, parseJson, stringifyJson } from "./runtime.js";

const parse = (bytes) => parseJson(decode(bytes));
const json = (value) => encode(stringifyJson(value));
const given = (value) => value ?? null;

const condition = (status) => (type, reason, message) => ({ type, status, reason, message });
export const trueCondition = condition("true");
export const falseCondition = condition("false");
export const unknownCondition = condition("unknown");

class Result {
  constructor(fields) {
    Object.assign(this, { conditions: [], status: null }, fields);
  }
  with(condition) {
    this.conditions.push(condition);
    return this;
  }
  withStatus(status) {
    this.status = json(status);
    return this;
  }
}

/** The result of a reconcile that succeeded. */
export class Outcome extends Result {}
/** Succeeds; the object is reconciled again when it, or an object that was read, changes. */
export const awaitChange = () => new Outcome({ next: { tag: "await-change" } });
/** Succeeds; the object is reconciled again at this interval in milliseconds, or at the configured interval. */
export const poll = (interval) => new Outcome({ next: { tag: "poll", val: given(interval) } });
export const after = (milliseconds) => new Outcome({ next: { tag: "after", val: milliseconds } });
export const at = (time) => new Outcome({ next: { tag: "at", val: time } });

/** The result of a reconcile that failed, to be thrown. */
export class Failure extends Result {}
const failure = (tag, reason, message, val) => new Failure({ resolution: { tag, val }, reason, message });
export const retry = (reason, message) => failure("retry", reason, message);
/** Waits for something else, which is not an error; the object is reconciled again when that changes. */
export const wait = (reason, message) => failure("wait", reason, message);
/** Fails permanently, until the spec, an object that was read, the configuration or the plugin changes. */
export const terminal = (reason, message) => failure("terminal", reason, message);
export const throttled = (milliseconds, reason, message) => failure("throttled", reason, message, milliseconds);

/** The error of a host function. */
export class HostError extends Error {
  constructor({ tag, val }) {
    super(text(tag, val));
    Object.assign(this, { tag, val });
  }
  failure() {
    switch (this.tag) {
      case "denied": return failure("denied", "PermissionDenied", this.message, this.val);
      case "not-found": return wait("NotFound", this.message);
      case "conflict": return retry("Conflict", this.message);
      case "invalid": return terminal("Invalid", this.message);
      case "throttled": return throttled(this.val, "Throttled", this.message);
      case "not-ready": return wait("DependencyNotReady", this.message);
      case "limit-exceeded": return retry("LimitExceeded", this.message);
      case "unsupported": return terminal("Unsupported", this.message);
      default: return retry("Unavailable", this.message);
    }
  }
}

/**
 * Returns the failure of an error with a message for all who may read the object, to be thrown. The text of the error, which may
 * describe the inside of another system (CWE-209), is written to the log only. An error that is a bug stays as it is.
 */
export function withPublicMessage(error, message) {
  const failed = error instanceof HostError ? error.failure() : error;
  if (!(failed instanceof Failure)) return error;
  log.write(failed.resolution.tag === "wait" ? "info" : "warn", failed.message, [["public_message", message]]);
  return new Failure({ ...failed, message });
}

function text(tag, val) {
  switch (tag) {
    case "denied": return `Not permitted: ${val}`;
    case "not-found": return `Not found: ${val}`;
    case "limit-exceeded": return `A limit of this reconcile is used up: ${val}`;
    case "unsupported": return `The host does not offer ${val}`;
    case "throttled": return "The other side asked for fewer requests.";
    case "not-ready": {
      const name = `${val.ref.gvk.kind} ${val.ref.name}`;
      if (!val.exists) return `${name} does not exist.`;
      const required = val.status === "true" ? val.condition : `${val.condition}=${val.status === "false" ? "False" : "Unknown"}`;
      return val.message ? `${name} is not ${required}: ${val.message}` : `${name} is not ${required} yet.`;
    }
    default: return val;
  }
}

/** Calls a host function and converts the error that it throws. */
function call(f, ...parameters) {
  try {
    return f(...parameters);
  } catch (e) {
    throw wrapped(e);
  }
}

function wrapped(e) {
  const error = e?.tag ? e : e?.payload ?? e;
  return error?.tag ? new HostError(error) : e;
}

/** Returns a reference to an object. */
export function reference(apiVersion, kind, name, namespace, cluster) {
  const [version, group = ""] = apiVersion.split("/").reverse();
  return { gvk: { group, version, kind }, cluster: given(cluster), namespace: given(namespace), name };
}

export class Response {
  constructor({ status, headers, body }) {
    Object.assign(this, { status, body, headers: Object.fromEntries(headers.map((h) => [h.name, h.value])) });
  }
  get ok() {
    return this.status >= 200 && this.status < 300;
  }
  text() {
    return decode(this.body);
  }
  json() {
    return parse(this.body);
  }
}

/** Returns a reference to a key of a Secret; without a namespace, in that of the reconciled object. */
export const secret = (name, key, namespace) => ({ cluster: null, namespace: given(namespace), name, key });

/** Replaces a placeholder of at least 16 bytes by the value of a secret. */
export const substitution = (placeholder, secret, encoding = "plain") =>
  ({ placeholder, source: { tag: "key", val: secret }, encoding });

const properties = (set) => ({
  contentType: null, contentEncoding: null, headers: [], persistent: true, priority: null, correlationId: null,
  replyTo: null, expiration: null, messageId: null, timestamp: null, type: null, userId: null, appId: null, ...set,
});

/** A pattern of events in a stream: of this name, and with this value at a JSON pointer into their data. Both are optional. */
export const eventMatch = (name, pointer, value) =>
  ({ name: given(name), data: pointer === undefined ? null : { pointer, value } });

/** A named upstream; without a namespace, in that of the reconciled object. */
class Upstream {
  constructor(name, namespace) {
    this.upstream = { cluster: null, namespace: given(namespace), name };
  }
  #request(method, path, { headers = {}, body, json: value, substitutions = [], timeout } = {}) {
    if (value !== undefined) [body, headers] = [json(value), { "Content-Type": "application/json", ...headers }];
    return {
      upstream: this.upstream, method: method.toLowerCase(), pathAndQuery: path, timeout: given(timeout), substitutions,
      headers: Object.entries(headers).map(([name, value]) => ({ name, value })),
      body: typeof body === "string" ? encode(body) : given(body),
    };
  }
  /** A response with any HTTP status is a success. `body` is a text or bytes; `json` a value. */
  send(method, path, options) {
    return new Response(call(http.send, this.#request(method, path, options)));
  }
  /** Sends requests concurrently. Returns a response or an error for each, in the same order. */
  sendAll(requests) {
    const sent = requests.map(({ method, path, ...options }) => this.#request(method, path, options));
    return http.sendAll(sent).map(({ tag, val }) => (tag === "ok" ? new Response(val) : new HostError(val)));
  }
  /**
   * Reconciles the object on events of a stream (server-sent events) that match `wake`, and ends the subscription after
   * an event that matches `until`. Subscribe first, then read: a change in between then causes a reconcile.
   */
  subscribe(path, { wake = [], until = [] } = {}) {
    call(http.subscribe, { upstream: this.upstream, pathAndQuery: path, wake, until });
  }
  /** Reads a stream up to an event that matches `until`, and returns the last of the selected events. */
  readEvents(path, { select = [], until = [], maxEvents, maxBytes, timeout } = {}) {
    const tail = call(http.readEvents, {
      upstream: this.upstream, pathAndQuery: path, select, until, maxEvents: given(maxEvents), maxBytes: given(maxBytes),
      timeout: given(timeout),
    });
    return { ...tail, skipped: number(tail.skipped) };
  }
  get(path, options) {
    return this.send("GET", path, options);
  }
  put(path, options) {
    return this.send("PUT", path, options);
  }
  post(path, options) {
    return this.send("POST", path, options);
  }
  patch(path, options) {
    return this.send("PATCH", path, options);
  }
  delete(path, options) {
    return this.send("DELETE", path, options);
  }
  /** Publishes a message and waits for the confirmation of the broker. `body` is a text or bytes; `json` a value. */
  publish({ exchange = "", routingKey, body, json: value, mandatory = true, ...rest }) {
    if (value !== undefined) [body, rest] = [json(value), { contentType: "application/json", ...rest }];
    call(messaging.publish, this.upstream, {
      exchange, routingKey, mandatory, properties: properties(rest),
      body: typeof body === "string" ? encode(body) : body,
    });
  }
}

const projection = (fields) => (fields.length ? { tag: "fields", val: fields } : { tag: "full" });
const METADATA = { tag: "metadata" };
const preconditions = ({ uid, resourceVersion } = {}) => ({ uid: given(uid), resourceVersion: given(resourceVersion) });

function list(apiVersion, kind, projection, { cluster, namespace, labels, fieldSelector, live = false }) {
  const { gvk } = reference(apiVersion, kind);
  const options = {
    cluster: given(cluster), namespace: given(namespace), labelSelector: given(labels),
    fieldSelector: given(fieldSelector), projection, limit: null, continueToken: null, live,
  };
  const items = [];
  do {
    const page = call(kubernetes.list, gvk, options);
    items.push(...page.items.map(parse));
    options.continueToken = page.continueToken;
  } while (options.continueToken);
  return items;
}

/** The host functions. */
export const host = {
  get(ref, { fields = [], live = false } = {}) {
    const found = call(kubernetes.get, ref, { live, projection: projection(fields) });
    return found && parse(found);
  },
  /** Gets the apiVersion, kind and metadata of an object. */
  getMetadata(ref, { live = false } = {}) {
    const found = call(kubernetes.get, ref, { live, projection: METADATA });
    return found && parse(found);
  },
  list: (apiVersion, kind, { fields = [], ...options } = {}) => list(apiVersion, kind, projection(fields), options),
  /** Lists the apiVersion, kind and metadata of objects. */
  listMetadata: (apiVersion, kind, options = {}) => list(apiVersion, kind, METADATA, options),
  requireReady: (ref) => parse(call(kubernetes.requireReady, ref)),
  /** Gets an object whose condition of this type has this status: `true`, `false` or `unknown`. */
  requireCondition: (ref, type, status = "true") => parse(call(kubernetes.requireCondition, ref, type, `${status}`)),
  /** Applies the given fields to an object that the reconciled object owns. */
  applyOwned: (object) => host.apply(object, { owned: true, force: true }),
  apply: (object, { cluster, owned = false, force = false, substitutions = [] } = {}) =>
    parse(call(kubernetes.apply, json(object), { cluster: given(cluster), owned, force, substitutions })),
  create: (object, { cluster, owned = false, substitutions = [] } = {}) =>
    parse(call(kubernetes.create, json(object), { cluster: given(cluster), owned, substitutions })),
  /** Applies a JSON merge patch (RFC 7386); `required` has a `uid` or a `resourceVersion`, or both. */
  patch: (ref, patch, required) => parse(call(kubernetes.patch, ref, json(patch), preconditions(required))),
  /** Applies a merge patch to a subresource that has the form of the object, such as `resize` of a Pod. */
  patchSubresource: (ref, subresource, patch, required) =>
    parse(call(kubernetes.patchSubresource, ref, subresource, json(patch), preconditions(required))),
  /** Returns the newest lines of the log of a container. It wakes nobody when the log grows. */
  readLog: (pod, { container, tailLines = 100, previous = false } = {}) =>
    call(kubernetes.readLog, pod, { container: given(container), tailLines, previous }),
  delete: (ref, { propagation = "background", ...required } = {}) =>
    call(kubernetes.delete, ref, { propagation, preconditions: preconditions(required) }),
  hold: (ref) => call(references.hold, ref),
  listHolders: (ref) => call(references.listHolders, ref),
  /** Requests a permit of a pool of `limit` permits, and returns false if the object waits for one. */
  acquirePermit: (pool, limit, { held = false } = {}) => call(permits.acquire, pool, limit, held),
  /** Releases the permit of the object at once, or ends its wait for one. */
  releasePermit: (pool) => permits.release(pool),
  upstream: (name, namespace) => new Upstream(name, namespace),
  secretDigest: (name, key, namespace) => call(http.secretDigest, secret(name, key, namespace)),
  checkpoint: (fields) => call(status.checkpoint, json(fields)),
  event: (reason, note) => events.emit("normal", reason, note),
  warn: (reason, note) => events.emit("warning", reason, note),
  log: (level, message, fields = {}) => log.write(level, message, Object.entries(fields).map(([k, v]) => [k, `${v}`])),
  counter: (name, delta = 1) => metrics.counter(name, delta),
  gauge: (name, value) => metrics.gauge(name, value),
  now: () => Number(clock.now()),
  remaining: () => Number(clock.remaining()),
  config: () => parse(config.get()),
  cache: { get: (key) => cache.get(key), set: (key, value) => call(cache.set, key, value), delete: (key) => cache.delete(key) },
};

/** The message is handled, and removed from its queue. */
export const ack = () => ({ tag: "ack" });
/** The message is delivered again after this many milliseconds. */
export const retryAfter = (milliseconds) => ({ tag: "retry-after", val: milliseconds });
/** The message can never be handled, and is dead-lettered with this reason. */
export const reject = (reason) => ({ tag: "reject", val: reason });

// Integers of 64 bits are BigInt in the contract.
const number = (value) => (typeof value === "bigint" ? Number(value) : value);

/** A message that was delivered. */
class Delivery {
  constructor({ properties, ...fields }) {
    const { expiration, timestamp } = properties;
    Object.assign(this, fields, {
      properties: { ...properties, expiration: number(expiration), timestamp: number(timestamp) },
    });
  }
  text() {
    return decode(this.body);
  }
  json() {
    return parse(this.body);
  }
  /** Returns the value of a header, or undefined. */
  header(name) {
    return number(this.properties.headers.find((header) => header.name === name)?.value.val);
  }
}

/**
 * Builds the `messages` that a module exports: `handle(delivery, host)` handles one message, which may be delivered more
 * than once. It may create and apply objects and publish messages. After an error of the host the message is delivered
 * again with backoff; an error never dead-letters it.
 */
export function messageHandler(handle) {
  return {
    handle(delivery) {
      try {
        return handle(new Delivery(delivery), host);
      } catch (e) {
        if (e instanceof HostError) throw { tag: e.tag, val: e.val };
        logBug(e);
        throw e;
      }
    },
  };
}

/**
 * Builds the `lifecycle` that a module exports. `initialize(host)` prepares the plugin before the first reconcile, whenever a host
 * becomes the leader or loads another build; it must be idempotent, and there is no reconciled object: references need a
 * namespace. `upgrade(object, host)` upgrades an object that an earlier version stored, and returns the whole object, or nothing
 * if there is nothing to change; only labels and annotations may differ. The objects of the plugin wait until the hooks have
 * succeeded: the host repeats one that throws an error of the host or a failure.
 */
export function lifecycleHooks({ initialize, upgrade }) {
  const run = (step) => {
    try {
      return step();
    } catch (e) {
      if (e instanceof HostError) throw { tag: e.tag, val: e.val };
      if (e instanceof Failure) throw { tag: "unavailable", val: e.message };
      logBug(e);
      throw e;
    }
  };
  return {
    initialize: () => run(() => void initialize?.(host)),
    upgrade: (object) => run(() => {
      const upgraded = upgrade?.(parse(object), host);
      return upgraded ? json(upgraded) : null;
    }),
  };
}

/** Reports an exception that is a bug: it ends the instance, as a panic does. The host writes message and location into the
 * condition. */
function logBug(e) {
  const stack = `${e?.stack ?? ""}`.trim();
  const frames = stack.match(/[^\s()]+\.m?js:\d+/g) ?? [];
  const location = frames.find((frame) => !frame.includes("node_modules/"))?.replace(/^\//, "") ?? "";
  log.write("error", `${e}`, [["exception.location", location], ["exception.stacktrace", stack]]);
}

/** Returns what a reconciler has returned. Anything else than an outcome would trap without a message. */
function checkOutcome(result) {
  if (result instanceof Outcome) return result;
  const found = result?.constructor?.name ?? `${result}`;
  throw new TypeError(`the reconciler returned ${found}, not an Outcome: return awaitChange(), or throw a failure`);
}

/** Builds the `reconciler` that a module exports: kinds, each with `reconcile(object, host)` and optionally `cleanup`. */
export function plugin({ name, version, maxConcurrent, kinds }) {
  const run = (step) => (request) => {
    const { gvk } = request.ref;
    const kind = kinds.find((k) => k.group === gvk.group && k.kind === gvk.kind);
    if (!kind) throw terminal("UnknownKind", `${gvk.kind} is not a kind of this plugin.`);
    try {
      return checkOutcome(step(kind)(parse(request.object), host, request));
    } catch (e) {
      if (e instanceof Failure) throw e;
      if (e instanceof HostError) throw e.failure();
      logBug(e);
      throw e;
    }
  };
  return {
    describe: () => ({
      name, version, maxConcurrent: given(maxConcurrent),
      kinds: kinds.map(({ group, version, kind, finalizer, labelSelector, phase = false }) => ({
        gvk: { group, version, kind }, finalizer: given(finalizer), labelSelector: given(labelSelector), phase,
      })),
    }),
    reconcile: run((kind) => kind.reconcile),
    cleanup: run((kind) => kind.cleanup ?? awaitChange),
  };
}
