// Keyboard shortcuts, as listed by `?`.

import { towards } from "./graph/pick.js";
import { expand } from "./load.js";
import { canvas } from "./panel/canvas.js";
import { step } from "./panel/time.js";
import { announce, changed, choose, compared, connecting, cypherOpen, entry, focus, graph, helpOpen, mayWrite, selected, sheet, store, timeOpen, tourStep, undoLast, view, visible, way } from "./state.js";

const ARROWS = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };
const ZOOM = 1.25;

/** Show the path between two selected nodes, or the selected one and the one in focus. */
export function findPath() {
  const ends = [...selected.value];
  if (ends.length === 1 && focus.value && focus.value !== ends[0]) ends.push(focus.value);
  if (ends.length < 2) return false;
  void import("./expand.js").then((found) => found.showPath(ends[0], ends[1]));
  return true;
}

/** Hide nodes until `unhide`. @param {Iterable<string>} keys */
export function hide(keys) {
  for (const key of keys) {
    const node = graph.nodes.get(key);
    if (node) node.hidden = true;
  }
  selected.value = new Set();
  changed();
}

/** @param {Iterable<string>} keys */
export function pin(keys) {
  for (const key of keys) {
    const node = graph.nodes.get(key);
    if (node) node.pinned = !node.pinned;
  }
  changed();
}

export function unhide() {
  for (const node of graph.nodes.values()) node.hidden = false;
  changed();
}

/** @param {"up" | "down" | "left" | "right"} direction */
function go(direction) {
  const { nodes } = visible.value;
  const from = nodes.get(focus.value);
  if (!from) {
    focus.value = nodes.keys().next().value ?? "";
    return;
  }
  const seen = graph.neighbours(from.key).flatMap((key) => nodes.get(key) ?? []);
  const next = towards(from, seen, direction) ?? towards(from, [...nodes.values()], direction);
  if (next) focus.value = next.key;
}

/** Open the dialog for an edge from the node in focus, or between two selected ones. */
function enterEdge() {
  const own = (/** @type {string} */ key) => (graph.nodes.get(key)?.store === "" ? key : "");
  const [from, to] = selected.value.size === 2 ? [...selected.value] : [focus.value, ""];
  entry.value = { kind: "edge", from: own(from), to: own(to) };
}

/** Handle a key of the canvas; return whether it is known. @param {KeyboardEvent} event */
function onCanvas(event) {
  const direction = ARROWS[event.key];
  if (direction) go(direction);
  else if (event.key === "Enter") void expand(focus.value);
  else if (event.key === " ") choose(focus.value);
  else if (event.key === "h") hide(selected.value.size ? selected.value : [focus.value]);
  else if (event.key === "H") unhide();
  else if (event.key === "p") pin([focus.value]);
  else if (event.key === "e" && mayWrite.value) enterEdge();
  else if (event.key === "w") findPath();
  else if (event.key === "+" || event.key === "=") canvas.zoom(ZOOM);
  else if (event.key === "-") canvas.zoom(1 / ZOOM);
  else if (event.key === "0") canvas.fit();
  else return false;
  return true;
}

/** Focus the command bar and select its text. */
function focusCommandBar() {
  const bar = /** @type {HTMLInputElement | null} */ (document.getElementById("search"));
  bar?.focus();
  bar?.select();
}

/** Toggle the Cypher drawer of the graph and table views. */
export function toggleCypher() {
  const beside = view.value === "graph" || view.value === "table";
  cypherOpen.value = !(cypherOpen.value && beside);
  if (!beside) view.value = "graph";
  sheet.value = "middle";
}

/** Handle a key of the whole page; return whether it is known. @param {KeyboardEvent} event */
function anywhere(event) {
  if (event.key === "?") helpOpen.value = true;
  else if (event.key === "/") focusCommandBar();
  else if (event.key === "g" && store.value) document.getElementById("graph")?.focus();
  else if (event.key === "c" && store.value) toggleCypher();
  else if (event.key === "n" && store.value && mayWrite.value) entry.value = { kind: "node" };
  else if (event.key === "t" && store.value) timeOpen.value = !timeOpen.value;
  else if (event.key === "[" && store.value) step(-1);
  else if (event.key === "]" && store.value) step(1);
  else if (event.key === "Escape") {
    way.value = [];
    compared.value = null;
    timeOpen.value = false;
    connecting.value = false;
    announce("");
  } else return false;
  return true;
}

/** End the tour and focus the graph. */
export function endTour() {
  tourStep.value = 0;
  announce("");
  document.getElementById("graph")?.focus();
}

/** @param {KeyboardEvent} event */
export function onKey(event) {
  if (event.key === "Escape" && tourStep.value) endTour();
  const target = /** @type {HTMLElement} */ (event.composedPath()[0]);
  if (event.key === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    focusCommandBar();
  }
  const writing = target.isContentEditable || target.matches?.("input, textarea, select");
  if (event.key === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !writing && undoLast()) event.preventDefault();
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (writing) return;
  const known = (target.id === "graph" && onCanvas(event)) || anywhere(event);
  if (known) event.preventDefault();
}
