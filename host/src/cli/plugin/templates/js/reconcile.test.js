// The logic, against a host in memory: `npm test`.
import assert from "node:assert/strict";
import { test } from "node:test";

<<without messages>>
import { reference } from "ostler";
import { TestHost } from "ostler/testing";
import { reconciler } from "../index.js";
<<with messages>>
import { ack, reference } from "ostler";
import { TestHost } from "ostler/testing";
import { messages, reconciler } from "../index.js";
<<end>>

const example = { metadata: { name: "a", namespace: "b" }, spec: { message: "Hello" } };
const configMap = reference("v1", "ConfigMap", "a", "b");

test("message is written to a ConfigMap", () => {
  const host = new TestHost();
  // The second time there is nothing more to write.
  for (let i = 0; i < 2; i++) {
    const { conditions } = host.reconcile(reconciler, example);
    assert.deepEqual(conditions, [{ type: "Ready", status: "true", reason: "Applied", message: "message applied: Hello" }]);
  }
  assert.equal(host.object(configMap).data.message, "Hello");
  assert.equal(host.writes.length, 1);
});
<<with finalizer>>

test("cleanup deletes the ConfigMap", () => {
  const host = new TestHost();
  host.reconcile(reconciler, example);
  assert.ok(host.object(configMap));
  // The second one finds nothing to delete, which is no error.
  for (let i = 0; i < 2; i++) {
    host.cleanup(reconciler, example);
    assert.equal(host.object(configMap), undefined);
  }
});
<<end>>
<<with messages>>

test("message creates its object once", () => {
  const host = new TestHost();
  for (let i = 0; i < 2; i++) {
    const delivery = { queue: "requests", json: { name: "a", message: "Hello" } };
    assert.deepEqual(host.handle(messages, delivery), ack());
  }
  assert.deepEqual(host.writes, ["create <<kind>> a"]);
  assert.equal(host.handle(messages, { queue: "requests", body: "{" }).tag, "reject");
});
<<end>>
