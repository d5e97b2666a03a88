// Requests at once, subscriptions and reads of event streams, with functions in the place of the host's.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";

const folder = mkdtempSync(join(tmpdir(), "ostler-sdk-"));
after(() => rmSync(folder, { recursive: true }));
const text = readFileSync(new URL("index.js", import.meta.url), "utf8");
const codec = "const decode = (b) => new TextDecoder().decode(b), encode = (t) => new TextEncoder().encode(t), parseJson = JSON.parse, stringifyJson = JSON.stringify;";
const source = text
  .replace(/^import \{ decode.*$/m, codec)
  .replace(/^import (\w+) from "ostler:.*$/gm, "const $1 = globalThis.stubs.$1 ?? {};");
const sdk = join(folder, "ostler.mjs");
writeFileSync(sdk, source);
const http = {};
globalThis.stubs = { http };
const { HostError, eventMatch, host } = await import(pathToFileURL(sdk));
const upstream = host.upstream("u");

test("requests are sent at once with a response or an error for each", () => {
  let sent;
  http.sendAll = (requests) => {
    sent = requests;
    const response = { status: 200, headers: [{ name: "a", value: "b" }], body: new TextEncoder().encode("{}") };
    return [{ tag: "ok", val: response }, { tag: "err", val: { tag: "unavailable", val: "gone" } }];
  };
  const [first, second] = upstream.sendAll([{ method: "GET", path: "/a" }, { method: "PUT", path: "/b", json: { c: 1 } }]);
  assert.deepEqual(sent.map(({ method, pathAndQuery }) => [method, pathAndQuery]), [["get", "/a"], ["put", "/b"]]);
  assert.deepEqual(sent[1].headers, [{ name: "Content-Type", value: "application/json" }]);
  assert.ok(first.ok);
  assert.deepEqual([first.headers.a, first.json()], ["b", {}]);
  assert.ok(second instanceof HostError);
  assert.equal(second.failure().reason, "Unavailable");
});

test("events are subscribed with their patterns", () => {
  let sent;
  http.subscribe = (subscription) => {
    sent = subscription;
  };
  upstream.subscribe("/events", { wake: [eventMatch("log")], until: [eventMatch("status", "/state", "done")] });
  assert.deepEqual(sent, {
    upstream: { cluster: null, namespace: null, name: "u" },
    pathAndQuery: "/events",
    wake: [{ name: "log", data: null }],
    until: [{ name: "status", data: { pointer: "/state", value: "done" } }],
  });
});

test("the last events are read with their number as a number", () => {
  let sent;
  http.readEvents = (query) => {
    sent = query;
    return { events: [{ id: null, name: "log", data: "x" }], skipped: 3n, complete: true };
  };
  const tail = upstream.readEvents("/events", { maxEvents: 5 });
  assert.deepEqual([sent.maxEvents, sent.maxBytes, sent.timeout, sent.select], [5, null, null, []]);
  assert.deepEqual([tail.skipped, tail.complete, tail.events[0].data], [3, true, "x"]);
});

test("an error of the host is thrown", () => {
  http.subscribe = () => {
    throw { tag: "not-found", val: "u" };
  };
  assert.throws(() => upstream.subscribe("/events"), (error) => error instanceof HostError && error.tag === "not-found");
});
