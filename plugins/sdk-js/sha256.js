// SHA-256 (FIPS 180-4). The runtime has it as `crypto.subtle.digest` only, which returns a promise, and an SDK without packages of
// others keeps the components small.

/** The first 32 bits of the fractional parts of a root of the first primes. */
function rootsOfPrimes(count, root) {
  const primes = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
  return primes.map((prime) => (root(prime) * 2 ** 32) | 0);
}

const ROUND_CONSTANTS = rootsOfPrimes(64, Math.cbrt);
const INITIAL_STATE = rootsOfPrimes(8, Math.sqrt);
const BLOCK_BYTES = 64;

const rotate = (word, bits) => (word >>> bits) | (word << (32 - bits));

/** Returns the message, a bit 1, zeros, and the number of its bits, in whole blocks. */
function pad(bytes) {
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / BLOCK_BYTES) * BLOCK_BYTES);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  new DataView(padded.buffer).setBigUint64(padded.length - 8, BigInt(bytes.length) * 8n);
  return new DataView(padded.buffer);
}

/** Returns the SHA-256 hash of bytes in hexadecimal digits. */
export function hashBytes(bytes) {
  const message = pad(bytes);
  const state = [...INITIAL_STATE];
  const schedule = new Int32Array(64);
  for (let offset = 0; offset < message.byteLength; offset += BLOCK_BYTES) {
    for (let t = 0; t < 64; t++) {
      if (t < 16) {
        schedule[t] = message.getInt32(offset + 4 * t);
        continue;
      }
      const [early, late] = [schedule[t - 15], schedule[t - 2]];
      const first = rotate(early, 7) ^ rotate(early, 18) ^ (early >>> 3);
      const second = rotate(late, 17) ^ rotate(late, 19) ^ (late >>> 10);
      schedule[t] = schedule[t - 16] + first + schedule[t - 7] + second;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let t = 0; t < 64; t++) {
      const choice = (e & f) ^ (~e & g);
      const first = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + choice + ROUND_CONSTANTS[t] + schedule[t];
      const majority = (a & b) ^ (a & c) ^ (b & c);
      const second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + majority;
      [a, b, c, d, e, f, g, h] = [(first + second) | 0, a, b, c, (d + first) | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((word, n) => (state[n] = (state[n] + word) | 0));
  }
  return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}
