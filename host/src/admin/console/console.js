// The page: reads the states of objects again and again, and shows the view that the address names. Everything can be done by keyboard.

import { element, objectHref } from "./elements.js";
import {
  attentionView, connectionsView, needsAttention, objectsView, objectView, pluginsView, recentView, recordingView,
} from "./views.js";

const VIEWS = {
  attention: attentionView, objects: objectsView, plugins: pluginsView, connections: connectionsView, recent: recentView,
  object: objectView, recording: recordingView,
};
const TABS = ["attention", "objects", "plugins", "connections", "recent"];
const REFRESH_MS = 5000;
// A long answer takes the host time: no more than this part of it.
const MAX_LOAD = 0.1;

const byId = id => document.getElementById(id);
const main = byId("main");
const filter = byId("filter");
const namespace = byId("namespace");
const data = { states: [], status: null, statusError: null };
let view = null;
// Addresses of the views so far. Not those of the browser, which may lead away from the page.
const visited = [];

/** Asks the host. Returns `{value}` or `{error}`, in the words of the host. */
async function ask(path, parameters, method = "GET") {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  try {
    // The page is a folder below the host's other paths, whatever stands before them.
    const response = await fetch(`../${path}?${query}`, { method, cache: "no-store" });
    const text = await response.text();
    if (response.ok) return { value: JSON.parse(text) };
    let message = text || response.statusText;
    try { message = JSON.parse(text).message ?? message; } catch { /* It is no JSON. */ }
    return { error: message, status: response.status };
  } catch (error) {
    return { error: `The host does not answer: ${error.message}` };
  }
}

const context = {
  main,
  go(href) { location.hash = href; },
  get: (path, parameters) => ask(path, parameters),
  async reconcile({ kind, namespace, name }) {
    const answer = await ask("reconcile", { kind, namespace, name }, "POST");
    if (answer.error) announce(answer.error, true);
    await refresh();
  },
};

function announce(text, isBad = false) {
  byId("freshness").textContent = text;
  byId("freshness").className = isBad ? "bad" : "faint";
}

/** Shows the view of the address. */
function navigate() {
  const [name, ...parts] = location.hash.slice(1).split("/");
  const create = VIEWS[name] ?? attentionView;
  view?.list?.close();
  view = create(context, parts.map(decodeURIComponent));
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === (VIEWS[name] ? name : "attention")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  visited.push(location.hash);
  main.replaceChildren(view.root);
  main.scrollTop = 0;
  view.list?.setFilter(filter.value);
  update();
}

/** Updates the view. An error is a bug of the page: shown, rather than an empty page. */
async function update() {
  try {
    await view.update(data);
  } catch (error) {
    main.prepend(element("p", { class: "notice bad" }, `The page has a bug: ${error.message}`));
  }
}

let refreshing = null;

/** Reads everything again, once at a time. */
function refresh() {
  refreshing ??= read().finally(() => { refreshing = null; });
  return refreshing;
}

async function read() {
  const began = performance.now();
  const [states, status] = await Promise.all([ask("states", { namespace: namespace.value.trim() }), ask("status", {})]);
  if (states.error) announce(states.error, true);
  else {
    data.states = states.value;
    announce(new Date().toLocaleTimeString());
    byId("attention-count").textContent = data.states.filter(needsAttention).length || "";
    byId("objects-count").textContent = data.states.length || "";
  }
  data.status = status.value ?? null;
  data.statusError = status.error ?? null;
  const leads = data.status?.leases.map(lease => (lease.leads ? `leads with the Lease ${lease.name}` : `standby of ${lease.name}: ask the leader`));
  byId("host").textContent = data.status ? [`Ostler ${data.status.version}`, ...leads].join(", ") : "";
  await update();
  return performance.now() - began;
}

async function refreshForever() {
  for (;;) {
    const took = document.hidden ? 0 : await refresh();
    await new Promise(resolve => setTimeout(resolve, Math.max(REFRESH_MS, took / MAX_LOAD)));
  }
}

function goBack() {
  visited.pop();
  location.hash = visited.pop() ?? "#attention";
}

const KEYS = {
  "/": () => filter.focus(),
  Escape: goBack,
  r: () => view.object && context.reconcile(view.object),
  t: () => view.object && context.go(objectHref(view.object).replace("#object", "#recording")),
  Enter() {
    const row = view.list?.current();
    if (row) context.go(objectHref(row));
  },
};
const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target instanceof HTMLInputElement;
  if (isTyping) {
    if (event.key === "Escape" || event.key === "Enter") event.target.blur();
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  }
  // Links and buttons have their own.
  if (event.key === "Enter" && event.target.closest("a, button")) return;
  const move = moves[event.key];
  const movable = view.list ?? view;
  if (move && movable.move) movable.move(move);
  else if (/^[1-5]$/.test(event.key) && !isTyping) context.go("#" + TABS[event.key - 1]);
  else if (KEYS[event.key] && !isTyping) KEYS[event.key]();
  else return;
  event.preventDefault();
});
filter.addEventListener("input", () => view.list?.setFilter(filter.value));
namespace.addEventListener("change", refresh);
window.addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", () => document.hidden || refresh());

navigate();
refreshForever();
