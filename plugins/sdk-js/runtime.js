// The parts of a JavaScript runtime that QuickJS lacks: UTF-8, a console and the time. They use the host functions, so a
// plugin needs no other import, and a replay returns the recorded times.
import clock from "ostler:plugin/clock@0.1.0";
import log from "ostler:plugin/log@0.1.0";

/** Decodes UTF-8; malformed bytes become U+FFFD, as the Encoding Standard requires. */
export function decode(bytes) {
  const parts = [];
  let units = [];
  for (let i = 0; i < bytes.length; ) {
    let point = bytes[i++];
    if (point >= 0x80) {
      const more = point >= 0xc2 && point < 0xe0 ? 1 : point >= 0xe0 && point < 0xf0 ? 2 : point >= 0xf0 && point < 0xf5 ? 3 : 0;
      // The range of the second byte excludes overlong forms, surrogates and code points above U+10FFFF.
      let low = point === 0xe0 ? 0xa0 : point === 0xf0 ? 0x90 : 0x80;
      let high = point === 0xed ? 0x9f : point === 0xf4 ? 0x8f : 0xbf;
      point = more ? point & (0x3f >> more) : -1;
      for (let n = 0; n < more && point >= 0; n++, low = 0x80, high = 0xbf) {
        const byte = bytes[i];
        point = byte >= low && byte <= high ? (i++, (point << 6) | (byte & 0x3f)) : -1;
      }
      if (point < 0) point = 0xfffd;
    }
    if (point > 0xffff) units.push(0xd7c0 + (point >> 10), 0xdc00 | (point & 0x3ff));
    else units.push(point);
    if (units.length > 4096) {
      parts.push(String.fromCharCode.apply(null, units));
      units = [];
    }
  }
  parts.push(String.fromCharCode.apply(null, units));
  return parts.join("");
}

/** Encodes a text as UTF-8; an unpaired surrogate becomes U+FFFD. */
export function encode(text) {
  const bytes = [];
  for (const letter of `${text}`) {
    let point = letter.codePointAt(0);
    if (point >= 0xd800 && point <= 0xdfff) point = 0xfffd;
    if (point < 0x80) bytes.push(point);
    else if (point < 0x800) bytes.push(0xc0 | (point >> 6), 0x80 | (point & 0x3f));
    else if (point < 0x10000) bytes.push(0xe0 | (point >> 12), 0x80 | ((point >> 6) & 0x3f), 0x80 | (point & 0x3f));
    else {
      bytes.push(0xf0 | (point >> 18), 0x80 | ((point >> 12) & 0x3f), 0x80 | ((point >> 6) & 0x3f), 0x80 | (point & 0x3f));
    }
  }
  return Uint8Array.from(bytes);
}

globalThis.TextEncoder ??= class TextEncoder {
  encode = encode;
};
globalThis.TextDecoder ??= class TextDecoder {
  decode = (bytes) => decode(new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength));
};

const shown = (value) => (typeof value === "string" ? value : value instanceof Error ? `${value}` : JSON.stringify(value));
const line = (level) => (...values) => log.write(level, values.map(shown).join(" "), []);
globalThis.console = {
  debug: line("debug"), log: line("info"), info: line("info"), warn: line("warn"), error: line("error"), trace: line("trace"),
};

const now = () => Number(clock.now());
const Native = globalThis.Date;
globalThis.Date = class Date extends Native {
  constructor(...parts) {
    super(...(parts.length ? parts : [now()]));
  }
  static now = now;
};

/** The field that stands for an integer in JSON text on its way to or from a BigInt. */
const INTEGER = "$ostler.integer";
const MARKED_INTEGERS = /\{"\$ostler\.integer":"(-?\d+)"\}/g;
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parses JSON. An integer that a number cannot represent exactly is a BigInt, for example a quantity of bytes above 2^53. */
export function parseJson(text) {
  // The replacement costs as much as parsing: few texts have an integer of 16 digits.
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  let found = false;
  const marked = text.replace(TOKENS, (token) => {
    if (token[0] === '"' || !/^-?\d{16,}$/.test(token) || Number.isSafeInteger(Number(token))) return token;
    found = true;
    return `{"${INTEGER}":"${token}"}`;
  });
  if (!found) return JSON.parse(text);
  return JSON.parse(marked, (_, value) => (typeof value?.[INTEGER] === "string" ? BigInt(value[INTEGER]) : value));
}

/** Writes JSON, in which a BigInt is an integer. */
export function stringifyJson(value) {
  let found = false;
  const text = JSON.stringify(value, (_, inner) => {
    if (typeof inner !== "bigint") return inner;
    found = true;
    return { [INTEGER]: `${inner}` };
  });
  return found ? text.replace(MARKED_INTEGERS, "$1") : text;
}
