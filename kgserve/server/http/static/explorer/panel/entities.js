// List of entities in memories, and a page for each with its memories and relations.

import { html, useEffect, useState } from "../vendor/preact.js";
import { ArrowLeft } from "../vendor/icons.js";
import { ask } from "../server.js";
import { attempt, looks, store } from "../state.js";
import { W } from "../view_words.js";
import { Mark } from "./legend.js";
import { MemoryActions } from "./memory_actions.js";
import { MemoryTable } from "./memory_list.js";
import { openEntity, showEntity, showInGraph, written } from "./memory_state.js";
import { Bar, day, Icon, number } from "./parts.js";

const PAGE_ROWS = 50;
const TYPING_PAUSE_MS = 300;

export const Entities = () => (openEntity.value ? html`<${EntityPage} key=${openEntity.value} id=${openEntity.value} />` : html`<${EntityList} />`);

function EntityList() {
  const [name, setName] = useState("");
  const [page, setPage] = useState(/** @type {{entities: any[], next_cursor: string | null} | null} */ (null));
  const read = (/** @type {string | null} */ cursor) => ask("GET", "/api/entities", { query: { store: store.value, name: name.trim(), limit: PAGE_ROWS, cursor } });
  useEffect(() => {
    let current = true;
    const wait = setTimeout(() => void attempt(async () => {
      const found = await read(null);
      if (current) setPage(found);
    }), page ? TYPING_PAUSE_MS : 0);
    return () => {
      current = false;
      clearTimeout(wait);
    };
  }, [name, store.value, written.value]);
  const more = () => attempt(async () => {
    const found = await read(page?.next_cursor ?? null);
    setPage({ ...found, entities: [...(page?.entities ?? []), ...found.entities] });
  });
  return html`<form class="row filters" role="search" aria-label=${W.entities} onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label class="grow">${W.entityName}<input type="search" value=${name} onInput=${(/** @type {any} */ event) => setName(event.currentTarget.value)} /></label></form>
    ${page === null ? html`<p role="status">${W.loading}</p>` : html`<div class="scroll memories" tabindex="0" role="region" aria-label=${W.entityList}><table><caption class="hidden">${W.entityList}</caption>
      <thead><tr>${W.entityColumns.map((each) => html`<th key=${each} scope="col">${each}</th>`)}</tr></thead>
      <tbody>${page.entities.map((one) => html`<tr key=${one.id}><th scope="row"><${Mark} ...${looks.of(one.entity_type)} /> <button type="button" class="link" onClick=${() => showEntity(one.id)}>${one.name}</button></th>
        <td>${one.entity_type}</td><td>${one.aliases.join(", ")}</td><td class="number">${day(Date.parse(one.created_at))}</td></tr>`)}</tbody></table></div>
      <p class="row">${page.entities.length ? null : html`<span class="soft">${W.noEntities}</span>`}
        ${page.next_cursor ? html`<button type="button" onClick=${more}>${W.moreEntities}</button>` : null}</p>`}`;
}

/** @param {{id: string}} props */
function EntityPage({ id }) {
  const [entity, setEntity] = useState(/** @type {any} */ (null));
  const [page, setPage] = useState(/** @type {{memories: any[], next_cursor: string | null}} */ ({ memories: [], next_cursor: null }));
  const path = `/api/entities/${encodeURIComponent(id)}`;
  const memoriesFrom = (/** @type {string | null} */ cursor) => ask("GET", `${path}/memories`, { query: { store: store.value, limit: PAGE_ROWS, cursor } });
  useEffect(() => {
    let current = true;
    void attempt(async () => {
      const [found, memories] = await Promise.all([ask("GET", path, { query: { store: store.value } }), memoriesFrom(null)]);
      if (!current) return;
      setEntity(found);
      setPage(memories);
    });
    return () => {
      current = false;
    };
  }, [id, store.value, written.value]);
  const more = () => attempt(async () => {
    const found = await memoriesFrom(page.next_cursor);
    setPage({ ...found, memories: [...page.memories, ...found.memories] });
  });
  const back = html`<button type="button" class="plain" onClick=${() => { openEntity.value = ""; }}><${Icon} of=${ArrowLeft} />${W.allEntities}</button>`;
  if (!entity) return html`<p class="row">${back}</p><p role="status">${W.loading}</p>`;
  return html`<article aria-label=${entity.name}><p class="row">${back}</p>
    <h2><${Mark} ...${looks.of(entity.entity_type)} /> ${entity.name} <span class="soft">${entity.entity_type}</span></h2>
    ${entity.description ? html`<p class="content">${entity.description}</p>` : null}
    ${entity.aliases.length ? html`<p class="soft">${W.alsoCalled(entity.aliases)}</p>` : null}
    <p class="row"><button type="button" onClick=${() => showInGraph(id)}>${W.showInGraph}</button> <${MemoryActions} row=${entity} /></p>
    <h3>${W.relations} (${number(entity.relations.length)}${entity.relations_truncated ? "+" : ""})</h3>
    <${Relations} entity=${entity} />
    <h3>${W.memories} (${number(entity.memories)})</h3>
    ${page.memories.length ? html`<${MemoryTable} memories=${page.memories} label=${W.memoriesAbout(entity.name)} />` : html`<p class="soft">${W.noMemoriesAbout}</p>`}
    ${page.next_cursor ? html`<p class="row"><button type="button" onClick=${more}>${W.moreMemories}</button></p>` : null}</article>`;
}

/** @param {{entity: any}} props */
function Relations({ entity }) {
  if (!entity.relations.length) return html`<p class="soft">${W.noRelations}</p>`;
  return html`<div class="scroll memories" tabindex="0" role="region" aria-label=${W.relationsOf(entity.name)}><table><caption class="hidden">${W.relationsOf(entity.name)}</caption>
    <thead><tr>${W.relationColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${entity.relations.map((/** @type {any} */ one) => {
      const [id, name] = one.source === entity.id ? [one.target, one.target_name] : [one.source, one.source_name];
      return html`<tr key=${one.id}><td>${one.source === entity.id ? "→" : "←"} ${one.relation_type}</td>
        <th scope="row"><button type="button" class="link" onClick=${() => showEntity(id)}>${name}</button></th>
        <td class="sure"><${Bar} share=${one.effective_confidence} label=${W.confidenceIs(one.effective_confidence, one.confidence)} /> <span class="number">${one.effective_confidence.toFixed(2)}</span></td>
        <td class="number">${one.strength.toFixed(2)}</td><td class="number">${day(Date.parse(one.created_at))}</td></tr>`;
    })}</tbody></table></div>`;
}
