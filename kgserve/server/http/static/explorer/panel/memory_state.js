// State shared by the memory views, and writes that a toast can undo.

import { signal } from "../vendor/preact.js";
import { put } from "../load.js";
import { labelOf } from "../graph/labels.js";
import { ask, memory } from "../server.js";
import { changed, focus, graph, memoryPart, openEntity, say, selected, sheet, store, view } from "../state.js";
import { W } from "../view_words.js";

/** Number of writes from this page; a change reloads the lists. */
export const written = signal(0);
export { memoryPart, openEntity };

/** @typedef {{id: string, version: number, name?: string, content?: string, confidence?: number}} Row a memory or an entity */
/** @typedef {"fill" | "keep" | "append" | "overwrite"} ContentRule handling of content in a merge */

export const isMemory = (/** @type {Row} */ row) => row.confidence !== undefined;

/** Return whether a node or edge was withdrawn, as by forgetting: its validity ends where it begins. @param {{valid_from?: string, valid_to?: string}} row */
export const isWithdrawn = (row) => Boolean(row.valid_from) && row.valid_from === row.valid_to;

/** Return the titles of nodes, as of a commit if it can be read. @param {string[]} ids @param {number} [as_of] @returns {Promise<Map<string, string>>} */
export async function titlesOf(ids, as_of) {
  if (!ids.length) return new Map();
  const read = (/** @type {number | undefined} */ then = undefined) => ask("POST", memory(store.value, "get"), { body: { ids: [...new Set(ids)].slice(0, 1000), as_of: then, valid_at: "any" } });
  const { nodes } = await read(as_of).catch(() => read()).catch(() => ({ nodes: [] }));
  return new Map(nodes.map((/** @type {any} */ node) => [node.id, labelOf(node)]));
}

/** Show the page of an entity. @param {string} id */
export function showEntity(id) {
  openEntity.value = id;
  memoryPart.value = "entities";
  view.value = "memories";
  sheet.value = "middle";
}

/** Show a node in the graph. @param {string} id */
export async function showInGraph(id) {
  await put([id]);
  if (!graph.nodes.has(id)) return;
  focus.value = id;
  selected.value = new Set([id]);
  view.value = "graph";
}

const inStore = () => ({ store: store.value });
const memoryAt = (/** @type {string} */ id) => `/api/memories/${encodeURIComponent(id)}`;

/** Change fields of a memory. @param {string} id @param {any} body */
const change = (id, body) => ask("PUT", memoryAt(id), { query: inStore(), body });

/** Reload a row. Viewing is not an access, so `touch` is false. @param {Row} row */
export const readAgain = (row) => ask("GET", isMemory(row) ? memoryAt(row.id) : `/api/entities/${encodeURIComponent(row.id)}`, { query: { ...inStore(), touch: isMemory(row) ? false : undefined } });

/** Return an undo handler that reloads the lists and shows a toast. @param {() => Promise<unknown>} back */
const undoing = (back) => async () => {
  await back();
  written.value++;
  say(W.takenBack);
};

/** Write fields of a memory; the toast restores the former values. Throws Refused. @param {Row} row @param {any} fields @param {any} former the same fields before the write */
export async function changeMemory(row, fields, former) {
  const after = await change(row.id, { ...fields, based_on_version: row.version });
  written.value++;
  say(W.memorySaved(after.version), false, undoing(() => change(row.id, { ...former, based_on_version: after.version })));
  return after;
}

/** @param {Row} row @param {boolean} undo @param {boolean} dry @returns {Promise<any>} */
export const forget = (row, undo, dry) =>
  ask("POST", "/api/v1/forget", { query: inStore(), body: { [isMemory(row) ? "entity_id" : "entity"]: row.id, undo, dry_run: dry } });

/** Forget a memory or an entity; the toast restores it. @param {Row} row */
export async function forgetWithUndo(row) {
  // The deletion event may arrive before the response.
  const shown = graph.nodes.has(row.id);
  if (focus.value === row.id) focus.value = "";
  const answer = await forget(row, false, false);
  for (const id of [...answer.ids, ...(answer.entities_removed ?? [])]) graph.removeNode(id);
  if (!graph.nodes.has(focus.value)) focus.value = "";
  selected.value = new Set([...selected.value].filter((id) => graph.nodes.has(id)));
  openEntity.value = "";
  changed();
  written.value++;
  const text = isMemory(row) ? W.forgottenMemory(labelOf(row)) : W.forgotten(labelOf(row), answer.memories_removed);
  say(text, false, undoing(async () => {
    await forget(row, true, false);
    if (shown) await put([row.id]);
  }));
}

/** Bring back a forgotten memory; the toast forgets it again. @param {Row} row */
export async function restoreForgotten(row) {
  await forget(row, true, false);
  written.value++;
  say(W.restored(labelOf(row)), false, undoing(() => forget(row, false, false)));
}

/** @param {string} id @param {any} body */
const merge = (id, body) => ask("POST", memory(store.value, "nodes", id, "merge"), { body });
const unmerge = (/** @type {string} */ id) => ask("POST", memory(store.value, "nodes", id, "unmerge"), { body: {} });

/** Merge one memory or entity into another, unless either has changed. @param {Row} row @param {Row} into @param {ContentRule} content */
export async function mergeWithUndo(row, into, content) {
  await merge(row.id, { into: into.id, content, based_on_version: row.version, into_version: into.version });
  graph.removeNode(row.id);
  if (focus.value === row.id) focus.value = "";
  if (openEntity.value === row.id) openEntity.value = into.id;
  changed();
  written.value++;
  say(W.mergedInto(labelOf(row), labelOf(into)), false, undoing(() => unmerge(row.id)));
}

/** Merge a cluster of duplicate memories, as proposed by a plan. @param {{primary: any, absorbed: any[], content: string, tags: string[]}} cluster */
export async function acceptCluster({ primary, absorbed, content, tags }) {
  for (const row of absorbed) {
    await merge(row.id, { into: primary.id, content: "keep", based_on_version: row.version });
    graph.removeNode(row.id);
  }
  const former = { content: primary.content, tags: primary.tags ?? [] };
  const rewritten = content !== former.content || JSON.stringify(tags) !== JSON.stringify(former.tags);
  if (rewritten) await change(primary.id, { content, tags });
  changed();
  written.value++;
  say(W.mergedCluster(absorbed.length + 1), false, undoing(async () => {
    for (const row of [...absorbed].reverse()) await unmerge(row.id);
    if (rewritten) await change(primary.id, former);
  }));
}
