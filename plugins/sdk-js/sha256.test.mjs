import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";
import { hashBytes } from "./sha256.js";

test("hash of any length is that of the platform", () => {
  for (let length = 0; length < 300; length++) {
    const bytes = randomBytes(length);
    assert.equal(hashBytes(bytes), createHash("sha256").update(bytes).digest("hex"), `${length} bytes`);
  }
});
