/** A host in memory for native tests of a plugin, run by `node --import ostler/register --test`. */
import type { Condition, Disposition, Reference } from "../index.js";

/** What comes after a reconcile that succeeded. */
export type Next = { tag: "await-change" } | { tag: "poll"; val: number | null } | { tag: "after"; val: number } | { tag: "at"; val: number };
/** The result of a reconcile that succeeded. */
export interface TestOutcome { conditions: Condition[]; status: any; next: Next }
/** The result of a reconcile that failed. */
export class TestFailure extends Error {
  resolution: { tag: "retry" | "wait" | "terminal" | "throttled" | "denied"; val?: any };
  reason: string; conditions: Condition[]; status: any;
}
/** The error of a message handler or of a life-cycle hook. */
export class TestHostError extends Error { tag: string; val: any }
/** A message to give to a handler. */
export interface TestDelivery {
  queue?: string; body?: string | Uint8Array; json?: any; exchange?: string; routingKey?: string; deliveryCount?: number;
  broker?: { cluster?: string | null; namespace?: string | null; name: string }; properties?: object;
}

/** A host in memory: a cluster, upstreams, and the record of what the plugin did. */
export class TestHost {
  constructor();
  /** Adds an object to the cluster, or replaces the one of that name. */
  put(object: object): this;
  /** Adds an object to another cluster, which is named as the plugin names it. */
  putOn(cluster: string, object: object): this;
  /** Removes an object from the cluster. */
  remove(ref: Reference): this;
  /** Hides an object from reads of the cache, as a watch that is behind does. Live reads return it. */
  hideFromCache(ref: Reference): this;
  /** Returns the current state of an object, or undefined. */
  object(ref: Reference): any;
  /** Returns the current state of all objects of a kind, on all clusters, by their names. */
  objects(apiVersion: string, kind: string): any[];
  /**
   * Sets the response to a request: this status and body, which is a text, bytes, or a value that is encoded as JSON. Further
   * calls for the same request add responses that are returned in turn; the last one stays.
   */
  answer(method: string, path: string, status: number, body?: any, headers?: Record<string, string>): this;
  /** Sets an error of the host as the result of a request. */
  answerError(method: string, path: string, tag: string, val?: any): this;
  /** Sets the events of a stream. */
  setStream(path: string, ...events: { id?: string; name: string; data: string }[]): this;
  /** Sets the digest of a key of a Secret; without one it removes the key. */
  setSecret(name: string, key: string, digest?: string): this;
  /** Sets the log of a container of a pod; the empty name is that of the only container. */
  setLog(pod: Reference, container: string, log: string): this;
  /** Sets the configuration of the plugin. */
  setConfig(config: any): this;
  /** Sets the time, in milliseconds since the Unix epoch. */
  setNow(milliseconds: number): this;
  /** Makes a function of the host, such as `kubernetes.apply`, fail as one that is not permitted. */
  deny(name: string): this;
  /** Makes a function of the host fail with an error of this tag; without one it works again. */
  fail(name: string, tag?: string, val?: any): this;
  /** Makes an object hold another one, as `listHolders` returns it. */
  addHolder(held: Reference, holder: Reference): this;
  /** Lets objects outside of the test have this many permits of a pool. */
  usePermits(pool: string, count: number): this;
  /** Returns the number of permits of a pool that objects of the test have. */
  permits(pool: string): number;
  /**
   * Reconciles an object as the host does, with the `reconciler` that the plugin exports; throws a `TestFailure`. The object need
   * not name its kind if the plugin reconciles one only.
   */
  reconcile(reconciler: object, object: object): TestOutcome;
  /** Cleans up an object as the host does. */
  cleanup(reconciler: object, object: object): TestOutcome;
  /** Gives a message to the `messages` that the plugin exports. */
  handle(messages: object, delivery: TestDelivery): Disposition;
  /** Calls `initialize` of the `lifecycle` that the plugin exports. */
  initialize(lifecycle: object): void;
  /** Calls `upgrade` of the `lifecycle` that the plugin exports, and returns the upgraded object, or undefined. */
  upgrade(lifecycle: object, object: object): any;
  /** The writes to the cluster, each as `apply Kind name`. */
  readonly writes: string[];
  /** The requests, each as `METHOD /path`. */
  readonly requests: string[];
  /** The whole requests. */
  readonly sent: any[];
  /** The Events. */
  readonly events: { type: "normal" | "warning"; reason: string; note: string }[];
  /** The log lines. */
  readonly logs: string[];
  /** The published messages. */
  readonly messages: any[];
  /** The checkpointed status fields. */
  readonly checkpoints: any[];
  /** The paths of the subscribed event streams. */
  readonly subscriptions: string[];
  /** The objects that the last reconcile holds, each as `Kind namespace/name`. */
  readonly held: string[];
  /** Clears the record of what the plugin did. */
  forget(): void;
}
