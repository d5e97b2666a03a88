// The JavaScript SDK for Ostler plugins: Kubernetes objects are plain objects, and an error of the host becomes the
// fitting failure when nobody catches it.
import clock from "ostler:plugin/clock@0.1.0";
import config from "ostler:plugin/config@0.1.0";
import events from "ostler:plugin/events@0.1.0";
import http from "ostler:plugin/http@0.1.0";
import kubernetes from "ostler:plugin/kubernetes@0.1.0";
import log from "ostler:plugin/log@0.1.0";
import memo from "ostler:plugin/memo@0.1.0";
import metrics from "ostler:plugin/metrics@0.1.0";
import references from "ostler:plugin/references@0.1.0";
import status from "ostler:plugin/status@0.1.0";
import { decode, encode } from "./runtime.js";

const parse = (bytes) => JSON.parse(decode(bytes));
const json = (value) => encode(JSON.stringify(value));
const given = (value) => value ?? null;

const condition = (status) => (type, reason, message) => ({ type, status, reason, message });
export const yes = condition("yes");
export const no = condition("no");
export const unknown = condition("unknown");

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

/** A reconcile that did what it could. */
export class Outcome extends Result {}
export const settled = () => new Outcome({ next: { tag: "settled" } });
/** Look again every so many milliseconds; without, at the configured interval. */
export const poll = (every) => new Outcome({ next: { tag: "poll", val: given(every) } });
export const after = (milliseconds) => new Outcome({ next: { tag: "after", val: milliseconds } });
export const at = (time) => new Outcome({ next: { tag: "at", val: time } });

/** To be thrown: a reconcile that did not succeed. */
export class Failure extends Result {}
const failure = (tag, reason, message, val) => new Failure({ resolution: { tag, val }, reason, message });
export const retry = (reason, message) => failure("retry", reason, message);
export const waiting = (reason, message) => failure("yield", reason, message);
export const parked = (reason, message) => failure("parked", reason, message);
export const throttled = (milliseconds, reason, message) => failure("throttled", reason, message, milliseconds);

/** Why the host did not do what it was asked. */
export class HostError extends Error {
  constructor({ tag, val }) {
    super(text(tag, val));
    Object.assign(this, { tag, val });
  }
  failure() {
    switch (this.tag) {
      case "denied": return failure("denied", "PermissionDenied", this.message, this.val);
      case "not-found": return waiting("NotFound", this.message);
      case "conflict": return retry("Conflict", this.message);
      case "invalid": return parked("Invalid", this.message);
      case "throttled": return throttled(this.val, "Throttled", this.message);
      case "not-ready": return waiting("DependencyNotReady", this.message);
      case "budget": return retry("BudgetExceeded", this.message);
      case "unsupported": return parked("Unsupported", this.message);
      default: return retry("Unavailable", this.message);
    }
  }
}

function text(tag, val) {
  switch (tag) {
    case "denied": return `Not permitted: ${val}`;
    case "not-found": return `Not found: ${val}`;
    case "budget": return `A limit of this reconcile is used up: ${val}`;
    case "unsupported": return `The host does not offer ${val}`;
    case "throttled": return "Asked to come back later.";
    case "not-ready": {
      const name = `${val.ref.gvk.kind} ${val.ref.name}`;
      if (!val.exists) return `${name} does not exist.`;
      return val.message ? `${name} is not Ready: ${val.message}` : `${name} is not Ready yet.`;
    }
    default: return val;
  }
}

/** A call to the host; what it throws is of the contract, until here. */
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

/** Names an object. */
export function reference(apiVersion, kind, name, namespace) {
  const [version, group = ""] = apiVersion.split("/").reverse();
  return { gvk: { group, version, kind }, cluster: null, namespace: given(namespace), name };
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

/** A named upstream; without a namespace, in that of the reconciled object. */
class Upstream {
  constructor(name, namespace) {
    this.upstream = { namespace: given(namespace), name };
  }
  /** Any HTTP status is an answer. `body` is a text or bytes; `json` a value. */
  send(method, path, { headers = {}, body, json: value, substitutions = [], timeout = 0 } = {}) {
    if (value !== undefined) [body, headers] = [json(value), { "Content-Type": "application/json", ...headers }];
    return new Response(call(http.send, {
      upstream: this.upstream, method, pathAndQuery: path, timeout, substitutions,
      headers: Object.entries(headers).map(([name, value]) => ({ name, value })),
      body: typeof body === "string" ? encode(body) : given(body),
    }));
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
  delete(path, options) {
    return this.send("DELETE", path, options);
  }
}

/** What a reconcile can do. */
export const host = {
  get(ref, { fields = [], live = false } = {}) {
    const found = call(kubernetes.get, ref, { live, fields });
    return found && parse(found);
  },
  list(apiVersion, kind, { namespace, labels, fieldSelector, fields = [], live = false } = {}) {
    const { gvk } = reference(apiVersion, kind);
    const options = {
      cluster: null, namespace: given(namespace), labelSelector: given(labels), fieldSelector: given(fieldSelector),
      fields, limit: 0, continueToken: null, live,
    };
    const items = [];
    do {
      const page = call(kubernetes.list, gvk, options);
      items.push(...page.items.map(parse));
      options.continueToken = page.continueToken;
    } while (options.continueToken);
    return items;
  },
  requireReady: (ref) => parse(call(kubernetes.requireReady, ref)),
  /** Applies the fields given, to an object that goes with the reconciled one. */
  applyOwned: (object) => parse(call(kubernetes.apply, json(object), { owned: true, force: true })),
  apply: (object, { force = false } = {}) => parse(call(kubernetes.apply, json(object), { owned: false, force })),
  create: (object, { owned = false } = {}) => parse(call(kubernetes.create, json(object), { owned, force: false })),
  delete: (ref, { propagation, uid } = {}) =>
    call(kubernetes.delete, ref, { propagation: given(propagation), uid: given(uid) }),
  hold: (ref) => call(references.hold, ref),
  upstream: (name, namespace) => new Upstream(name, namespace),
  secretDigest: (secret, key, namespace) => call(http.secretDigest, given(namespace), secret, key),
  checkpoint: (fields) => call(status.checkpoint, json(fields)),
  event: (reason, note) => events.emit("normal", reason, note),
  warn: (reason, note) => events.emit("warning", reason, note),
  log: (level, message, fields = {}) => log.write(level, message, Object.entries(fields).map(([k, v]) => [k, `${v}`])),
  counter: (name, delta = 1) => metrics.counter(name, delta),
  gauge: (name, value) => metrics.gauge(name, value),
  now: () => Number(clock.now()),
  remaining: () => Number(clock.remaining()),
  config: () => parse(config.get()),
  memo: { get: (key) => memo.get(key), put: (key, value) => call(memo.put, key, value), remove: (key) => memo.remove(key) },
};

/** What a module exports as `reconciler`: a plugin of kinds, each with `reconcile(object, host)` and maybe `cleanup`. */
export function plugin({ name, version, maxConcurrent = 0, kinds }) {
  const run = (step) => (request) => {
    const { gvk } = request.ref;
    const kind = kinds.find((k) => k.group === gvk.group && k.kind === gvk.kind);
    if (!kind) throw parked("UnknownKind", `${gvk.kind} is not a kind of this plugin.`);
    try {
      return step(kind)(parse(request.object), host, request);
    } catch (e) {
      if (e instanceof Failure) throw e;
      if (e instanceof HostError) throw e.failure();
      // A bug: it ends the instance, as a panic does; what it says goes to the log first.
      log.write("error", `${e}\n${e?.stack ?? ""}`.trim(), []);
      throw e;
    }
  };
  return {
    describe: () => ({
      name, version, maxConcurrent,
      kinds: kinds.map(({ group, version, kind, finalizer, labelSelector, phase = false }) => ({
        gvk: { group, version, kind }, finalizer: given(finalizer), labelSelector: given(labelSelector), phase,
      })),
    }),
    reconcile: run((kind) => kind.reconcile),
    cleanup: run((kind) => kind.cleanup ?? settled),
  };
}
