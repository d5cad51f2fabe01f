// List of memories: search, filters by type, entity, tag and confidence, page by page.

import { html, useEffect, useState } from "../vendor/preact.js";
import { ask } from "../server.js";
import { attempt, store } from "../state.js";
import { W } from "../view_words.js";
import { Bar, day } from "./parts.js";
import { showNode } from "./search.js";

const PAGE_ROWS = 25;
const TYPING_PAUSE_MS = 300;
const CONFIDENCES = ["0.25", "0.5", "0.75", "0.9"];

/** @typedef {{q: string, types: string, entity: string, tags: string, min_confidence: string, ended: string}} Filters */
/** @typedef {{memories: any[], next: Record<string, unknown> | null}} Page `next` asks for the page after this one */

/** One page of memories. Looking is no use of a memory, so `touch` is false. @param {Filters} filters @param {Record<string, unknown>} from @returns {Promise<Page>} */
async function readPage({ q, ended, ...filters }, from) {
  const query = { ...filters, store: store.value, limit: PAGE_ROWS, ...from };
  if (!q.trim()) {
    const { memories, next_cursor } = await ask("GET", "/api/memories", { query: { ...query, ended } });
    return { memories, next: next_cursor ? { cursor: next_cursor } : null };
  }
  const memories = await ask("GET", "/api/memories/search", { query: { ...query, q, touch: false } });
  return { memories, next: memories.length < PAGE_ROWS ? null : { offset: Number(from.offset ?? 0) + PAGE_ROWS } };
}

/** @param {{types: string[]}} props types of the memories of this store */
export function MemoryList({ types }) {
  const [filters, setFilters] = useState(/** @type {Filters} */ ({ q: "", types: "", entity: "", tags: "", min_confidence: "", ended: "" }));
  const [page, setPage] = useState(/** @type {Page | null} */ (null));
  useEffect(() => {
    let current = true;
    const wait = setTimeout(() => void attempt(async () => {
      const found = await readPage(filters, {});
      if (current) setPage(found);
    }), page ? TYPING_PAUSE_MS : 0);
    return () => {
      current = false;
      clearTimeout(wait);
    };
  }, [filters, store.value]);
  const change = (/** @type {keyof Filters} */ name) => (/** @type {any} */ event) => setFilters({ ...filters, [name]: event.currentTarget.value });
  const more = () => attempt(async () => {
    const found = await readPage(filters, page?.next ?? {});
    setPage({ memories: [...(page?.memories ?? []), ...found.memories], next: found.next });
  });
  const filter = (/** @type {keyof Filters} */ name, /** @type {string} */ value) => html`<button type="button" class="link" onClick=${() => setFilters({ ...filters, [name]: value })}>${value}</button>`;
  const choice = (/** @type {keyof Filters} */ name, /** @type {string} */ label, /** @type {[string, string][]} */ options) => html`<label>${label}<select value=${filters[name]} onChange=${change(name)}>
    ${options.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select></label>`;
  const filtered = Object.values(filters).some(Boolean);
  return html`<form class="row filters" role="search" aria-label=${W.memories} onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label class="grow">${W.searchMemories}<input type="search" value=${filters.q} onInput=${change("q")} /></label>
      ${choice("types", W.type, [["", W.anyType], ...types.map((one) => /** @type {[string, string]} */ ([one, one]))])}
      <label>${W.aboutEntity}<input value=${filters.entity} onInput=${change("entity")} /></label>
      <label>${W.withTag}<input value=${filters.tags} onInput=${change("tags")} /></label>
      ${choice("min_confidence", W.confidence, [["", W.anyConfidence], ...CONFIDENCES.map((one) => /** @type {[string, string]} */ ([one, W.atLeast(one)]))])}
      ${filters.q ? null : choice("ended", W.status, [["", W.currentMemories], ...Object.entries(W.endings)])}
      ${filtered ? html`<button type="button" class="plain" onClick=${() => setFilters({ q: "", types: "", entity: "", tags: "", min_confidence: "", ended: "" })}>${W.clearFilters}</button>` : null}
    </form>
    ${page === null ? html`<p role="status">${W.loading}</p>` : html`
      <div class="scroll memories" tabindex="0" role="region" aria-label=${W.memoryList}><table><caption class="hidden">${W.memoryList}</caption>
        <thead><tr>${W.memoryColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody>${page.memories.map((one) => html`<tr key=${one.id}>
          <th scope="row"><button type="button" class="link" onClick=${() => showNode(one.id)}>${one.content}</button></th>
          <td>${one.memory_type}</td>
          <td>${(one.entities ?? []).map((/** @type {any} */ entity) => html`${filter("entity", entity.name)} `)}</td>
          <td>${(one.tags ?? []).map((/** @type {string} */ tag) => html`<span class="tag" key=${tag}>${filter("tags", tag)}</span> `)}</td>
          <td class="sure"><${Bar} share=${one.effective_confidence} label=${W.confidenceIs(one.effective_confidence, one.confidence)} /> <span class="number">${one.effective_confidence.toFixed(2)}</span></td>
          <td class="number">${day(Date.parse(one.created_at))}</td></tr>`)}</tbody></table></div>
      <p class="row"><span role="status" class="soft">${page.memories.length ? W.memoriesShown(page.memories.length, page.next !== null) : filtered ? W.noSuchMemory : W.noMemories}</span>
        ${page.next ? html`<button type="button" onClick=${more}>${W.moreMemories}</button>` : null}</p>`}`;
}
