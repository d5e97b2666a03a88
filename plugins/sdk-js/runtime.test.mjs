// Compares the UTF-8 codec of the SDK with that of Node, on arbitrary bytes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

// Node has no host, so only the part of the module that does not import it is loaded.
const text = readFileSync(new URL("runtime.js", import.meta.url), "utf8");
const source = text.slice(0, text.indexOf("globalThis.TextEncoder")).replace(/^import .*$/gm, "");
const { decode, encode } = await import(`data:text/javascript,${encodeURIComponent(source)}`);

const BYTES = [0x20, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xe0, 0xe2, 0xed, 0xf0, 0xf1, 0xf4, 0xff];
const UNITS = [0x41, 0xe4, 0x4e16, 0xd83e, 0xdd80, 0xdc00];
let state = 1;
const any = (list) => {
  state = (state * 1103515245 + 12345) & 0x7fffffff;
  return list[(state >> 8) % list.length];
};
const some = (list) => Array.from({ length: any([0, 1, 2, 3, 5, 8]) }, () => any(list));

test("decode of arbitrary bytes agrees with Node", () => {
  const node = new TextDecoder("utf-8", { ignoreBOM: true });
  for (let i = 0; i < 20000; i++) {
    const bytes = Uint8Array.from(some(BYTES));
    assert.equal(decode(bytes), node.decode(bytes), `${bytes}`);
  }
  const long = "ü🦀".repeat(10000);
  assert.equal(decode(new TextEncoder().encode(long)), long);
});

test("encode of arbitrary text agrees with Node", () => {
  const node = new TextEncoder();
  for (let i = 0; i < 20000; i++) {
    const text = String.fromCharCode(...some(UNITS));
    assert.deepEqual(encode(text), node.encode(text));
  }
});
