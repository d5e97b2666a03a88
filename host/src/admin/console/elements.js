// Elements of the page, and texts for people. Names and messages come from objects and plugins: they become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    // By the object model: the policy of the page allows no style attributes.
    else if (name === "style") Object.entries(value).forEach(([property, text]) => node.style.setProperty(property, text));
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

/** Creates an HTML element with attributes, listeners (`onclick`), styles (an object) and children. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Creates an SVG element. */
export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Formats a duration of seconds in one unit: `3 m`. */
export function formatSeconds(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "m"]];
  const [size, unit] = units.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

/** Formats the time since a timestamp (RFC 3339); empty without one. */
export function formatAge(timestamp) {
  return timestamp ? formatSeconds((Date.now() - Date.parse(timestamp)) / 1000) : "";
}

/** Formats microseconds. */
export function formatMicroseconds(microseconds) {
  if (microseconds === undefined || microseconds === null) return "";
  return microseconds < 1000 ? `${microseconds} µs` : `${(microseconds / 1000).toFixed(1)} ms`;
}

/** The kind of an object without version and group. */
export function shortKind(kind) {
  return kind.split(".")[0];
}

/** The name of an object for people: `Team/ci/platform`. */
export function nameObject({ kind, namespace, name }) {
  return [shortKind(kind), namespace, name].filter(Boolean).join("/");
}

/** The address of the view of an object. */
export function objectHref({ kind, namespace, name }) {
  return "#object/" + [kind, namespace, name].map(encodeURIComponent).join("/");
}

const SHADES = {
  Ready: "good", Serving: "good", consuming: "good", open: "good", synced: "good",
  NotReady: "bad", Absent: "bad", Refused: "bad", RolledBack: "bad", failing: "bad",
  Terminating: "waiting", Paused: "waiting", New: "waiting", Unknown: "waiting", Loading: "waiting", waiting: "waiting",
};

/** The class of a state: good, waiting or bad; none for others. */
export function shadeOf(state) {
  return SHADES[state] ?? "";
}

/** A word with the colour of its state. */
export function stateElement(state) {
  return element("span", { class: shadeOf(state) }, state);
}
