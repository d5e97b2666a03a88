/** The JavaScript SDK for Ostler plugins. */
export interface Condition { type: string; status: "yes" | "no" | "unknown"; reason: string; message: string }
export interface Reference {
  gvk: { group: string; version: string; kind: string };
  cluster: string | null; namespace: string | null; name: string;
}
export interface KubernetesObject {
  apiVersion: string; kind: string;
  metadata: { name: string; namespace?: string; generation?: number; uid?: string;
    labels?: Record<string, string>; annotations?: Record<string, string> };
  spec?: any; status?: any; data?: any;
}
declare class Result { with(condition: Condition): this; withStatus(status: object): this }
export class Outcome extends Result {}
export class Failure extends Result {}
export class HostError extends Error { tag: string; val: any; failure(): Failure }

export function yes(type: string, reason: string, message: string): Condition;
export function no(type: string, reason: string, message: string): Condition;
export function unknown(type: string, reason: string, message: string): Condition;
export function settled(): Outcome;
export function poll(every?: number): Outcome;
export function after(milliseconds: number): Outcome;
export function at(time: number): Outcome;
export function retry(reason: string, message: string): Failure;
/** Waits for something else; woken when that changes. */
export function waiting(reason: string, message: string): Failure;
export function parked(reason: string, message: string): Failure;
export function throttled(milliseconds: number, reason: string, message: string): Failure;
export function reference(apiVersion: string, kind: string, name: string, namespace?: string): Reference;

export interface RequestOptions {
  headers?: Record<string, string>; body?: string | Uint8Array; json?: any; timeout?: number; substitutions?: object[];
}
export class Response {
  status: number; ok: boolean; headers: Record<string, string>; body: Uint8Array;
  text(): string; json(): any;
}
export interface Upstream {
  send(method: string, path: string, options?: RequestOptions): Response;
  get(path: string, options?: RequestOptions): Response;
  put(path: string, options?: RequestOptions): Response;
  post(path: string, options?: RequestOptions): Response;
  delete(path: string, options?: RequestOptions): Response;
}
export interface Host {
  get(ref: Reference, options?: { fields?: string[]; live?: boolean }): KubernetesObject | null;
  list(apiVersion: string, kind: string, options?: { namespace?: string; labels?: string; fieldSelector?: string;
    fields?: string[]; live?: boolean }): KubernetesObject[];
  requireReady(ref: Reference): KubernetesObject;
  applyOwned(object: object): KubernetesObject;
  apply(object: object, options?: { force?: boolean }): KubernetesObject;
  create(object: object, options?: { owned?: boolean }): KubernetesObject;
  delete(ref: Reference, options?: { propagation?: string; uid?: string }): void;
  hold(ref: Reference): void;
  upstream(name: string, namespace?: string): Upstream;
  secretDigest(secret: string, key: string, namespace?: string): string | null;
  checkpoint(fields: object): void;
  event(reason: string, note: string): void;
  warn(reason: string, note: string): void;
  log(level: "trace" | "debug" | "info" | "warn" | "error", message: string, fields?: Record<string, unknown>): void;
  counter(name: string, delta?: number): void;
  gauge(name: string, value: number): void;
  now(): number;
  remaining(): number;
  config(): any;
  memo: { get(key: string): Uint8Array | null; put(key: string, value: Uint8Array): void; remove(key: string): void };
}
export const host: Host;

export interface Kind {
  group: string; version: string; kind: string; finalizer?: string; labelSelector?: string; phase?: boolean;
  reconcile(object: KubernetesObject, host: Host): Outcome;
  cleanup?(object: KubernetesObject, host: Host): Outcome;
}
export function plugin(plugin: { name: string; version: string; maxConcurrent?: number; kinds: Kind[] }): object;
