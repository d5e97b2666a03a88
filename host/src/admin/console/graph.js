// The graph around one object: what it reads and waits for on the left, what it owns and holds on the right, who holds it above.

import { objectHref, shadeOf, shape } from "./elements.js";

const BOX = { width: 270, height: 26, gap: 8 };
const MAX_PER_SIDE = 30;

function shorten(text, length = 40) {
  return text.length > length ? text.slice(0, length - 1) + "…" : text;
}

/** The reads of an object, those that it waits for first. */
export function listReads({ waits_for: waits, reads }) {
  const missing = new Set(waits.map(read => read.what));
  return waits.concat(reads.filter(read => !missing.has(read.what)));
}

/** Draws boxes with their edges to the object. `find(text)` returns the known object of a name such as `Team/ci/platform`. */
export function drawGraph(explained, title, find) {
  // A list that may be left out is so while it is empty.
  const owned = new Set(explained.owns ?? []);
  const missing = new Set(explained.waits_for);
  const left = listReads(explained).filter(read => missing.has(read) || !owned.has(read.what))
    .map(read => ({ text: read.what, state: stateText(read.state), missing: missing.has(read) }));
  const right = explained.holders.map(text => ({ text, label: "held by" }))
    .concat([...owned].map(text => ({ text, label: "owns" })), explained.holds.map(text => ({ text, label: "holds" })));
  const sides = [left, right].map(side => side.length > MAX_PER_SIDE
    ? side.slice(0, MAX_PER_SIDE).concat({ text: `and ${side.length - MAX_PER_SIDE} more` }) : side);
  const rows = Math.max(1, ...sides.map(side => side.length));
  const height = rows * (BOX.height + BOX.gap) + 30;
  const middle = height / 2 + 10;
  const xs = { left: 10, centre: 390, right: 770 };
  const svg = shape("svg", { class: "graph", viewBox: `0 0 1050 ${height}`, role: "img", "aria-label": "Graph around " + title });
  const label = (x, text) => shape("g", { class: "title" }, shape("text", { x, y: 14 }, text));
  if (left.length) svg.append(label(xs.left, "waits for, reads"));
  if (right.length) svg.append(label(xs.right, "held by, owns, holds"));
  sides.forEach((side, index) => {
    const x = index ? xs.right : xs.left;
    const start = middle - (side.length * (BOX.height + BOX.gap) - BOX.gap) / 2;
    side.forEach((node, i) => {
      const y = start + i * (BOX.height + BOX.gap);
      const [from, to] = index ? [xs.centre + BOX.width, x] : [x + BOX.width, xs.centre];
      const [startY, endY] = index ? [middle, y + BOX.height / 2] : [y + BOX.height / 2, middle];
      const bend = (from + to) / 2;
      svg.append(shape("path", {
        class: node.missing && "missing", d: `M ${from} ${startY} C ${bend} ${startY} ${bend} ${endY} ${to} ${endY}`,
      }), drawBox(node, x, y, find));
    });
  });
  svg.append(drawBox({ text: title, state: explained.state, centre: true }, xs.centre, middle - BOX.height / 2, () => null));
  return svg;
}

/** The text of a state: `Ready`, or `3 objects` of a list. */
export function stateText(state) {
  return typeof state === "string" ? state : `${state.List} objects`;
}

function drawBox({ text, state, label, centre }, x, y, find) {
  const known = find(text);
  const words = [label && label + " ", shorten(text), state && state !== "Exists" && ` · ${state}`].filter(Boolean).join("");
  const box = shape("g", { class: [shadeOf(state), centre && "centre"].filter(Boolean).join(" ") },
    shape("title", {}, text),
    shape("rect", { x, y, width: BOX.width, height: BOX.height, rx: 5 }),
    shape("text", { x: x + 9, y: y + 17 }, shorten(words, 44)));
  return known ? shape("a", { href: objectHref(known) }, box) : box;
}
