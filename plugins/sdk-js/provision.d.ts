/** Composition of what an object stands for out of steps that are provisioned in order and deprovisioned in reverse. */
import type { Host, KubernetesObject, Outcome, Reference, Substitution } from "./index.js";

/** A part of what an object stands for. Both functions are level-triggered: they may be called at any time and any number of
 * times, in any state that an interrupted call has left. */
export interface Part {
  /** Moves the part towards its desired state. It returns when that is reached, and throws a failure until then; `wait` for
   * something that takes its time is no error. */
  provision(host: Host): void;
  /** Removes the part. It returns when nothing is left of it, also when there never was anything, and throws `wait` while the
   * removal takes its time. */
  deprovision(host: Host): void;
}
/** A composition of steps. */
export interface StepTree {
  /** Provisions the steps. Returns an outcome that awaits a change and has a condition per step, or throws the failures of
   * the steps as one: its resolution and reason are those of the failure that takes precedence (terminal, denied, throttled,
   * retry, wait), its message has those of all failures with this precedence. */
  provision(host: Host): Outcome;
  /** Deprovisions the steps, in the reverse order. The outcome releases a deleted object. */
  deprovision(host: Host): Outcome;
}
/** Names a part. The name is the type of the condition that shows its state, in CamelCase, and occurs once in a tree. */
export function step(name: string, part: Part): StepTree;
/** Provisions one after the other, each after the one before it has succeeded, and deprovisions in the reverse order. */
export function serial(...trees: StepTree[]): StepTree;
/** Provisions and deprovisions all, also after one has failed: none waits for another. */
export function concurrent(...trees: StepTree[]): StepTree;
/** Provisions a tree while the condition holds, and deprovisions it while it does not. So a step that may have been
 * provisioned for an earlier spec stays in the tree. */
export function when(condition: unknown, tree: StepTree): StepTree;

export interface ResourceOptions {
  /** Condition that must be True for the current generation, such as `Available` of a Deployment. Without it and `readyIf`
   * the object is ready as soon as it is applied. */
  readyWhen?: string;
  /** Function of the whole object that returns whether it is ready, or throws a failure. */
  readyIf?(object: KubernetesObject): unknown;
  /** Applies it on another cluster: `namespace/name` of the `Cluster` object. The kind of the owner needs a finalizer. */
  cluster?: string;
  /** Takes over an object of the same name that does not belong to the owner, such as one that another tool has made. */
  adopt?: boolean;
  /** Inserts secrets into a `Secret`. */
  substitutions?: Substitution[];
}
/** Label with the uid of the owner, on objects in a namespace in which owner references to it are impossible. */
export const OWNER_LABEL: string;
/** A Kubernetes object that is applied, and deleted again. It belongs to its owner by the owner reference, or by
 * `OWNER_LABEL` where the owner is in another namespace. On another cluster it is an owned object in the inventory of the
 * host. An object of the same name that does not belong to it is neither changed (`NotOwned`) nor deleted. */
export function resource(owner: KubernetesObject["metadata"], object: KubernetesObject, options?: ResourceOptions): Part;
/** An object of another owner that must exist, and may have to be ready (`readyWhen` a condition) and to be held: not deleted
 * while the reconciled object uses it. It is not changed, and not deleted. */
export function dependency(ref: Reference, options?: { readyWhen?: string; held?: boolean }): Part;
/** Waits while Kubernetes deletes the dependents of an object, as `kubectl delete --cascade=foreground` asks for. A cleanup
 * that starts with it does not delete them at the same time. */
export function waitForForegroundDeletion(metadata: KubernetesObject["metadata"] & { finalizers?: string[] }): void;
