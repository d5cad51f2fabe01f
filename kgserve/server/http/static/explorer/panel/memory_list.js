// Paginated list of memories, with search and filters by type, entity, tag and confidence.

import { html, useEffect, useState } from "../vendor/preact.js";
import { short } from "../graph/labels.js";
import { ask } from "../server.js";
import { attempt, mayWrite, memoryFilter, store } from "../state.js";
import { W } from "../view_words.js";
import { SmallFading } from "./fading.js";
import { MemoryActions } from "./memory_actions.js";
import { showEntity, written } from "./memory_state.js";
import { day } from "./parts.js";
import { showNode } from "./search.js";

const PAGE_ROWS = 25;
/** Maximum number of characters of a memory in a row; its details show all. */
const SHOWN = 300;
const OFFERED = 8;
const TYPING_PAUSE_MS = 300;
const CONFIDENCES = ["0.25", "0.5", "0.75", "0.9"];
const AGES = { "": "", week: 7, month: 30, year: 365 };
const DAY_MS = 86_400_000;

/** @typedef {{q: string, types: string, entity: string, tags: string, min_confidence: string, age: string, ended: string}} Filters */
/** @typedef {{memories: any[], next: Record<string, unknown> | null, wrong?: string}} Page `next`: query parameters of the next page; `wrong`: why there are no rows */

/** @type {Filters} */
const NO_FILTERS = { q: "", types: "", entity: "", tags: "", min_confidence: "", age: "", ended: "" };

/** Read a page of memories. Viewing is not an access, so `touch` is false. @param {Filters} filters @param {Record<string, unknown>} from @returns {Promise<Page>} */
async function readPage({ q, ended, age, ...filters }, from) {
  const after_date = age ? new Date(Date.now() - AGES[age] * DAY_MS).toISOString() : "";
  const query = { ...filters, after_date, store: store.value, limit: PAGE_ROWS, ...from };
  if (!q.trim()) {
    const { memories, next_cursor } = await ask("GET", "/api/memories", { query: { ...query, ended } });
    return { memories, next: next_cursor ? { cursor: next_cursor } : null };
  }
  const memories = await ask("GET", "/api/memories/search", { query: { ...query, q, touch: false } });
  return { memories, next: memories.length < PAGE_ROWS ? null : { offset: Number(from.offset ?? 0) + PAGE_ROWS } };
}

/** Table of memories. @param {{memories: any[], label: string, onTag?: (tag: string) => void}} props `onTag`: click handler of tags */
export const MemoryTable = ({ memories, label, onTag }) => html`<div class="scroll memories" tabindex="0" role="region" aria-label=${label}><table class="memory-rows"><caption class="hidden">${label}</caption>
  <thead><tr>${[...W.memoryColumns, ...(mayWrite.value ? [W.change] : [])].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
  <tbody>${memories.map((one) => html`<tr key=${one.id}>
    <th scope="row"><button type="button" class="link" onClick=${() => showNode(one.id)}>${short(one.content, SHOWN)}</button></th>
    <td>${one.memory_type}</td>
    <td class="about">${(one.entities ?? []).map((/** @type {any} */ entity, /** @type {number} */ i) => html`${i ? ", " : ""}<button type="button" class="link" onClick=${() => showEntity(entity.id)}>${entity.name}</button>`)}</td>
    <td>${(one.tags ?? []).map((/** @type {string} */ tag) => html`<span class="tag" key=${tag}>${onTag ? html`<button type="button" class="link" onClick=${() => onTag(tag)}>${tag}</button>` : tag}</span> `)}</td>
    <td class="sure"><${SmallFading} memory=${one} /> <span class="number">${one.effective_confidence.toFixed(2)}</span></td>
    <td class="number">${day(Date.parse(one.created_at))}</td>
    ${mayWrite.value ? html`<td><${MemoryActions} row=${one} small /></td>` : null}</tr>`)}</tbody></table></div>`;

/** @param {{types: string[]}} props types of the memories of this store */
export function MemoryList({ types }) {
  const filters = { ...NO_FILTERS, ...Object.fromEntries(new URLSearchParams(memoryFilter.value)) };
  const setFilters = (/** @type {Filters} */ now) => {
    memoryFilter.value = String(new URLSearchParams(Object.entries(now).filter(([, value]) => value)));
  };
  const [page, setPage] = useState(/** @type {Page | null} */ (null));
  const [offered, setOffered] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    let current = true;
    const wait = setTimeout(() => void attempt(async () => {
      const found = await readPage(filters, {}).catch((error) => ({ memories: [], next: null, wrong: error.status === 404 && filters.entity ? W.noSuchEntity(filters.entity) : error.message }));
      if (current) setPage(found);
      const { entities } = filters.entity ? await ask("GET", "/api/entities", { query: { store: store.value, name: filters.entity, limit: OFFERED } }) : { entities: [] };
      if (current) setOffered(entities);
    }), page ? TYPING_PAUSE_MS : 0);
    return () => {
      current = false;
      clearTimeout(wait);
    };
  }, [memoryFilter.value, store.value, written.value]);
  const change = (/** @type {keyof Filters} */ name) => (/** @type {any} */ event) => setFilters({ ...filters, [name]: event.currentTarget.value });
  const more = () => attempt(async () => {
    const found = await readPage(filters, page?.next ?? {});
    setPage({ memories: [...(page?.memories ?? []), ...found.memories], next: found.next });
  });
  const choice = (/** @type {keyof Filters} */ name, /** @type {string} */ label, /** @type {[string, string][]} */ options) => html`<label>${label}<select value=${filters[name]} onChange=${change(name)}>
    ${options.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select></label>`;
  const filtered = Object.values(filters).some(Boolean);
  return html`<form class="row filters" role="search" aria-label=${W.memories} onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label class="grow">${W.searchMemories}<input type="search" value=${filters.q} onInput=${change("q")} /></label>
      ${choice("types", W.type, [["", W.anyType], ...types.map((one) => /** @type {[string, string]} */ ([one, one]))])}
      <label>${W.aboutEntity}<input list="about-offered" autocomplete="off" value=${filters.entity} onInput=${change("entity")} /></label><datalist id="about-offered">${offered.map((one) => html`<option key=${one.id} value=${one.name}></option>`)}</datalist>
      <label>${W.withTag}<input value=${filters.tags} onInput=${change("tags")} /></label>
      ${choice("min_confidence", W.confidence, [["", W.anyConfidence], ...CONFIDENCES.map((one) => /** @type {[string, string]} */ ([one, W.atLeast(one)]))])}
      ${choice("age", W.createdWithin, Object.entries(W.ages))}
      ${filters.q ? null : choice("ended", W.status, [["", W.currentMemories], ...Object.entries(W.endings)])}
      ${filtered ? html`<button type="button" class="plain" onClick=${() => setFilters(NO_FILTERS)}>${W.clearFilters}</button>` : null}
    </form>
    ${page === null ? html`<p role="status">${W.loading}</p>` : html`
      <${MemoryTable} memories=${page.memories} label=${W.memoryList} onTag=${(/** @type {string} */ tags) => setFilters({ ...filters, tags })} />
      <p class="row"><span role="status" class=${page.wrong ? "note" : "soft"}>${page.wrong ?? (page.memories.length ? W.memoriesShown(page.memories.length, page.next !== null) : filtered ? W.noSuchMemory : W.noMemories)}</span>
        ${page.next ? html`<button type="button" onClick=${more}>${W.moreMemories}</button>` : null}</p>`}`;
}
