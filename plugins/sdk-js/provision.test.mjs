// The composition of steps, and the parts Resource and Dependency against a fake of the host functions.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, test } from "node:test";
import { pathToFileURL } from "node:url";

// Node has no host, so the imports of its functions are replaced.
const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const folder = mkdtempSync(join(tmpdir(), "ostler-sdk-"));
after(() => rmSync(folder, { recursive: true }));
const decode = (bytes) => JSON.parse(new TextDecoder().decode(bytes));
const encode = (value) => new TextEncoder().encode(JSON.stringify(value));
const codec = "const decode = (b) => new TextDecoder().decode(b), encode = (t) => new TextEncoder().encode(t), parseJson = JSON.parse, stringifyJson = JSON.stringify;";
const source = read("index.js")
  .replace(/^import \{ decode.*$/m, codec)
  .replace(/^import (\w+) from "ostler:.*$/gm, "const $1 = globalThis.stubs.$1 ?? {};");
writeFileSync(join(folder, "package.json"), '{"type": "module"}');
writeFileSync(join(folder, "index.js"), source);
writeFileSync(join(folder, "provision.js"), read("provision.js"));

// Objects by cluster, kind, namespace and name, and the calls. A kept object stays with a deletion timestamp when it is
// deleted, as one with finalizers does.
let objects, calls, applied, keeps;
beforeEach(() => ([objects, calls, applied, keeps] = [new Map(), [], [], false]));
const key = ({ gvk, namespace, name, cluster }) =>
  `${gvk.kind} ${namespace} ${name}${cluster ? ` on ${cluster}` : ""}`;
function takeCalls() {
  return calls.splice(0);
}
globalThis.stubs = {
  kubernetes: {
    get(ref, { projection }) {
      calls.push(`${projection.tag === "metadata" ? "get-metadata" : "get"} ${key(ref)}`);
      return objects.has(key(ref)) ? encode(objects.get(key(ref))) : null;
    },
    apply(bytes, options) {
      const object = decode(bytes);
      const { name, namespace } = object.metadata;
      const at = key({ gvk: object, namespace, name, cluster: options.cluster });
      calls.push(`apply ${at}`);
      applied.push(options);
      object.metadata.uid = `uid-of-${name}`;
      if (options.owned && options.cluster) object.metadata.labels = { "ostler.dev/owner-uid": "u-1" };
      else if (options.owned) object.metadata.ownerReferences = [{ uid: "u-1" }];
      objects.set(at, { ...object, status: objects.get(at)?.status });
      return encode(objects.get(at));
    },
    requireCondition(ref, type, status) {
      calls.push(`require ${type} ${key(ref)}`);
      const object = objects.get(key(ref));
      if (status === "true" && object?.status === type) return encode(object);
      throw { tag: "not-ready", val: { ref, condition: type, status, exists: Boolean(object), reason: "", message: "" } };
    },
    delete(ref, { propagation, preconditions }) {
      calls.push(`delete ${propagation} ${preconditions.uid} ${key(ref)}`);
      if (keeps) objects.get(key(ref)).metadata.deletionTimestamp = "2026-01-01T00:00:00Z";
      else objects.delete(key(ref));
    },
  },
  log: { write: (level, message) => calls.push(`log ${level} ${message}`) },
  references: {
    hold(ref) {
      calls.push(`hold ${key(ref)}`);
      if (!objects.has(key(ref))) throw { tag: "not-found", val: key(ref) };
    },
  },
};
const load = (name) => import(pathToFileURL(join(folder, name)));
const { Failure, HostError, host, reference, wait, withPublicMessage, terminal } = await load("index.js");
const { concurrent, dependency, OWNER_LABEL, resource, serial, step, waitForForegroundDeletion, when } =
  await load("provision.js");

const STATUSES = { True: "true", False: "false", Unknown: "unknown" };
const parseConditions = (rows = []) =>
  rows.map(([type, status, reason, message]) => ({ type, status: STATUSES[status], reason, message }));

/** Returns the failure, or the error of the host, that the table has. */
function parseResult({ error, value, resolution, reason, message, milliseconds, grant, conditions, status }) {
  if (error) return new HostError({ tag: error, val: value });
  const failure = new Failure({ resolution: { tag: resolution, val: milliseconds ?? grant }, reason, message });
  parseConditions(conditions).forEach((condition) => failure.with(condition));
  return status ? failure.withStatus(status) : failure;
}

for (const { name, direction, tree, results, calls: expectedCalls, conditions, failure } of JSON.parse(
  read("../sdk/tests/provision/table.json"),
).cases) {
  test(name, () => {
    const run = [];
    const end = (name) => {
      if (results[name]) throw parseResult(results[name]);
    };
    const build = (tree) => {
      if (tree.serial) return serial(...tree.serial.map(build));
      if (tree.concurrent) return concurrent(...tree.concurrent.map(build));
      if (tree.tree) return when(tree.when, build(tree.tree));
      const part = {
        provision: () => (run.push(`+${tree.step}`), end(tree.step)),
        deprovision: () => (run.push(`-${tree.step}`), end(tree.step)),
      };
      return step(tree.step, part);
    };
    const built = build(tree);
    if (failure) {
      const expected = parseResult(failure);
      expected.conditions = parseConditions(conditions);
      assert.throws(() => built[direction](host), (thrown) => (assert.deepEqual(thrown, expected), true));
    } else {
      const outcome = built[direction](host);
      assert.deepEqual(outcome.next, { tag: "await-change" });
      assert.deepEqual(outcome.conditions, parseConditions(conditions));
    }
    assert.deepEqual(run, expectedCalls);
  });
}

test("an exception in a step is a bug, and no failure", () => {
  const part = (provision) => step("A", { provision, deprovision() {} });
  assert.throws(() => part(() => null.missing).provision(host), TypeError);
  assert.throws(() => part(() => wait("Because", "Not yet.")).provision(host), /returned a Failure: throw it/);
  assert.throws(() => part(async () => {}).provision(host), /returned a promise/);
  const readyIf = () => wait("Because", "Not yet.");
  assert.throws(() => step("A", resource(owner, map(), { readyIf })).provision(host), /readyIf returned a Failure: throw it/);
});

test("a failure that a step throws again is not changed", () => {
  const kept = wait("Because", "Not yet.");
  const part = { provision() { throw kept; }, deprovision() {} };
  for (let i = 0; i < 2; i++) {
    assert.throws(() => concurrent(step("A", part), step("B", part)).provision(host), { message: "A: Not yet. B: Not yet." });
  }
  assert.deepEqual([kept.message, kept.conditions], ["Not yet.", []]);
});

const owner = { name: "a", namespace: "n", uid: "u-1" };
const map = (namespace = "n") => ({ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "m", namespace } });
const HERE = "ConfigMap n m";
const failsWith = (tag, reason) => (thrown) => {
  const failure = thrown instanceof HostError ? thrown.failure() : thrown;
  assert.deepEqual([failure.resolution.tag, failure.reason], [tag, reason]);
  return true;
};

test("a resource is applied after a read, and deleted with its uid", () => {
  const part = resource(owner, map());
  part.provision(host);
  assert.deepEqual(takeCalls(), [`get ${HERE}`, `apply ${HERE}`]);
  assert.deepEqual(applied, [{ cluster: null, owned: true, force: true, substitutions: [] }]);
  part.deprovision(host);
  assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`, `delete foreground uid-of-m ${HERE}`, `get-metadata ${HERE}`]);
  part.deprovision(host);
  assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`]);
});

test("a resource of another owner is neither changed nor deleted", () => {
  for (const ownerReferences of [undefined, [{ uid: "u-0" }]]) {
    objects.set(HERE, { metadata: { name: "m", ownerReferences } });
    const part = resource(owner, map());
    assert.throws(() => part.provision(host), failsWith("terminal", "NotOwned"));
    assert.deepEqual(takeCalls(), [`get ${HERE}`]);
    part.deprovision(host);
    assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`]);
    // An owner without a uid owns nothing.
    assert.throws(() => resource({ namespace: "n" }, map()).provision(host), failsWith("terminal", "NotOwned"));
    assert.deepEqual(takeCalls(), [`get ${HERE}`]);
  }
  resource(owner, map(), { adopt: true }).provision(host);
  assert.deepEqual(takeCalls(), [`get ${HERE}`, `apply ${HERE}`]);
});

test("a resource in another namespace belongs to its owner by label", () => {
  const object = map("other");
  object.metadata.labels = { app: "m" };
  const part = resource(owner, object);
  part.provision(host);
  assert.deepEqual(objects.get("ConfigMap other m").metadata.labels, { app: "m", [OWNER_LABEL]: "u-1" });
  assert.equal(applied[0].owned, false);
  assert.deepEqual(object.metadata.labels, { app: "m" }, "the object of the plugin is not changed");
  part.deprovision(host);
  assert.equal(objects.size, 0);
  // A cluster-scoped owner can own objects in any namespace.
  resource({ name: "a", uid: "u-1" }, map("other")).provision(host);
  assert.equal(applied[1].owned, true);
});

test("a deletion is waited for until the resource is gone", () => {
  const part = resource(owner, map());
  part.provision(host);
  takeCalls();
  keeps = true;
  assert.throws(() => part.deprovision(host), failsWith("wait", "Deprovisioning"));
  assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`, `delete foreground uid-of-m ${HERE}`, `get-metadata ${HERE}`]);
  assert.throws(() => part.deprovision(host), failsWith("wait", "Deprovisioning"));
  assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`]);
  // It is not applied to what is being deleted.
  assert.throws(() => part.provision(host), failsWith("wait", "Deprovisioning"));
  assert.deepEqual(takeCalls(), [`get ${HERE}`]);
});

test("a resource is ready by a condition or by a function", () => {
  const available = resource(owner, map(), { readyWhen: "Available" });
  assert.throws(() => available.provision(host), (thrown) => {
    assert.equal(thrown.message, "ConfigMap m is not Available yet.");
    return failsWith("wait", "Provisioning")(thrown);
  });
  assert.deepEqual(takeCalls(), [`get ${HERE}`, `apply ${HERE}`, `require Available ${HERE}`]);
  objects.get(HERE).status = "Available";
  available.provision(host);
  const bound = resource(owner, map(), { readyIf: ({ status }) => status === "Bound" });
  assert.throws(() => bound.provision(host), failsWith("wait", "Provisioning"));
  objects.get(HERE).status = "Bound";
  bound.provision(host);
  const readyIf = () => { throw terminal("Lost", ""); };
  assert.throws(() => resource(owner, map(), { readyIf }).provision(host), failsWith("terminal", "Lost"));
});

test("a resource on another cluster belongs to its owner by the mark of the host", () => {
  const there = "ConfigMap other m on fleet/east";
  const part = resource(owner, map("other"), { cluster: "fleet/east" });
  part.provision(host);
  assert.deepEqual(takeCalls(), [`get ${there}`, `apply ${there}`]);
  assert.equal(applied[0].owned, true);
  const { metadata } = objects.get(there);
  assert.deepEqual(metadata.labels, { "ostler.dev/owner-uid": "u-1" });
  // One without the mark belongs to somebody there; the host decides about one with another mark.
  metadata.labels = {};
  assert.throws(() => part.provision(host), failsWith("terminal", "NotOwned"));
  part.deprovision(host);
  assert.deepEqual(takeCalls(), [`get ${there}`, `get-metadata ${there}`]);
  metadata.labels["ostler.dev/owner-uid"] = "u-2";
  part.deprovision(host);
  part.provision(host);
  assert.deepEqual(takeCalls(), [`get-metadata ${there}`, `get ${there}`, `apply ${there}`]);
  part.deprovision(host);
  assert.equal(objects.size, 0);
});

test("a dependency is held before it is ready", () => {
  const ref = reference("v1", "ConfigMap", "m", "n");
  const require = (options) => dependency(ref, options).provision(host);
  assert.throws(() => require(), failsWith("wait", "NotFound"));
  assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`]);
  assert.throws(() => require({ held: true, readyWhen: "Ready" }), failsWith("wait", "NotFound"));
  assert.deepEqual(takeCalls(), [`hold ${HERE}`]);
  objects.set(HERE, map());
  assert.throws(() => require({ held: true, readyWhen: "Ready" }), failsWith("wait", "DependencyNotReady"));
  assert.deepEqual(takeCalls(), [`hold ${HERE}`, `require Ready ${HERE}`]);
  require();
  require({ held: true });
  objects.get(HERE).status = "Ready";
  require({ readyWhen: "Ready" });
  assert.deepEqual(takeCalls(), [`get-metadata ${HERE}`, `hold ${HERE}`, `require Ready ${HERE}`]);
  dependency(ref, { held: true }).deprovision(host);
  assert.deepEqual(takeCalls(), []);
});

test("a foreground deletion is waited for", () => {
  waitForForegroundDeletion({ finalizers: ["g/thing"] });
  waitForForegroundDeletion({});
  assert.throws(() => waitForForegroundDeletion({ finalizers: ["foregroundDeletion"] }), failsWith("wait", "ForegroundDeletion"));
});

test("the detail of a public message is logged only", () => {
  const detail = "10.0.0.7 refused db-admin.";
  const errors = [
    [terminal("Refused", detail), "warn"],
    [new HostError({ tag: "unavailable", val: detail }), "warn"],
    [wait("Pending", detail), "info"],
  ];
  for (const [error, level] of errors) {
    const failed = withPublicMessage(error, "The database is not there.");
    const { resolution, reason } = error instanceof Failure ? error : error.failure();
    assert.ok(failsWith(resolution.tag, reason)(failed));
    assert.equal(failed.message, "The database is not there.");
    assert.deepEqual(takeCalls(), [`log ${level} ${detail}`]);
  }
  const bug = new TypeError("x is undefined");
  assert.equal(withPublicMessage(bug, "The database is not there."), bug);
});
