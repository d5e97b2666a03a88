// The views: each returns an element, and may update itself when the data is read again.

import {
  element, formatAge, formatMicroseconds, formatSeconds, nameObject, objectHref, shadeOf, shortKind, stateElement,
} from "./elements.js";
import { drawGraph, listReads, stateText } from "./graph.js";
import { List } from "./list.js";

const keyOf = ({ kind, namespace, name }) => `${kind}/${namespace}/${name}`;

const KIND = { title: "Kind", width: "minmax(8em, 1fr)", text: row => shortKind(row.kind) };
const OBJECT = { title: "Object", width: "minmax(14em, 2fr)", text: nameObject };
const NAMESPACE = { title: "Namespace", width: "minmax(8em, 1fr)", text: row => row.namespace };
const NAME = { title: "Name", width: "minmax(10em, 2fr)", text: row => row.name };
const STATE = { title: "State", width: "7em", text: row => row.state, shade: row => shadeOf(row.state) };
const REASON = { title: "Reason", width: "minmax(9em, 1fr)", text: row => row.reason };
const MESSAGE = { title: "Message", width: "minmax(14em, 3fr)", text: row => row.message };
const SINCE = { title: "Since", width: "4.5em", text: row => formatAge(row.since), value: row => row.since ?? "", number: true };
const WAITS = { title: "Waits for", width: "minmax(12em, 2fr)", text: row => row.waits_for.join(", ") };
const PLACES = { settled: "on change" };
const NEXT = {
  title: "Next run", width: "7em",
  text: row => (row.next.in_seconds === null ? PLACES[row.next.place] ?? row.next.place : `in ${formatSeconds(row.next.in_seconds)}`),
  value: row => row.next.in_seconds ?? Infinity,
};
const PLUGIN = { title: "Plugin", width: "minmax(8em, 1fr)", text: row => row.plugin };
const LAST = { title: "Last run", width: "6em", text: row => formatAge(row.last_reconcile), value: row => row.last_reconcile ?? "", number: true };
const TOOK = {
  title: "Took", width: "6em", text: row => (row.last_ms === null ? "" : formatMicroseconds(Math.round(row.last_ms * 1000))),
  value: row => row.last_ms ?? 0, number: true,
};
const RUNS = { title: "Runs", width: "5em", text: row => String(row.reconciles), value: row => row.reconciles, number: true };
const FAILURES = {
  title: "Failed", width: "5em", text: row => String(row.failures), value: row => row.failures, number: true,
  shade: row => row.failures && "bad",
};

/** True for an object that somebody has to look at: it is not Ready, is not deleted, or nothing reconciles it. */
export function needsAttention(row) {
  return row.state === "NotReady" || row.state === "Terminating" || (row.state === "New" && row.next.place === "settled");
}

/** Sorts causes before effects: first what waits for none of the others, and of equal ones what has waited longest. */
function sortByUrgency(rows) {
  const byName = new Map(rows.map(row => [nameObject(row), row]));
  const distances = new Map();
  const distance = row => {
    if (!distances.has(row)) {
      // Objects that wait for each other have no first one.
      distances.set(row, 0);
      const causes = row.waits_for.map(name => byName.get(name)).filter(cause => cause && cause !== row);
      distances.set(row, Math.max(0, ...causes.map(cause => distance(cause) + 1)));
    }
    return distances.get(row);
  };
  return rows.sort((a, b) => distance(a) - distance(b) || (a.since ?? "").localeCompare(b.since ?? ""));
}

function listView(context, columns, select, empty, above = null) {
  const list = new List({ columns, keyOf, open: row => context.go(objectHref(row)), scroller: context.main, empty });
  const notices = element("div", { class: "page", hidden: true });
  return {
    root: element("div", {}, notices, list.root),
    list,
    update(data) {
      const found = above?.(data) ?? [];
      notices.hidden = !found.length;
      notices.replaceChildren(...found);
      list.setRows(select(data.states));
    },
  };
}

/** What is wrong with the host or a plugin as a whole. */
function listNotices({ status }) {
  if (!status) return [];
  const notice = (...children) => element("p", { class: "notice bad" }, ...children);
  const notices = [];
  if (status.grants_error) notices.push(notice("The grants file is invalid, and the previous grants apply: ", status.grants_error));
  for (const plugin of status.plugins) {
    if (plugin.message) notices.push(notice(`Plugin ${plugin.name} (${plugin.state}): ${plugin.message}`));
    if (plugin.trapping) notices.push(notice(`Plugin ${plugin.name}: the last calls for ${plugin.trapping} objects trapped`));
  }
  for (const watch of status.watches.filter(watch => watch.state === "failing")) {
    notices.push(notice(`Watch of ${watch.kind} in ${watch.namespace || "all namespaces"}: ${watch.message}`));
  }
  return notices;
}

export function attentionView(context) {
  const select = rows => sortByUrgency(rows.filter(needsAttention));
  return listView(context, [OBJECT, REASON, SINCE, WAITS, MESSAGE, NEXT], select, "All objects are Ready.", listNotices);
}

export function objectsView(context) {
  const columns = [KIND, NAMESPACE, NAME, STATE, REASON, SINCE, NEXT, PLUGIN, RUNS, FAILURES];
  return listView(context, columns, rows => rows, "No object is reconciled.");
}

export function recentView(context) {
  const select = rows => rows.filter(row => row.last_reconcile)
    .sort((a, b) => b.last_reconcile.localeCompare(a.last_reconcile));
  return listView(context, [LAST, OBJECT, STATE, PLUGIN, TOOK, RUNS, FAILURES, NEXT], select, "Nothing was reconciled yet.");
}

export function connectionsView(context) {
  const select = rows => rows.filter(row => /^(Upstream|Cluster)\..*\.ostler\.dev$/.test(row.kind));
  return listView(context, [KIND, NAMESPACE, NAME, STATE, REASON, SINCE, MESSAGE], select, "There are no upstreams and clusters.");
}

export function pluginsView() {
  const root = element("div", { class: "page" });
  const update = ({ status, statusError }) => {
    if (!status) {
      root.replaceChildren(element("p", { class: "notice" }, statusError ?? "Reading…"));
      return;
    }
    root.replaceChildren(...status.plugins.map(plugin => drawPlugin(plugin, status)));
    if (!status.plugins.length) root.append(element("p", { class: "faint" }, "No plugin is installed."));
  };
  return { root, update };
}

function drawPlugin(plugin, status) {
  const queue = status.queue.find(queue => queue.plugin === plugin.name);
  const kinds = plugin.kinds.map(kind => {
    const counted = status.objects.find(objects => objects.kind === kind);
    return counted ? `${shortKind(kind)} (${counted.ready} of ${counted.total} Ready)` : shortKind(kind);
  });
  const canary = plugin.canary && element("p", {}, "Canary ", element("b", {}, plugin.canary.version), " ",
    element("code", {}, plugin.canary.digest.slice(0, 12)), " ", stateElement(plugin.canary.state));
  const unused = plugin.permissions.filter(permission => permission.used === false).length;
  const permissions = element("details", { open: unused > 0 && unused < plugin.permissions.length },
    element("summary", {}, `${plugin.permissions.length} permissions`, unused ? `, ${unused} not used since this host started` : ""),
    element("ul", {}, plugin.permissions.map(permission =>
      element("li", { class: permission.used === false && "faint" }, permission.text, permission.used === false ? " (not used)" : ""))));
  return element("section", { class: "plugin" },
    element("h2", {}, plugin.name, " ", element("small", { class: "faint" }, plugin.version), " ", stateElement(plugin.state)),
    element("dl", {},
      element("dt", {}, "Build"), element("dd", {}, element("code", {}, plugin.digest.slice(0, 12) || "none serves"),
        plugin.last_good && plugin.last_good !== plugin.digest ? ` (last good: ${plugin.last_good.slice(0, 12)})` : "",
        ` from ${plugin.file}`),
      element("dt", {}, "Reconciles"), element("dd", {}, kinds.join(", ") || "nothing"),
      queue && [element("dt", {}, "Queue"), element("dd", {}, `${queue.due} due, ${queue.running} running`)]),
    plugin.message && element("p", { class: "notice bad" }, plugin.message),
    canary, plugin.permissions.length ? permissions : null);
}

/** One object: why it is as it is, the graph around it, its errors and causes. */
export function objectView(context, [kind, namespace, name]) {
  const root = element("div", { class: "page" });
  const query = { kind, namespace, name };
  const update = async data => {
    const answer = await context.get("explain", query);
    root.replaceChildren(...(answer.error
      ? [element("p", { class: "notice bad" }, answer.error)]
      : drawObject(context, answer.value, data)));
  };
  return { root, update, object: { kind, namespace, name } };
}

function drawObject(context, explained, data) {
  const title = nameObject(explained);
  const names = new Map(data.states.map(row => [nameObject(row), row]));
  const fact = (term, ...value) => [element("dt", {}, term), element("dd", {}, ...value)];
  const next = explained.next.in_seconds === null
    ? explained.next.why : `in ${formatSeconds(explained.next.in_seconds)}: ${explained.next.why}`;
  const reads = listReads(explained);
  const table = (heads, rows) => element("table", {},
    element("thead", {}, element("tr", {}, heads.map(head => element("th", { scope: "col" }, head)))),
    element("tbody", {}, rows.map(row => element("tr", {}, row.map(cell => element("td", {}, cell))))));
  return [
    element("h2", {}, title, " ", stateElement(explained.state)),
    element("p", {},
      element("button", { id: "reconcile", onclick: () => context.reconcile(explained) }, "Reconcile"), " ",
      element("a", { href: objectHref(explained).replace("#object", "#recording") }, "Last recording")),
    element("dl", {},
      explained.reason && fact("Why", explained.message ? `${explained.reason}: ${explained.message}` : explained.reason),
      fact("Next run", next),
      explained.finalizers.length ? fact("Deletion waits for", explained.finalizers.join(", ")) : null,
      explained.permits?.length ? fact("Permits", explained.permits.join(", ")) : null,
      fact("Plugin", `${explained.plugin} ${explained.plugin_digest.slice(0, 12)}`),
      fact("Reconciles", `${explained.reconciles}, ${explained.attempts} failures in a row`),
      explained.last_reconcile && fact("Last run", `${formatAge(explained.last_reconcile)} ago`,
        explained.last_ms === null ? "" : `, took ${formatMicroseconds(Math.round(explained.last_ms * 1000))}`),
      explained.woken_by.length ? fact("Woken by", countRuns(explained.woken_by).join(", ")) : null),
    element("h3", {}, "Graph"),
    drawGraph(explained, title, text => names.get(text)),
    explained.errors.length ? [element("h3", {}, "Last errors"),
      table(["When", "Times", "Reason", "Message"], explained.errors.slice().reverse().map(error =>
        [formatAge(error.at) + " ago", String(error.count), error.reason, error.message]))] : null,
    reads.length ? [element("h3", {}, "Reads of the last reconcile"),
      table(["Object", "State", "Why"], reads.map(read => {
        const known = names.get(read.what);
        return [known ? element("a", { href: objectHref(known) }, read.what) : read.what, stateElement(stateText(read.state)), read.why ?? ""];
      }))] : null,
    explained.subscriptions?.length ? [element("h3", {}, "Queues"),
      table(["Plugin", "Queue", "State", "Messages", "Why"], explained.subscriptions.map(queue =>
        [queue.plugin, queue.queue, stateElement(queue.state), String(queue.depth ?? ""), queue.why ?? ""]))] : null,
    explained.follows?.length ? [element("h3", {}, "Event streams"),
      table(["Stream", "State", "Events", "Why"], explained.follows.map(stream =>
        [stream.what, stateElement(stream.state), String(stream.events), stream.why ?? ""]))] : null,
  ].flat(Infinity).filter(Boolean);
}

/** Joins equal neighbours: `retry (5 times)`. */
function countRuns(texts) {
  const runs = [];
  for (const text of texts) {
    const last = runs.at(-1);
    if (last?.text === text) last.count += 1;
    else runs.push({ text, count: 1 });
  }
  return runs.map(({ text, count }) => (count > 1 ? `${text} (${count} times)` : text));
}

/** The last recording of an object, step by step. */
export function recordingView(context, [kind, namespace, name]) {
  const root = element("div", { class: "page" });
  const view = { root, object: { kind, namespace, name }, move() {} };
  let isDrawn = false;
  view.update = async () => {
    // Another one would take the selected step away.
    if (isDrawn) return;
    const answer = await context.get("recording", { kind, namespace, name });
    if (answer.error) {
      root.replaceChildren(element("p", { class: "notice bad" }, answer.error));
    } else {
      isDrawn = true;
      drawRecording(view, answer.value);
    }
  };
  return view;
}

function drawRecording(view, recording) {
  const whole = Math.max(1, recording.tookMicroseconds);
  const steps = [{ function: recording.function, result: recording.request, title: "request" },
    ...recording.calls, { function: recording.ended, result: recording.end, title: "end", atMicroseconds: whole }];
  const detail = element("div", {});
  const items = steps.map((step, i) => element("li", { role: "option", "aria-selected": "false", onclick: () => select(i) },
    element("span", { class: "faint" }, String(i)),
    element("span", {}, step.title ? element("b", {}, step.function) : step.function, " ",
      element("span", { class: "faint" }, summarizeArguments(step.arguments))),
    element("span", { class: "faint" }, formatMicroseconds(step.title ? step.atMicroseconds : step.tookMicroseconds)),
    step.title ? null : element("span", { class: "bar" }, bar(step, whole))));
  const select = index => {
    view.selected = index;
    items.forEach((item, i) => item.setAttribute("aria-selected", String(i === index)));
    items[index].scrollIntoView({ block: "nearest" });
    const step = steps[index];
    const part = (title, value) => (value === undefined || value === null ? [] : [element("h3", {}, title), element("pre", {}, JSON.stringify(value, null, 2))]);
    detail.replaceChildren(element("h2", {}, step.function),
      ...part("Arguments", step.arguments), ...part(step.title === "request" ? "Request" : "Result", step.result));
  };
  view.move = by => select(Math.min(steps.length - 1, Math.max(0, view.selected + by)));
  view.root.replaceChildren(
    element("h2", {}, recording.object),
    element("p", { class: "faint" }, `${recording.function} by ${recording.plugin.name} ${recording.plugin.version}, ended: ${recording.ended}. Took `,
      `${formatMicroseconds(recording.tookMicroseconds)}, of which ${formatMicroseconds(recording.cpuMicroseconds)} CPU time. ${recording.metadata.creationTimestamp}`),
    recording.withheld ? element("p", { class: "notice" }, recording.withheld) : "",
    recording.cut ? element("p", { class: "notice" }, "The recording has reached its maximum size: later host calls are missing.") : "",
    element("div", { class: "steps" }, element("ol", { role: "listbox", "aria-label": "Host calls" }, items), detail));
  select(0);
}

function bar(step, whole) {
  const percent = microseconds => `${(100 * (microseconds ?? 0)) / whole}%`;
  return element("i", { style: { left: percent(step.atMicroseconds), width: percent(step.tookMicroseconds) } });
}

/** The values of arguments that are short, in one line. */
function summarizeArguments(value) {
  if (value === null || typeof value !== "object") return "";
  const texts = Object.values(value).flatMap(part => (part && typeof part === "object" ? Object.values(part) : [part]));
  return texts.filter(text => typeof text === "string" && text.length && text.length < 60).join(" ");
}
