/** The JavaScript SDK for Ostler plugins. */
export type ConditionStatus = "true" | "false" | "unknown";
export interface Condition { type: string; status: ConditionStatus; reason: string; message: string }
export interface Reference {
  gvk: { group: string; version: string; kind: string };
  cluster: string | null; namespace: string | null; name: string;
}
export interface KubernetesObject<Spec = any, Status = any> {
  apiVersion: string; kind: string;
  metadata: { name: string; namespace?: string; generation?: number; uid?: string;
    resourceVersion?: string; labels?: Record<string, string>; annotations?: Record<string, string> };
  spec: Spec; status?: Status; data?: any;
}
declare class Result { with(condition: Condition): this; withStatus(status: object): this }
export class Outcome extends Result {}
export class Failure extends Result {}
export class HostError extends Error { tag: string; val: any; failure(): Failure }

export function trueCondition(type: string, reason: string, message: string): Condition;
export function falseCondition(type: string, reason: string, message: string): Condition;
export function unknownCondition(type: string, reason: string, message: string): Condition;
/** Succeeds; the object is reconciled again when it, or an object that was read, changes. */
export function awaitChange(): Outcome;
/** Succeeds; the object is reconciled again at this interval in milliseconds, or at the configured interval. */
export function poll(interval?: number): Outcome;
export function after(milliseconds: number): Outcome;
export function at(time: number): Outcome;
export function retry(reason: string, message: string): Failure;
/** Waits for something else, which is not an error; the object is reconciled again when that changes. */
export function wait(reason: string, message: string): Failure;
/** Fails permanently, until the spec, an object that was read, the configuration or the plugin changes. */
export function terminal(reason: string, message: string): Failure;
/**
 * Returns the failure of an error with a message for all who may read the object, to be thrown. The text of the error, which may
 * describe the inside of another system (CWE-209), is written to the log only. An error that is a bug stays as it is.
 */
export function withPublicMessage(error: unknown, message: string): unknown;
export function throttled(milliseconds: number, reason: string, message: string): Failure;
export function reference(apiVersion: string, kind: string, name: string, namespace?: string, cluster?: string): Reference;

export interface SecretKey { cluster: string | null; namespace: string | null; name: string; key: string }
export type Encoding = "plain" | "json-string" | "form" | "base64" | "xml";
export interface Substitution { placeholder: string; source: object; encoding: Encoding }
/** Returns a reference to a key of a Secret; without a namespace, in that of the reconciled object. */
export function secret(name: string, key: string, namespace?: string): SecretKey;
/** Replaces a placeholder of at least 16 bytes by the value of a secret. */
export function substitution(placeholder: string, secret: SecretKey, encoding?: Encoding): Substitution;

export interface RequestOptions {
  headers?: Record<string, string>; body?: string | Uint8Array; json?: any; timeout?: number;
  substitutions?: Substitution[];
}
export class Response {
  status: number; ok: boolean; headers: Record<string, string>; body: Uint8Array;
  text(): string; json(): any;
}
/** A pattern of events; see `eventMatch`. */
export interface EventMatch { name: string | null; data: { pointer: string; value: string } | null }
/** A pattern of events in a stream: of this name, and with this value at a JSON pointer into their data. Both are optional. */
export function eventMatch(name?: string, pointer?: string, value?: string): EventMatch;
/** The last events of a stream, and the number of selected events before these. */
export interface EventTail { events: { id: string | null; name: string; data: string }[]; skipped: number; complete: boolean }
export interface Upstream {
  send(method: string, path: string, options?: RequestOptions): Response;
  get(path: string, options?: RequestOptions): Response;
  put(path: string, options?: RequestOptions): Response;
  post(path: string, options?: RequestOptions): Response;
  patch(path: string, options?: RequestOptions): Response;
  delete(path: string, options?: RequestOptions): Response;
  /** Sends requests concurrently. Returns a response or an error for each, in the same order. */
  sendAll(requests: ({ method: string; path: string } & RequestOptions)[]): (Response | HostError)[];
  /** Reconciles the object on events of a stream that match `wake`, and ends after an event that matches `until`. */
  subscribe(path: string, options?: { wake?: EventMatch[]; until?: EventMatch[] }): void;
  /** Reads a stream up to an event that matches `until`, and returns the last of the selected events. */
  readEvents(path: string, options?: { select?: EventMatch[]; until?: EventMatch[]; maxEvents?: number; maxBytes?: number;
    timeout?: number }): EventTail;
  /** Publishes a message and waits for the confirmation of the broker. */
  publish(message: Message): void;
}
export type HeaderValue = { tag: "string" | "structure" | "bytes" | "boolean" | "integer" | "float" | "timestamp" | "empty"; val?: any };
export interface Message {
  exchange?: string; routingKey: string; body?: string | Uint8Array; json?: any; mandatory?: boolean;
  contentType?: string; contentEncoding?: string; headers?: { name: string; value: HeaderValue }[]; persistent?: boolean;
  priority?: number; correlationId?: string; replyTo?: string; expiration?: number; messageId?: string;
  timestamp?: number; type?: string; userId?: string; appId?: string;
}
/** The decision about a message. */
export type Disposition = { tag: "ack" } | { tag: "retry-after"; val: number } | { tag: "reject"; val: string };
/** The message is handled, and removed from its queue. */
export function ack(): Disposition;
/** The message is delivered again after this many milliseconds. */
export function retryAfter(milliseconds: number): Disposition;
/** The message can never be handled, and is dead-lettered with this reason. */
export function reject(reason: string): Disposition;
/** A message that was delivered. */
export interface Delivery {
  broker: { cluster?: string; namespace?: string; name: string };
  queue: string; exchange: string; routingKey: string; body: Uint8Array; deliveryCount: number;
  properties: {
    contentType?: string; contentEncoding?: string; headers: { name: string; value: HeaderValue }[];
    persistent: boolean; priority?: number; correlationId?: string; replyTo?: string; expiration?: number;
    messageId?: string; timestamp?: number; type?: string; userId?: string; appId?: string;
  };
  text(): string; json(): any;
  /** Returns the value of a header, or undefined. */
  header(name: string): any;
}
/** Builds the `messages` that a module exports; a message may be delivered more than once. */
export function messageHandler(handle: (delivery: Delivery, host: Host) => Disposition): object;
/**
 * Builds the `lifecycle` that a module exports: hooks that run before the first reconcile of a build. `initialize` must be
 * idempotent. `upgrade` returns the whole object with other labels or annotations, or nothing. The host repeats a hook that throws
 * an error of the host or a failure.
 */
export function lifecycleHooks(hooks: {
  initialize?: (host: Host) => void;
  upgrade?: (object: KubernetesObject, host: Host) => KubernetesObject | null | void;
}): object;
export interface Preconditions { uid?: string; resourceVersion?: string }
export interface Host {
  get(ref: Reference, options?: { fields?: string[]; live?: boolean }): KubernetesObject | null;
  getMetadata(ref: Reference, options?: { live?: boolean }): KubernetesObject | null;
  list(apiVersion: string, kind: string, options?: { cluster?: string; namespace?: string; labels?: string; fieldSelector?: string;
    fields?: string[]; live?: boolean }): KubernetesObject[];
  listMetadata(apiVersion: string, kind: string, options?: { cluster?: string; namespace?: string; labels?: string; fieldSelector?: string;
    live?: boolean }): KubernetesObject[];
  requireReady(ref: Reference): KubernetesObject;
  requireCondition(ref: Reference, type: string, status?: ConditionStatus): KubernetesObject;
  applyOwned(object: object): KubernetesObject;
  apply(object: object, options?: { cluster?: string; owned?: boolean; force?: boolean; substitutions?: Substitution[] }): KubernetesObject;
  create(object: object, options?: { cluster?: string; owned?: boolean; substitutions?: Substitution[] }): KubernetesObject;
  patch(ref: Reference, patch: object, required?: Preconditions): KubernetesObject;
  /** Applies a merge patch to a subresource that has the form of the object, such as `resize` of a Pod. */
  patchSubresource(ref: Reference, subresource: string, patch: object, required?: Preconditions): KubernetesObject;
  /** Returns the newest lines of the log of a container, 100 unless `tailLines` is given. It wakes nobody when the log grows. */
  readLog(pod: Reference, options?: { container?: string; tailLines?: number; previous?: boolean }): string;
  delete(ref: Reference, options?: { propagation?: "background" | "foreground" | "orphan" } & Preconditions): void;
  hold(ref: Reference): void;
  listHolders(ref: Reference): Reference[];
  /**
   * Requests a permit of a pool of `limit` permits. Returns false if the object waits for one: it is reconciled again when it
   * gets it. With `held` it has begun already what the permit is for, and gets it in any case. A permit that a successful
   * reconcile does not request again is released.
   */
  acquirePermit(pool: string, limit: number, options?: { held?: boolean }): boolean;
  /** Releases the permit of the object at once, or ends its wait for one. */
  releasePermit(pool: string): void;
  upstream(name: string, namespace?: string): Upstream;
  secretDigest(name: string, key: string, namespace?: string): string | null;
  checkpoint(fields: object): void;
  event(reason: string, note: string): void;
  warn(reason: string, note: string): void;
  log(level: "trace" | "debug" | "info" | "warn" | "error", message: string, fields?: Record<string, unknown>): void;
  counter(name: string, delta?: number): void;
  gauge(name: string, value: number): void;
  now(): number;
  remaining(): number;
  config(): any;
  cache: { get(key: string): Uint8Array | null; set(key: string, value: Uint8Array): void; delete(key: string): void };
}
export const host: Host;

/** A function that moves the observed state towards the desired state of an object. */
export type Reconcile<Spec = any, Status = any> = (object: KubernetesObject<Spec, Status>, host: Host) => Outcome;
/** A printer column. */
export interface Column { name: string; jsonPath: string; type?: string; description?: string; priority?: number }
/**
 * A kind with its reconciler. `ostler plugin crds` writes the CRD of a kind whose types `<Kind>Spec` and `<Kind>Status` the
 * module has; `plural`, `scope`, `shortNames`, `categories` and `columns` are for that alone.
 */
export interface Kind {
  group: string; version: string; kind: string; finalizer?: string; labelSelector?: string; phase?: boolean;
  plural?: string; scope?: "Namespaced" | "Cluster"; shortNames?: string[]; categories?: string[]; columns?: Column[];
  reconcile: Reconcile;
  cleanup?: Reconcile;
}
export function plugin(plugin: { name: string; version: string; maxConcurrent?: number; kinds: Kind[] }): object;
