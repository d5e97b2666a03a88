// Service providers against a fake of the host functions, with the cases that the SDKs of all languages have in common.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";

// Node has no host, so the imports of its functions are replaced.
const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const folder = mkdtempSync(join(tmpdir(), "ostler-sdk-"));
after(() => rmSync(folder, { recursive: true }));
const decode = (bytes) => JSON.parse(new TextDecoder().decode(bytes));
const encode = (value) => new TextEncoder().encode(JSON.stringify(value));
const codec = "const decode = (b) => new TextDecoder().decode(b), encode = (t) => new TextEncoder().encode(t), parseJson = JSON.parse, stringifyJson = JSON.stringify;";
writeFileSync(join(folder, "package.json"), '{"type": "module"}');
for (const file of ["index.js", "provision.js", "provider.js", "sha256.js"]) {
  const source = read(file)
    .replace(/^import \{ decode.*$/m, codec)
    .replace(/^import (\w+) from "ostler:.*$/gm, "const $1 = globalThis.stubs.$1 ?? {};");
  writeFileSync(join(folder, file), source);
}

let world;
globalThis.stubs = {
  config: { get: () => encode(world.pluginConfig) },
  log: { write() {} },
  status: {
    checkpoint(fields) {
      mergePatch(world.owner, { status: decode(fields) });
      world.countEffect();
    },
  },
  kubernetes: {
    get(ref, { projection }) {
      const object = world.objects.get(keyOf(ref));
      if (!object) return null;
      const { apiVersion, kind, metadata } = object;
      return encode(projection.tag === "metadata" ? { apiVersion, kind, metadata } : object);
    },
    apply(bytes, options) {
      return encode(world.apply(decode(bytes), options));
    },
    delete(ref, { propagation, preconditions }) {
      world.delete(ref, propagation, preconditions);
    },
  },
};
const load = (name) => import(pathToFileURL(join(folder, name)));
const { Failure, awaitChange, host, plugin, reference, retry } = await load("index.js");
const { resource } = await load("provision.js");
const { buildStableName, requestOfSameName, serviceProvider } = await load("provider.js");

/** Name of the cluster of a reference. Nothing that a provider reads or writes is on its home cluster, `home`. */
const onCluster = (cluster) => (cluster === "in-cluster" ? "" : ` on ${cluster ?? "home"}`);
const keyOf = ({ gvk: { kind }, namespace, name, cluster }) => `${kind} ${namespace ?? ""} ${name}${onCluster(cluster)}`;

/** Applies a JSON merge patch (RFC 7386). */
function mergePatch(into, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete into[key];
    else if (value instanceof Object && !Array.isArray(value)) mergePatch((into[key] ??= {}), value);
    else into[key] = value;
  }
}

/** The host stops, and the plugin gets no answer. */
class Stopped extends Error {}

/** The clusters, the object of the provider, and the provider: a text is copied to the workload cluster. */
class World {
  constructor(withMcp) {
    const metadata = { name: "a", namespace: "n", uid: "u-1" };
    const owner = { apiVersion: "g/v1", kind: "Copy", metadata, spec: { text: "hello" } };
    Object.assign(this, {
      owner, objects: new Map(), pluginConfig: {}, owned: new Map(), writes: [], calls: [], deletion: "complete", created: 0,
      effectsLeft: Infinity, inventoryOf: null,
    });
    const permissions = [{ rules: [{ apiGroups: [""], resources: ["configmaps"], verbs: ["*"] }] }];
    const copy = ({ metadata, spec }, clusters) => {
      const { name } = metadata;
      const map = { apiVersion: "v1", kind: "ConfigMap", metadata: { name, namespace: "copies" }, data: { text: spec.text } };
      return resource(metadata, map, { cluster: clusters.workload.name });
    };
    const kind = serviceProvider({
      name: "copies", group: "g", version: "v1", kind: "Copy", finalizer: "g/copy",
      config: { apiVersion: "g/v1", kind: "CopyConfig" },
      mcpCluster: withMcp ? { permissions } : undefined,
      workloadCluster: { permissions },
      createOrUpdate: (object, config, clusters, host) => {
        this.calls.push(`create config=${config !== null}`);
        copy(object, clusters).provision(host);
        return awaitChange().withStatus({ text: object.spec.text });
      },
      delete: (object, config, clusters, host) => {
        this.calls.push(`delete config=${config !== null}`);
        if (this.deletion === "failing") throw retry("StillUsed", "The copy is used.");
        if (this.deletion === "complete") copy(object, clusters).deprovision(host);
      },
    });
    this.plugin = plugin({ name: "copies", version: "1", kinds: [kind] });
    this.setConfig("copies", {});
  }

  countEffect() {
    if (--this.effectsLeft <= 0) throw new Stopped();
  }

  setConfig(name, spec) {
    const key = `CopyConfig  ${name}`;
    if (spec === null) this.objects.delete(key);
    else this.objects.set(key, { apiVersion: "g/v1", kind: "CopyConfig", metadata: { name }, spec });
  }

  apply(applied, { cluster, owned }) {
    const { apiVersion, kind, metadata: { name, namespace } } = applied;
    const ref = reference(apiVersion, kind, name, namespace, cluster);
    const live = this.objects.get(keyOf(ref));
    if (owned) {
      mergePatch(applied, { metadata: { labels: { "ostler.dev/owner-uid": this.inventoryOf } } });
      this.inventory().add(this.entryOf(ref));
    }
    const object = structuredClone(live ?? {});
    mergePatch(object, applied);
    const isChanged = JSON.stringify(object) !== JSON.stringify(live);
    object.metadata.uid ??= `uid-${++this.created}`;
    this.objects.set(keyOf(ref), object);
    if (isChanged) {
      this.writes.push(`apply ${kind} ${name}${owned ? " owned" : ""}${onCluster(cluster)}`);
      this.countEffect();
    }
    return object;
  }

  inventory() {
    if (!this.owned.has(this.inventoryOf)) this.owned.set(this.inventoryOf, new Set());
    return this.owned.get(this.inventoryOf);
  }

  entryOf({ gvk: { group, version, kind }, cluster, namespace, name }) {
    return `${kind}.${version}${group && `.${group}`} ${cluster} ${namespace}/${name}`;
  }

  delete(ref, propagation, { uid }) {
    const live = this.objects.get(keyOf(ref));
    if (live && uid !== null) assert.equal(uid, live.metadata.uid);
    this.inventory().delete(this.entryOf(ref));
    if (!live) return;
    this.objects.delete(keyOf(ref));
    if (!live.metadata.deletionTimestamp) {
      this.writes.push(`delete ${ref.gvk.kind} ${ref.name}${onCluster(ref.cluster)}`);
      this.countEffect();
    }
  }

  /** Calls the plugin as the host does, and returns the result as the table has it. */
  call(step, stopAfter = Infinity) {
    const { namespace, name, uid } = this.owner.metadata;
    this.inventoryOf = uid;
    const object = structuredClone(this.owner);
    if (step === "delete") object.metadata.deletionTimestamp = "2026-01-01T00:00:00Z";
    const inventory = [...this.inventory()].sort().join(", ");
    if (inventory) object.metadata.annotations = { "ostler.dev/owned-objects": inventory };
    const ref = reference("g/v1", "Copy", name, namespace);
    this.effectsLeft = stopAfter;
    try {
      const outcome = this.plugin[step === "delete" ? "cleanup" : "reconcile"]({ ref, object: encode(object) });
      return this.end(outcome, { next: outcome.next.tag, ...(outcome.next.val && { milliseconds: outcome.next.val }) });
    } catch (e) {
      if (e instanceof Stopped) return { stopped: true };
      if (!(e instanceof Failure)) throw e;
      return this.end(e, { resolution: e.resolution.tag, reason: e.reason, message: e.message });
    } finally {
      this.effectsLeft = Infinity;
    }
  }

  end({ status }, result) {
    if (status) this.owner.status = decode(status);
    return result;
  }

  /** Calls the plugin, and grants each request, until it succeeds. */
  finish(step) {
    for (let calls = 0; calls < 10; calls++) {
      if (this.call(step).next) return this.take();
      this.grantAll();
    }
    assert.fail(`${step} does not end: ${JSON.stringify(this.call(step))}`);
  }

  /** Grants each request, as openmcp does. */
  grantAll() {
    for (const object of this.objects.values()) {
      if (object.kind === "ClusterRequest") object.status = { phase: "Granted" };
      if (object.kind === "AccessRequest") object.status = { phase: "Granted", secretRef: { name: "credentials" } };
    }
  }

  list(...kinds) {
    return [...this.objects].filter(([, object]) => kinds.includes(object.kind)).sort(([a], [b]) => (a < b ? -1 : 1));
  }

  /** The objects as the table has them. */
  show() {
    const show = ({ metadata: { labels, annotations }, spec, data }) =>
      JSON.parse(JSON.stringify({ labels, annotations, spec, data }));
    const listed = this.list("AccessRequest", "Cluster", "ClusterRequest", "ConfigMap");
    return Object.fromEntries(listed.map(([key, object]) => [key, show(object)]));
  }

  take() {
    return { writes: this.writes.splice(0), calls: this.calls.splice(0), status: this.owner.status ?? {} };
  }

  run(step) {
    if (step.call) {
      const { call, stopAfter, ...expected } = step;
      assert.deepEqual({ result: this.call(call, stopAfter), ...this.take() }, expected);
    } else if (step.install) this.finish("reconcile");
    else if (step.grant) this.grantAll();
    else if (step.patch) mergePatch(this.objects.get(step.patch), step.with);
    else if (step.remove) assert.ok(this.objects.delete(step.remove));
    else if (step.config) this.setConfig(step.config, step.spec);
    else if (step.pluginConfig) this.pluginConfig = step.pluginConfig;
    else if (step.deletion) this.deletion = step.deletion;
    else if (step.owner) mergePatch(this.owner, step.owner);
    else assert.deepEqual(this.show(), step.objects);
  }
}

for (const { name, mcp, steps } of JSON.parse(read("../sdk/tests/provider/table.json")).cases) {
  test(name, () => {
    world = new World(mcp);
    steps.forEach((step, index) => {
      try {
        world.run(step);
      } catch (e) {
        throw new Error(`step ${index}: ${JSON.stringify(step)}`, { cause: e });
      }
    });
  });
}

test("a provider that is interrupted anywhere leaves nothing behind", () => {
  for (let installed = 1; installed < 9; installed++) {
    for (let removed = 1; removed < 9; removed++) {
      world = new World(true);
      for (let calls = 0; calls < installed; calls++) {
        world.call("reconcile", 1);
        world.grantAll();
      }
      for (const stopAfter of [removed, 1, 2]) {
        world.call("delete", stopAfter);
        const revoked = world.writes.some((write) => /^delete (Cluster|AccessRequest|ClusterRequest) /.test(write));
        assert.ok(!revoked || !world.list("ConfigMap").length, "revoked too early");
      }
      world.finish("delete");
      assert.deepEqual(world.show(), {});
    }
  }
});

const build = (functions) => serviceProvider({
  name: "copies", group: "g", version: "v1", kind: "Copy", finalizer: "g/copy",
  config: { apiVersion: "g/v1", kind: "CopyConfig" }, ...functions,
});

test("a cluster that is not requested is a terminal failure", () => {
  world = new World(false);
  const kind = build({ createOrUpdate: (object, config, clusters) => clusters.mcp.name });
  assert.throws(() => kind.reconcile(world.owner, host), { reason: "ClusterNotRequested" });
});

test("a returned failure is a bug, and no success", () => {
  world = new World(false);
  const fail = () => retry("Because", "Not yet.");
  const creating = build({ createOrUpdate: fail });
  assert.throws(() => creating.reconcile(world.owner, host), /createOrUpdate returned a Failure: throw it/);
  world.owner.status = { provider: { stage: "Installed", providerName: "copies", requestNamespace: "n" } };
  assert.throws(() => build({ delete: fail }).cleanup(world.owner, host), /delete returned a Failure: throw it/);
  assert.throws(() => build({ delete: async () => {} }).cleanup(world.owner, host), /delete returned a promise/);
});

test("an outage blocks the deletion, and a denied configuration does not", () => {
  for (const [tag, isBlocked] of [["unavailable", true], ["throttled", true], ["denied", false], ["invalid", false]]) {
    world = new World(false);
    world.finish("reconcile");
    const { get } = globalThis.stubs.kubernetes;
    globalThis.stubs.kubernetes.get = (ref, options) => {
      if (ref.gvk.kind === "CopyConfig") throw { tag, val: tag === "throttled" ? 5 : "x" };
      return get(ref, options);
    };
    const result = world.call("delete");
    globalThis.stubs.kubernetes.get = get;
    assert.deepEqual(world.calls, isBlocked ? [] : ["delete config=false"], tag);
    assert.equal(result.next === undefined, isBlocked, JSON.stringify(result));
  }
});

test("names are stable", () => {
  assert.equal(buildStableName("foo", { name: "a", namespace: "n" }), "foo-a683c5c5349f6f7fb903ba8a9e7e55d0");
  assert.deepEqual(requestOfSameName({ name: "a", namespace: "n", uid: "u" }), { name: "a", namespace: "n" });
});
