// Shared state of the page, as signals. Derived values are computed.

import { computed, effect, signal } from "./vendor/preact.js";
import { Looks } from "./graph/colours.js";
import { Graph } from "./graph/model.js";
import { difference, holds } from "./graph/time.js";

/** @typedef {import("./graph/model.js").Node} Node */
/** @typedef {import("./graph/model.js").Edge} Edge */
/** @typedef {import("./graph/time.js").Clock} Clock */

/** Caller: `{name, role, stores, expires, open}`; null: not known yet. */
export const me = signal(/** @type {any} */ (null));
/** List of stores; null: not known yet. */
export const stores = signal(/** @type {any[] | null} */ (null));
/** Number of all stores; `stores` may hold the first pages only. */
export const storeCount = signal(0);
/** Current store; empty text: the list of stores. */
export const store = signal("");
/** Reason why the store cannot be shown; empty: it can. */
export const lost = signal("");
/** Statistics and settings of the store; null: not known yet. */
export const about = signal(/** @type {{stats: any, settings: any} | null} */ (null));
export const timeline = signal(/** @type {[number, number, string, string, number][]} */ ([]));
/** Reason why this store has no history to browse; empty: it has. */
export const noPast = signal("");

export const graph = new Graph();
export const looks = new Looks();
/** Number of changes to the content or style of the canvas. */
export const revision = signal(0);
/** Number of times nodes have moved. */
export const moved = signal(0);
export const settled = signal(true);
/** True if the overview can be enlarged. */
export const truncated = signal(false);

/** Visible view: `graph`, `table`, `memories`, `live`, `stats`, `settings`. */
export const view = signal("graph");
/** Visible part on narrow screens: `middle`, `details`. */
export const sheet = signal("middle");
/** Key of the node in focus, which the panel shows and keyboard navigation starts from. */
export const focus = signal("");
/** Key of the edge that the panel shows instead of the node in focus; empty: none. */
export const openEdge = signal("");
effect(() => {
  focus.value;
  openEdge.value = "";
});
export const selected = signal(/** @type {Set<string>} */ (new Set()));
/** Nodes of the requested path, in order. */
export const way = signal(/** @type {string[]} */ ([]));
export const hiddenTypes = signal(/** @type {Set<string>} */ (new Set()));
export const hiddenRelations = signal(/** @type {Set<string>} */ (new Set()));

/** Commit that is shown; null: now. */
export const asOf = signal(/** @type {number | null} */ (null));
/** Valid time: `now`, `any`, or a time as text. */
export const validAt = signal("now");
/** Two commits that are compared; null: none. */
export const compared = signal(/** @type {{before: number, after: number} | null} */ (null));

export const searchText = signal("");
/** Open tab of the memories: `list`, `entities`, `proposals`, `numbers`. */
export const memoryPart = signal("list");
/** Id of the entity whose page is open; empty: the list of entities. */
export const openEntity = signal("");
/** Filters of the list of memories, as in a query. */
export const memoryFilter = signal("");
/** Open parts of the page. */
export const cypherOpen = signal(false);
export const timeOpen = signal(false);
export const panelOpen = signal(true);
/** Visible tab of the side panel: `details`, `results`, `compare`. */
export const panelTab = signal("details");
export const helpOpen = signal(false);
export const keyOpen = signal(false);
/** Open entry dialog; null: none. */
export const entry = signal(/** @type {{kind: "node"} | {kind: "edge", from: string, to: string} | {kind: "import", file: File | null} | null} */ (null));
/** True while dragging from a node draws an edge. */
export const connecting = signal(false);
/** Step of the tour, from 1; 0: there is none. */
export const tourStep = signal(0);
/** Status message: shown as a toast unless quiet, and announced by screen readers. */
export const message = signal(/** @type {{text: string, bad: boolean, quiet: boolean, undo?: () => Promise<void>}} */ ({ text: "", bad: false, quiet: true }));
export const busy = signal(0);

export const mayWrite = computed(() => me.value !== null && me.value.role !== "read" && asOf.value === null && compared.value === null);
export const mayAdminister = computed(() => me.value?.role === "admin");

/** @type {import("./vendor/preact.js").ReadonlySignal<Clock>} */
export const clock = computed(() => {
  revision.value; // A change may have ended something just now.
  const at = validAt.value;
  return { asOf: asOf.value, validAt: at === "any" ? null : at === "now" ? Date.now() : Date.parse(at) };
});

/** Visible part of the canvas, by clocks, comparison and filters. */
export const visible = computed(() => {
  revision.value;
  const [time, two] = [clock.value, compared.value];
  /** @type {(row: Node | Edge) => boolean} */
  const seen = (row) => (two ? difference(row, two.before, two.after) !== "never" : holds(row, time));
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  for (const node of graph.nodes.values()) {
    if (!node.hidden && !hiddenTypes.value.has(node.type) && seen(node)) nodes.set(node.key, node);
  }
  /** @type {Edge[]} */
  const edges = [];
  for (const edge of graph.edges.values()) {
    if (nodes.has(edge.from) && nodes.has(edge.to) && !hiddenRelations.value.has(edge.type) && seen(edge)) edges.push(edge);
  }
  return { nodes, edges };
});

export const changed = () => {
  revision.value++;
};

/** Toggle the selection of a node, and focus it. @param {string} key */
export function choose(key) {
  const next = new Set(selected.value);
  if (!next.delete(key)) next.add(key);
  selected.value = next;
  focus.value = key;
  openEdge.value = "";
}

/** Select a node and show its details. @param {string} key */
export function look(key) {
  focus.value = key;
  openEdge.value = "";
  selected.value = new Set([key]);
  showPanel("details", false);
}

/** Show a tab of the side panel. @param {string} tab @param {boolean} [open] false: leave a closed panel closed */
export function showPanel(tab, open = true) {
  panelTab.value = tab;
  sheet.value = "details";
  if (open) panelOpen.value = true;
}

/** Show a toast. @param {string} text @param {boolean} [bad] @param {() => Promise<void>} [undo] takes back what it reports */
export const say = (text, bad = false, undo = undefined) => {
  message.value = { text, bad, quiet: false, undo };
};

/** Undo the change that the toast reports; return whether there is one. */
export function undoLast() {
  const { undo } = message.value;
  if (!undo) return false;
  announce("");
  void attempt(undo);
  return true;
}

/** Announce a text to screen readers only. @param {string} text */
export const announce = (text) => {
  message.value = { text, bad: false, quiet: true };
};

/**
 * Run a task; if it fails, show the error and return undefined.
 * @template T @param {() => Promise<T>} task @returns {Promise<T | undefined>}
 */
export async function attempt(task) {
  busy.value++;
  try {
    return await task();
  } catch (error) {
    if (/** @type {any} */ (error)?.name !== "AbortError") say(/** @type {Error} */ (error).message, true);
    return undefined;
  } finally {
    busy.value--;
  }
}
