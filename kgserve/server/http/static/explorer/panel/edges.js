// Edges of a node: their list, and the details of one.

import { html, useEffect, useState } from "../vendor/preact.js";
import { undoEdgeEnd } from "../entry/undo.js";
import { listen } from "../events.js";
import { short } from "../graph/labels.js";
import { edgeKey } from "../graph/model.js";
import { put } from "../load.js";
import { ask, memory } from "../server.js";
import { asOf, attempt, focus, graph, mayWrite, openEdge, revision, say, selected, store } from "../state.js";
import { W } from "../view_words.js";
import { isWithdrawn } from "./memory_state.js";
import { refreshShown } from "./node.js";
import { number, time, Tree } from "./parts.js";
import { showNode } from "./search.js";

const EDGES = 20;
const PAGE_EDGES = 1000;

/** Validity, as a row of facts. @param {{valid_from?: string, valid_to?: string}} props */
export const Validity = ({ valid_from, valid_to }) => html`<dt>${W.validity}</dt><dd>${W.fromTo(valid_from ? time(valid_from) : W.always, valid_to ? time(valid_to) : W.open)}</dd>`;

/** Version, author and times, as rows of facts. @param {any} props fields of a node or an edge */
export const Written = ({ version, sequence, updated_at, created_by, created_at }) => html`<dt>${W.version}</dt><dd>${W.versionOf(version, sequence)}</dd>
  <dt>${W.written}</dt><dd>${time(updated_at)}${created_by ? ` ${W.by(created_by)}` : ""}</dd>
  <dt>${W.created}</dt><dd>${time(created_at)}</dd>`;

/** @param {{title: string, edges: any[], end: "to" | "from", writable: boolean}} props */
export function Edges({ title, edges, end, writable }) {
  if (!edges.length) return null;
  const byType = Map.groupBy(edges, (edge) => edge.relation_type);
  return html`<h3>${title} (${number(edges.length)})</h3>
    ${[...byType].map(([type, some]) => html`<details key=${type} open=${byType.size < 4}><summary>${type} <span class="soft">${number(some.length)}</span></summary>
      <${EdgeList} edges=${some} end=${end} writable=${writable} /></details>`)}`;
}

/** @param {{edges: any[], end: "to" | "from", writable: boolean}} props */
function EdgeList({ edges, end, writable }) {
  const [most, setMost] = useState(EDGES);
  revision.value;
  const go = async (/** @type {string} */ id) => {
    if (!graph.nodes.has(id)) await put([id]);
    if (graph.nodes.has(id)) {
      focus.value = id;
      selected.value = new Set([id]);
    }
  };
  return html`<ul class="edges">${edges.slice(0, most).map((edge) => {
    const elsewhere = end === "to" ? edge.to_graph : edge.store && edge.store !== store.value ? edge.store : "";
    const other = graph.nodes.get(edge[end]);
    return html`<li key=${edge.id}>
      ${elsewhere
        ? html`<a href=${`#/${encodeURIComponent(elsewhere)}?start=${encodeURIComponent(edge[end])}`}>${elsewhere} / ${edge[end]}</a>`
        : html`<button type="button" class="link" onClick=${() => go(edge[end])}>${other?.label ?? short(edge[end])}</button>`}
      ${edge.weight === 1 ? null : html` <span class="soft">× ${number(edge.weight)}</span>`}
      ${edge.valid_to ? html` <span class="soft">${isWithdrawn(edge) ? W.withdrawn : W.until(time(edge.valid_to))}</span>` : null}
      ${elsewhere && end === "from" ? null : html`<button type="button" class="plain small" aria-label=${W.edgeDetails(edge.relation_type, other?.label ?? edge[end])} onClick=${() => { openEdge.value = keyOf(edge); }}>${W.details}</button>`}
      ${writable && !edge.valid_to && !elsewhere ? html`<button type="button" class="plain small" aria-label=${W.retireEdge(edge.relation_type, other?.label ?? edge[end])} onClick=${() => retireEdge(edge)}>${W.retire}</button>` : null}</li>`;
  })}</ul>
  ${edges.length > most ? html`<button type="button" class="plain small" onClick=${() => setMost(most * 5)}>${W.andMore(edges.length - most)}</button>` : null}`;
}

/** End the validity of an edge now. @param {any} edge */
const retireEdge = (edge) =>
  attempt(async () => {
    const body = { from: edge.from, to: edge.to, relation_type: edge.relation_type };
    const answer = await ask("POST", memory(store.value, "edges", "retire"), { body });
    say(W.retired(time(answer.valid_to)), false, await undoEdgeEnd(edge));
    await refreshShown();
  });

/** Return the key on the canvas of an edge that starts in this store. @param {any} edge as the server gives it */
const keyOf = (edge) => edgeKey(edge.from, edge.relation_type, edge.to_graph ? JSON.stringify([edge.to_graph, edge.to]) : edge.to);

/** Read an edge at the time that is shown. Throws Refused. @param {string} key @returns {Promise<any>} undefined: it does not exist then */
async function readEdge(key) {
  const [from, kind] = JSON.parse(key);
  for (let offset = 0; offset !== null; ) {
    const query = { kind, as_of: asOf.value, valid_at: "any", limit: PAGE_EDGES, offset };
    const { edges, next_offset } = await ask("GET", `${memory(store.value, "nodes", from)}/outgoing`, { query });
    const found = edges.find((/** @type {any} */ edge) => keyOf(edge) === key);
    if (found) return found;
    offset = next_offset;
  }
  return undefined;
}

/** Details of the open edge. */
export function EdgePanel() {
  const key = openEdge.value;
  const [{ row, error }, setRead] = useState(/** @type {{row?: any, error?: string}} */ ({}));
  const [from, type, to] = JSON.parse(key);
  const load = () => readEdge(key).then((row) => setRead(row ? { row } : { error: W.noEdgeThen }), (error) => setRead({ error: error.message }));
  useEffect(() => {
    void load();
    return listen(({ data }) => {
      if (data.from === from && asOf.value === null) void load();
    });
  }, [asOf.value]);
  const { created_at, updated_at, ...attributes } = row?.attributes ?? {};
  const end = (/** @type {string} */ id) => html`<button type="button" class="link" onClick=${() => showNode(id)}>${graph.nodes.get(id)?.label ?? short(id)}</button>`;
  return html`<section class="details" aria-label=${W.details}>
    <h2>${type}</h2><p>${end(from)} → ${end(to)}</p>
    <p class="row">${row && !row.valid_to && !row.to_graph && mayWrite.value ? html`<button type="button" onClick=${() => retireEdge(row).then(load)}>${W.retire}</button>` : null}
      <button type="button" class="plain" onClick=${() => { openEdge.value = ""; }}>${W.close}</button></p>
    ${error ? html`<p class="note" role="alert">${error}</p>` : null}
    ${row ? html`<dl><${Validity} ...${row} /><dt>${W.weight}</dt><dd>${number(row.weight)}</dd><${Written} ...${{ ...row, created_at, updated_at }} /></dl>` : null}
    ${Object.keys(attributes).length ? html`<h3>${W.attributes}</h3><${Tree} value=${attributes} />` : null}
  </section>`;
}
