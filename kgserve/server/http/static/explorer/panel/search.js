// Hybrid, keyword or semantic search as you type (by id prefix without indexes), and its hits.

import { html, signal } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { put } from "../load.js";
import { ask, memory } from "../server.js";
import { about, announce, asOf, graph, look, looks, panelOpen, searchText, selected, showPanel, store, validAt, view } from "../state.js";
import { W } from "../words.js";
import { Mark } from "./legend.js";

const HITS = 30;
const TYPING_PAUSE_MS = 300;
const BY_ID = "MATCH (n:Entity) WHERE n.id STARTS WITH $start RETURN n.id, n.type, left(n.content, 80) ORDER BY n.id LIMIT $most";
const MODES = /** @type {const} */ (["hybrid", "keyword", "semantic"]);
const mode = signal(/** @type {string} */ ("hybrid"));
/** Search results; null: no search yet. */
export const found = signal(/** @type {{query: string, hits: any[], note: string, failed?: boolean} | null} */ (null));
/** @type {AbortController | null} */
let under = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let pause;

/** Search after a pause in typing. */
export function searchSoon() {
  clearTimeout(pause);
  if (!searchText.value.trim()) under?.abort();
  pause = setTimeout(() => void runSearch({ typing: true }), TYPING_PAUSE_MS);
}

/** @param {{typing?: boolean}} how `typing`: hide failures */
export async function runSearch({ typing = false } = {}) {
  clearTimeout(pause);
  under?.abort();
  const query = searchText.value.trim();
  if (!query) {
    found.value = null;
    return;
  }
  const mine = new AbortController();
  under = mine;
  try {
    const answer = await search(query, mine.signal);
    if (!mine.signal.aborted) {
      found.value = { query, ...answer };
      if (!typing) showPanel("results");
      announce(W.hits(answer.hits.length));
    }
  } catch (error) {
    if (typing) return;
    if (mine.signal.aborted) return;
    found.value = { query, hits: [], note: /** @type {Error} */ (error).message, failed: true };
    showPanel("results");
  }
}

/** Format a server notice as a sentence. @param {string | null} notice */
const sentence = (notice) => (notice ? `${notice[0].toUpperCase()}${notice.slice(1)}.` : "");

/** @param {string} query @param {AbortSignal} signal @returns {Promise<{hits: any[], note: string}>} */
async function search(query, signal) {
  const as_of = asOf.value === null ? undefined : String(asOf.value);
  const valid_at = validAt.value === "now" ? undefined : validAt.value;
  if (about.value?.stats.indexes.length) {
    const prefix = !/\s$/.test(searchText.value);
    const body = { query, mode: mode.value, explain: true, limit: HITS, prefix, as_of, valid_at };
    const answer = await ask("POST", memory(store.value, "search"), { body, signal });
    return { hits: answer.hits, note: [sentence(answer.notice), answer.degraded ? W.degraded : ""].join(" ").trim() };
  }
  const statement = { query: BY_ID, params: { start: query, most: HITS } };
  const { rows } = await ask("POST", memory(store.value, "cypher"), { body: statement, signal });
  const hits = rows.map((/** @type {any} */ [id, type, content]) => ({ node: { id, type, content, attributes: {} }, why: W.byId }));
  return { hits, note: W.noIndexes };
}

/** Move the keyboard focus to the side panel once it is rendered, unless the user moves it meanwhile. */
export function focusPanel() {
  const before = document.activeElement;
  setTimeout(() => {
    const heading = /** @type {HTMLElement | null} */ (document.querySelector("#side-content h2"));
    if (!heading || ![before, document.body].includes(document.activeElement)) return;
    heading.tabIndex = -1;
    heading.focus();
  });
}

/** Show a node on the canvas and in the side panel. @param {string} id */
export async function showNode(id) {
  if (!graph.nodes.has(id)) await put([id]);
  if (!graph.nodes.has(id)) return;
  look(id);
  panelOpen.value = true;
  if (document.activeElement?.closest(".side") || document.activeElement === document.body) focusPanel();
}

export function Found() {
  const now = found.value;
  if (!now) return null;
  const close = () => {
    searchText.value = "";
    found.value = null;
  };
  const all = () => {
    const ids = now.hits.map((hit) => hit.node.id);
    void put(ids).then(() => {
      selected.value = new Set(ids.filter((id) => graph.nodes.has(id)));
      if (view.value !== "table") view.value = "graph";
    });
  };
  const change = (/** @type {any} */ event) => {
    mode.value = event.currentTarget.value;
    void runSearch();
  };
  return html`<section class="found" aria-label=${W.results}>
    <h2>${now.failed ? W.searchFailed : W.hitsFor(now.hits.length, now.query)}</h2>
    <p class="row">
      ${about.value?.stats.indexes.length ? html`<select aria-label=${W.mode} value=${mode.value} onChange=${change}>${MODES.map((one) => html`<option key=${one} value=${one}>${W.modes[one]}</option>`)}</select>` : null}
      ${now.failed ? html`<button type="button" onClick=${() => runSearch()}>${W.searchAgain}</button>` : null}
      ${now.hits.length ? html`<button type="button" onClick=${all}>${W.putAll}</button>` : null}
      <button type="button" class="plain" onClick=${close}>${W.clear}</button></p>
    ${now.note ? html`<p class="note" role=${now.failed ? "alert" : undefined}>${now.note}</p>` : null}
    <ol>${now.hits.map((hit) => html`<li key=${hit.node.id}>
      <button type="button" class="hit" onClick=${() => showNode(hit.node.id)}>
        <${Mark} ...${looks.of(hit.node.type)} />
        <span class="grow"><strong>${labelOf(hit.node)}</strong> <span class="soft">${hit.node.type}</span> ${hit.why ? html`<span class="why">${hit.why}</span>` : null}</span></button></li>`)}</ol>
  </section>`;
}
