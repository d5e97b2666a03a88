// The host in memory: its functions have the results that they have with the mock of the Rust SDK.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { awaitChange, host as functions, HostError, lifecycleHooks, plugin, retry, trueCondition } from "./index.js";
import { TestHost } from "./testing/host.js";
import { parseJson, stringifyJson } from "./runtime.js";

const functionsOf = (name) => globalThis[Symbol.for("ostler.testing")].interfaces[name];
const [kubernetes, references, permits, http, config, clock] =
  ["kubernetes", "references", "permits", "http", "config", "clock"].map(functionsOf);
const encode = (text) => new TextEncoder().encode(text);
const parse = (bytes) => parseJson(new TextDecoder().decode(bytes));

const reference = ({ apiVersion = "", kind, name, namespace, cluster }) => {
  const [version, group = ""] = apiVersion.split("/").reverse();
  return { gvk: { group, version, kind }, cluster: cluster ?? null, namespace: namespace ?? null, name };
};

const calls = {
  get: ({ ref, projection, live = false }) => {
    const found = kubernetes.get(reference(ref), { live, projection });
    return found && parse(found);
  },
  list: ({ cluster, namespace, labels, fieldSelector, limit, projection, live = false, ...kind }) =>
    kubernetes.list(reference(kind).gvk, {
      cluster, namespace, labelSelector: labels, fieldSelector, projection, limit, continueToken: null, live,
    }).items.map(parse),
  requireReady: ({ ref }) => parse(kubernetes.requireReady(reference(ref))),
  requireCondition: ({ ref, type, status }) => parse(kubernetes.requireCondition(reference(ref), type, status)),
  apply: ({ body, cluster, owned = false }) => parse(kubernetes.apply(body("object"), { cluster, owned, force: true })),
  create: ({ body, cluster, owned = false }) => parse(kubernetes.create(body("object"), { cluster, owned })),
  patch: ({ ref, body, uid, resourceVersion }) => parse(kubernetes.patch(reference(ref), body("patch"), { uid, resourceVersion })),
  patchSubresource: ({ ref, subresource, body, uid, resourceVersion }) =>
    parse(kubernetes.patchSubresource(reference(ref), subresource, body("patch"), { uid, resourceVersion })),
  delete: ({ ref, propagation = "background", uid, resourceVersion }) =>
    kubernetes.delete(reference(ref), { propagation, preconditions: { uid, resourceVersion } }),
  readLog: ({ ref, container, tailLines }) => kubernetes.readLog(reference(ref), { container, tailLines, previous: false }),
  hold: ({ ref }) => references.hold(reference(ref)),
  listHolders: ({ ref }) => references.listHolders(reference(ref)).map(({ gvk, name }) => `${gvk.kind} ${name}`),
  acquire: ({ pool, limit, held = false }) => permits.acquire(pool, limit, held),
  release: ({ pool }) => permits.release(pool),
  digest: ({ name, key }) => http.secretDigest({ name, key }),
  config: () => parse(config.get()),
  now: () => Number(clock.now()),
  send: ({ method, path }) => {
    const { status, body } = http.send({ method: method.toLowerCase(), pathAndQuery: path });
    return [status, new TextDecoder().decode(body)];
  },
};

function makeCall(call) {
  const body = (field) => encode(call.raw ?? stringifyJson(call[field]));
  const projection = call.fields ? { tag: "fields", val: call.fields } : { tag: call.metadata ? "metadata" : "full" };
  try {
    return { ok: calls[call.do]({ ...call, body, projection }) ?? null };
  } catch (e) {
    if (!e?.tag) throw e;
    if (e.tag !== "not-ready") return { error: e.tag };
    const { condition, exists, reason, message } = e.val;
    return { error: e.tag, condition, exists, reason, message };
  }
}

const table = parseJson(readFileSync(new URL("../sdk/tests/mock/table.json", import.meta.url), "utf8"));
assert.ok(table.length > 100);
for (const one of table) {
  test(one.name, () => {
    const host = new TestHost();
    for (const object of one.objects ?? []) host.put(object);
    for (const [cluster, objects] of Object.entries(one.objectsOn ?? {})) for (const object of objects) host.putOn(cluster, object);
    for (const hidden of one.hidden ?? []) host.hideFromCache(reference(hidden));
    for (const [pod, container, log] of one.logs ?? []) host.setLog(reference(pod), container, log);
    for (const [held, holder] of one.holders ?? []) host.addHolder(reference(held), reference(holder));
    for (const [pool, count] of Object.entries(one.usedPermits ?? {})) host.usePermits(pool, count);
    for (const denied of one.denied ?? []) host.deny(denied);
    for (const secret of one.secrets ?? []) host.setSecret(...secret);
    if (one.config) host.setConfig(one.config);
    host.setNow(one.now ?? 0);
    for (const answer of one.answers ?? []) host.answer(...answer);
    const results = one.reconciles.map((made) => {
      const found = [];
      const reconcile = () => {
        for (const call of made) if (call.do !== "fail") found.push(makeCall(call));
        if (made.some((call) => call.do === "fail")) throw retry("Asked", "as asked");
        return awaitChange();
      };
      const { reconcile: run, describe } = plugin({
        name: "caller", version: "1", kinds: [{ group: "example.dev", version: "v1", kind: "Caller", reconcile }],
      });
      try {
        host.reconcile({ reconcile: run, describe }, { metadata: { name: "caller", namespace: "n", uid: "owner" } });
      } catch (e) {
        assert.equal(e.reason, "Asked");
      }
      return found;
    });
    const kinds = [["v1", "ConfigMap"], ["v1", "Pod"], ["example.dev/v1", "ConfigMap"]];
    const used = ["p", "q", "r"].reduce((sum, pool) => sum + host.permits(pool), 0);
    assert.deepEqual({
      results, objects: kinds.flatMap((kind) => host.objects(...kind)), writes: host.writes, requests: host.requests,
      held: host.held, permits: used,
    }, one.expect);
  });
}

const reconciling = (reconcile) =>
  plugin({ name: "p", version: "1", kinds: [{ group: "a.dev", version: "v1", kind: "A", reconcile, finalizer: "a.dev/a" }] });

test("outcome and failure have conditions, status and reason", () => {
  const host = new TestHost();
  const reconciler = reconciling(({ spec }) => {
    if (spec.fails) throw retry("Failed", "as asked").withStatus({ a: 1 });
    return awaitChange().with(trueCondition("Ready", "Done", "done")).withStatus({ b: 2 });
  });
  const outcome = host.reconcile(reconciler, { metadata: { name: "a" }, spec: {} });
  assert.deepEqual(outcome, {
    conditions: [trueCondition("Ready", "Done", "done")], status: { b: 2 }, next: { tag: "await-change" },
  });
  assert.throws(() => host.reconcile(reconciler, { metadata: {}, spec: { fails: true } }),
    { reason: "Failed", message: "as asked", status: { a: 1 } });
  assert.deepEqual(host.cleanup(reconciler, { metadata: {} }).next, { tag: "await-change" });
});

test("integer of 64 bits arrives and leaves as it is", () => {
  const host = new TestHost();
  let seen;
  const reconciler = reconciling(({ spec }) => {
    seen = spec;
    functions.applyOwned({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "a" }, copy: spec });
    return awaitChange().withStatus({ copy: spec });
  });
  const text = '{"big":9223372036854775807,"low":-9007199254740993,"small":9007199254740991,"text":"9007199254740993 \\" 1234567890123456789","float":0.1234567890123456,"exponent":1e+20}';
  const { status } = host.reconcile(reconciler, { metadata: { name: "a" }, spec: parseJson(text) });
  assert.equal(seen.big, 9223372036854775807n);
  assert.equal(seen.small, 9007199254740991);
  assert.equal(stringifyJson(seen), text.replace("1e+20", "100000000000000000000"));
  assert.deepEqual(status.copy, seen);
  assert.deepEqual(host.objects("v1", "ConfigMap")[0].copy, seen);
});

test("request without a response is named, and the denied function too", () => {
  const host = new TestHost();
  const reconciler = reconciling(() => awaitChange().withStatus(functions.upstream("u").get("/a").json()));
  assert.throws(() => host.reconcile(reconciler, { metadata: {} }), /unexpected request: GET \/a/);
  host.answer("GET", "/a", 200, { x: 1 });
  assert.deepEqual(host.reconcile(reconciler, { metadata: {} }).status, { x: 1 });
  host.deny("http.send");
  assert.throws(() => host.reconcile(reconciler, { metadata: {} }), { reason: "PermissionDenied" });
  assert.ok(new HostError({ tag: "denied", val: "x" }).message.includes("x"));
});

test("hooks prepare the plugin and upgrade objects", () => {
  const host = new TestHost();
  const lifecycle = lifecycleHooks({
    initialize: (functions) => functions.apply({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "a", namespace: "n" } }),
    upgrade: (object) => {
      if (object.spec.old) throw retry("Busy", "not now");
      return object.spec.done ? undefined : { ...object, metadata: { ...object.metadata, labels: { done: "yes" } } };
    },
  });
  host.initialize(lifecycle);
  assert.deepEqual(host.writes, ["apply ConfigMap a"]);
  assert.deepEqual(host.upgrade(lifecycle, { spec: {}, metadata: { name: "x" } }).metadata, { name: "x", labels: { done: "yes" } });
  assert.equal(host.upgrade(lifecycle, { spec: { done: true } }), undefined);
  assert.throws(() => host.upgrade(lifecycle, { spec: { old: true } }), { tag: "unavailable", val: "not now" });
  host.deny("kubernetes.apply");
  assert.throws(() => host.initialize(lifecycle), { tag: "denied" });
  host.initialize(lifecycleHooks({}));
});
