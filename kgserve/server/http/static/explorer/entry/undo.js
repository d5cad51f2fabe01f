// Undo functions for the toasts that report changes. Each checks that nothing has changed since.

import { labelOf } from "../graph/labels.js";
import { MOST_NODES } from "../graph/model.js";
import { isTrueAt } from "../graph/time.js";
import { missed, put, refreshNode } from "../load.js";
import { endEdge, forgetFresh } from "../panel/fresh.js";
import { ask, memory, Refused } from "../server.js";
import { changed, clock, focus, graph, noPast, say, selected, store, visible } from "../state.js";
import { W } from "./words.js";

/** @typedef {(() => Promise<void>) | undefined} Undo undefined: it cannot be undone */
/** @typedef {{from: string, to: string, relation_type: string}} EdgeName */

/** Return the current node with its edges; null: there is none. @param {string} name @param {string} id @returns {Promise<any>} */
async function present(name, id) {
  const { nodes } = await ask("POST", memory(name, "get"), { body: { ids: [id], valid_at: "any" } });
  return nodes[0] ?? null;
}

/** Refresh a node after undo. @param {string} name @param {string} id */
async function showAgain(name, id) {
  if (store.value !== name) return;
  const row = await present(name, id);
  if (row && graph.nodes.has(id)) refreshNode(row);
  missed.value++;
}

/** Add a node to the canvas, focus and select it. @param {string} id */
export async function showWritten(id) {
  if (!graph.nodes.has(id) && graph.nodes.size < MOST_NODES) await put([id]);
  forgetFresh([id]);
  if (!graph.nodes.has(id)) return;
  focus.value = id;
  selected.value = new Set([id]);
}

/** Return why a written node or edge is not drawn, as a sentence; empty: it is drawn. @param {any} row of the canvas */
export function whyNotDrawn(row) {
  if (!row || visible.value.nodes.has(row.key) || visible.value.edges.includes(row)) return "";
  return isTrueAt(row, clock.value.validAt) ? W.notDrawnType : W.notDrawnTime;
}

/** Return the undo of a change. @param {string} id @param {number} version before the change @param {number} written version after the change @returns {Undo} */
export function undoChange(id, version, written) {
  if (noPast.value) return undefined;
  const [name, label] = [store.value, graph.nodes.get(id)?.label ?? id];
  return async () => {
    if ((await present(name, id))?.version !== written) throw new Error(W.changedSince(label));
    await ask("POST", memory(name, "nodes", id, "revert"), { body: { version } });
    say(W.undone);
    await showAgain(name, id);
  };
}

/** Return the undo of a creation. @param {any} row @returns {Undo} */
export function undoNode(row) {
  const name = store.value;
  return async () => {
    const answer = await ask("GET", memory(name, "nodes", row.id), { query: { valid_at: "any" } });
    if (answer.node.version !== row.version) throw new Error(W.changedSince(labelOf(row)));
    if (answer.outgoing.length || answer.incoming.length) throw new Error(W.linkedSince(labelOf(row)));
    if (focus.value === row.id) focus.value = "";
    await ask("DELETE", memory(name, "nodes", row.id));
    say(W.undone);
    if (store.value !== name) return;
    graph.removeNode(row.id);
    selected.value = new Set();
    changed();
  };
}

/** Return an edge without fields added by the server. @param {any} edge */
function bare({ from, to, relation_type, weight, valid_from, valid_to, ordinal, to_graph, attributes = {} }) {
  const { created_at, updated_at, ...own } = attributes;
  return { from, to, relation_type, weight, valid_from, valid_to, ordinal, to_graph, attributes: own };
}

/** Return the undo of a deletion, with the edges. @param {any} answer the node and its edges before the deletion @returns {Undo} */
export function undoDeletion(answer) {
  const edges = [...answer.outgoing, ...answer.incoming.filter((/** @type {any} */ edge) => edge.from !== edge.to && (!edge.store || edge.store === store.value))];
  if (noPast.value || answer.edges_truncated) return undefined;
  const [name, id] = [store.value, answer.node.id];
  return async () => {
    if (await present(name, id)) throw new Error(W.changedSince(labelOf(answer.node)));
    await ask("POST", memory(name, "nodes", id, "revert"), { body: { version: answer.node.version } });
    const back = edges.length ? await ask("POST", memory(name, "inject"), { body: { edges: edges.map(bare) } }) : { edges_skipped_count: 0 };
    say(back.edges_skipped_count ? W.restoredWithout(back.edges_skipped_count) : W.undone, back.edges_skipped_count > 0);
    if (store.value === name) await showWritten(id);
  };
}

/** Return the current edge; null: there is none. @param {string} name @param {string} id @returns {Promise<any>} */
const presentEdge = async (name, id) => {
  try {
    return (await ask("GET", memory(name, "edges", id))).edge;
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return null;
    throw error;
  }
};

/** Return the undo of an edge's creation or change. @param {string} id @param {EdgeName} edge @param {Record<string, any> | null} replaced former values; null: it is new @returns {Promise<Undo>} */
export async function undoEdge(id, edge, replaced) {
  const name = store.value;
  const written = await presentEdge(name, id);
  if (!written) return undefined;
  return async () => {
    if ((await presentEdge(name, id))?.version !== written.version) throw new Error(W.edgeChangedSince);
    if (replaced) await restoreEdge(name, edge, replaced);
    else {
      const { sequence } = await ask("DELETE", memory(name, "edges", id));
      if (store.value === name) endEdge(edge, sequence);
    }
    say(W.undone);
    missed.value++;
  };
}

/** @param {string} name @param {EdgeName} edge @param {Record<string, any>} values to restore; null clears */
async function restoreEdge(name, edge, values) {
  const { from, to, relation_type } = edge;
  const given = Object.fromEntries(Object.entries(values).map(([field, value]) => [field, value ?? (field.startsWith("valid_") ? "" : value)]));
  await ask("POST", memory(name, "inject"), { body: { edges: [{ from, to, relation_type, ...given }] } });
}

/** Return the undo of ending an edge's validity. @param {any} edge before the change @returns {Promise<Undo>} */
export const undoEdgeEnd = (edge) => undoEdge(edge.id, { from: edge.from, to: edge.to, relation_type: edge.relation_type }, { valid_to: edge.valid_to ?? null });
