// The report of an exception that is a bug, which the host writes into the condition.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";

// Node has no host, so the imports of its functions are replaced.
const folder = mkdtempSync(join(tmpdir(), "ostler-sdk-"));
const text = readFileSync(new URL("index.js", import.meta.url), "utf8");
const codec = "const decode = (b) => new TextDecoder().decode(b), encode = (t) => new TextEncoder().encode(t), parseJson = JSON.parse, stringifyJson = JSON.stringify;";
const source = text
  .replace(/^import \{ decode.*$/m, codec)
  .replace(/^import (\w+) from "ostler:.*$/gm, "const $1 = globalThis.stubs.$1 ?? {};");
const lines = [];
globalThis.stubs = { log: { write: (level, message, fields) => lines.push({ level, message, ...Object.fromEntries(fields) }) } };
const sdk = join(folder, "node_modules", "ostler.mjs");
const plugin = join(folder, "index.mjs");
mkdirSync(join(folder, "node_modules"));
after(() => rmSync(folder, { recursive: true }));
writeFileSync(sdk, source);
writeFileSync(plugin, `import { awaitChange, plugin } from "./node_modules/ostler.mjs";
const reconcile = ({ spec }) =>
  ({ throws: () => spec.missing.there, nothing: () => {}, outcome: () => awaitChange() })[spec.does]();
export const reconciler = plugin({ name: "p", version: "1", kinds: [{ group: "a.dev", version: "v1", kind: "A", reconcile }] });
`);
const { reconciler } = await import(pathToFileURL(plugin));
function reconcile(does) {
  const object = new TextEncoder().encode(JSON.stringify({ spec: { does } }));
  return reconciler.reconcile({ ref: { gvk: { group: "a.dev", kind: "A" } }, object });
}

test("an exception is reported with its message and its line of the plugin", () => {
  assert.throws(() => reconcile("throws"), TypeError);
  const report = lines.pop();
  assert.equal(report.level, "error");
  assert.match(report.message, /^TypeError: .*'there'/);
  assert.match(report["exception.location"], /index\.mjs:3$/);
  assert.match(report["exception.stacktrace"], /at .*index\.mjs:3/);
});

test("a reconciler that returns nothing is reported with the remedy", () => {
  assert.throws(() => reconcile("nothing"), TypeError);
  const report = lines.pop();
  assert.match(report.message, /returned undefined, not an Outcome: return awaitChange\(\)/);
});

test("an outcome is returned without a report", () => {
  assert.equal(reconcile("outcome").next.tag, "await-change");
  assert.deepEqual(lines, []);
});
