// List of stores, with commands to create the first one.

import { html, useState } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { listMoreStores, listStores } from "../session.js";
import { attempt, mayWrite, me, storeCount, stores } from "../state.js";
import { W } from "../words.js";
import { BackUp } from "./backup.js";
import { bytes, Command, number, time } from "./parts.js";

const INJECT = () => `curl -X POST ${location.origin}/api/memory/first/inject -d '{
  "nodes": [{"id": "emma", "type": "book"}, {"id": "austen", "type": "author"}],
  "edges": [{"from": "austen", "to": "emma", "relation_type": "WROTE"}]}'`;

export function Stores() {
  const [filter, setFilter] = useState("");
  const all = stores.value;
  if (all === null) return html`<main class="page"><p role="status">${W.loading}</p></main>`;
  const shown = all.filter((one) => one.name.toLowerCase().includes(filter.toLowerCase()));
  return html`<main class="page">
    <h1>${W.stores}</h1>
    ${all.length
      ? html`<p class="row"><label>${W.filter} <input type="search" value=${filter} onInput=${(/** @type {any} */ event) => setFilter(event.currentTarget.value)} /></label>
            <span role="status">${W.storesShown(shown.length, storeCount.value)}</span></p>
          <div class="scroll" tabindex="0" role="region" aria-label=${W.stores}><table>
            <thead><tr>${W.storeColumns.map((name, i) => html`<th key=${name} scope="col" class=${i ? "number" : ""}>${name}</th>`)}</tr></thead>
            <tbody>${shown.map((one) => html`<${Row} key=${one.name} one=${one} />`)}</tbody>
          </table></div>
          ${all.length < storeCount.value ? html`<p><button type="button" onClick=${() => attempt(listMoreStores)}>${W.moreStores}</button></p>` : null}`
      : html`<${Nothing} />`}
    ${mayWrite.value ? html`<${NewStore} />` : null}
    ${all.length && me.value?.backups ? html`<${BackUp} name="" />` : null}
  </main>`;
}

/** @param {{one: any}} props */
const Row = ({ one }) => html`<tr>
  <th scope="row"><a href=${`#/${encodeURIComponent(one.name)}`}>${one.name}</a>${one.settings?.name ? html` <span class="soft">${one.settings.name}</span>` : null}</th>
  <td class="number">${number(one.nodes)}</td><td class="number">${number(one.edges)}</td><td class="number">${number(one.sequence)}</td><td class="number">${one.last_write ? time(one.last_write) : W.never}</td>
  <td class="number">${bytes((one.journal_bytes ?? 0) + (one.engine_bytes ?? 0))}</td><td class="number">${number(one.lag)}</td>
  <td class="number">${one.state}</td><td class="number">${time(one.created_at)}</td></tr>`;

const Nothing = () => html`<p>${W.noStores}</p>
  <${Command} label=${W.byInject} text=${INJECT()} />
  <${Command} label=${W.byMcp} text="kgserve mcp config --client claude-code --store first" />
  <${Command} label=${W.byImport} text="kgserve import first graph.jsonl" />
  <p><button type="button" onClick=${() => attempt(listStores)}>${W.lookAgain}</button></p>`;

function NewStore() {
  const [name, setName] = useState("");
  const make = (/** @type {Event} */ event) => {
    event.preventDefault();
    void attempt(async () => {
      await ask("PUT", memory(name.trim()));
      await listStores();
      location.hash = `#/${encodeURIComponent(name.trim())}`;
    });
  };
  return html`<form class="row" onSubmit=${make}>
    <label>${W.newStore} <input required pattern="[A-Za-z0-9][A-Za-z0-9_.\\-]*" value=${name} onInput=${(/** @type {any} */ event) => setName(event.currentTarget.value)} /></label>
    <button disabled=${!name.trim()}>${W.create}</button>
  </form>`;
}
