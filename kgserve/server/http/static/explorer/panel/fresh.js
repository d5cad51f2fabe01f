// Event handler that updates the canvas, and notice of new nodes.

import { effect, html, signal } from "../vendor/preact.js";
import { listen, onLive } from "../events.js";
import { catchUp, put, refreshAbout, refreshNode, refreshTimeline } from "../load.js";
import { edgeKey } from "../graph/model.js";
import { asOf, attempt, changed, graph, revision, selected, store } from "../state.js";
import { W } from "../words.js";

const REST = 400;
/** Ids of new nodes that are not on the canvas yet. */
export const fresh = signal(/** @type {Set<string>} */ (new Set()));
let waiting = 0;

const NODE = new Set(["node_created", "node_updated"]);
const EDGE = new Set(["edge_created", "edge_updated"]);

listen(({ event, data }) => {
  if (NODE.has(event) && graph.nodes.has(data.id)) refreshNode(data);
  else if (event === "node_created") fresh.value = new Set([...fresh.value, data.id]);
  else if (event === "node_deleted") {
    forgetFresh([data.id]);
    end(graph.nodes.get(data.id), data.sequence);
  }
  else if (EDGE.has(event)) takeEdge(data);
  else if (event === "edge_deleted") endEdge(data, data.sequence);
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const name = store.value;
    if (name) void refreshAbout().then(() => refreshTimeline()).catch(() => undefined);
  }, REST);
});

onLive(() => void catchUp());
effect(() => {
  store.value;
  fresh.value = new Set();
});

/** Mark a node or edge as deleted; earlier commits still show it. @param {import("../graph/time.js").Dated | undefined} row @param {number} sequence */
function end(row, sequence) {
  if (!row) return;
  row.lives = (row.lives ?? [[0, null]]).map(([from, to]) => [from, to ?? sequence]);
  changed();
}

/** Mark an edge as deleted. @param {{from: string, to: string, relation_type: string}} edge @param {number} sequence the commit that deleted it */
export const endEdge = (edge, sequence) => end(graph.edges.get(edgeKey(edge.from, edge.relation_type, edge.to)), sequence);

/** Remove nodes from the notice. @param {string[]} ids */
export function forgetFresh(ids) {
  if (ids.some((id) => fresh.value.has(id))) fresh.value = new Set([...fresh.value].filter((id) => !ids.includes(id)));
}

/** Add or update an edge if both nodes are on the canvas. @param {any} data */
export function takeEdge(data) {
  if (!graph.nodes.has(data.from) || !graph.nodes.has(data.to)) return;
  const known = [...(graph.around.get(data.from) ?? [])].find((edge) => edge.to === data.to && edge.type === data.relation_type);
  const lives = (known?.lives ?? []).map(([from, to]) => /** @type {[number, number | null]} */ ([from, to ?? data.sequence]));
  graph.addEdge({
    from: data.from, to: data.to, type: data.relation_type, weight: data.weight, lives: [[data.sequence, null], ...lives],
    validFrom: data.valid_from ? Date.parse(data.valid_from) : null, validTo: data.valid_to ? Date.parse(data.valid_to) : null,
  });
  changed();
}

/** Notice that offers to show new nodes. */
export function Fresh() {
  revision.value;
  const ids = [...fresh.value].filter((id) => !graph.nodes.has(id));
  if (!ids.length || asOf.value !== null) return null;
  const show = () => {
    fresh.value = new Set();
    void attempt(async () => {
      await put(ids);
      selected.value = new Set(ids.filter((id) => graph.nodes.has(id)));
    });
  };
  return html`<p class="fresh" role="status">${W.newNodes(ids.length)} <button type="button" onClick=${show}>${W.show}</button>
    <button type="button" class="plain" aria-label=${W.close} onClick=${() => { fresh.value = new Set(); }}>×</button></p>`;
}
