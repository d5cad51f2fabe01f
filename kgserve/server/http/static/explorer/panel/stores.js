// List of stores, with forms to create and back up stores.

import { html, useState } from "../vendor/preact.js";
import { listMoreStores } from "../session.js";
import { attempt, me, storeCount, stores } from "../state.js";
import { W } from "../view_words.js";
import { BackUp } from "./administration.js";
import { FirstStore } from "./first_store.js";
import { bytes, number, time } from "./parts.js";

export function Stores() {
  const [filter, setFilter] = useState("");
  const all = stores.value;
  if (all === null) return html`<main class="page"><p role="status">${W.loading}</p></main>`;
  const shown = all.filter((one) => one.name.toLowerCase().includes(filter.toLowerCase()));
  return html`<main class="page">
    <h1>${all.length ? W.stores : W.welcome}</h1>
    ${all.length
      ? html`<p class="row"><label>${W.filter} <input type="search" value=${filter} onInput=${(/** @type {any} */ event) => setFilter(event.currentTarget.value)} /></label>
            <span role="status">${W.storesShown(shown.length, storeCount.value)}</span></p>
          <div class="scroll stores" tabindex="0" role="region" aria-label=${W.stores}><table>
            <thead><tr>${W.storeColumns.map((name, i) => html`<th key=${name} scope="col" class=${i ? "number" : ""}>${name}</th>`)}</tr></thead>
            <tbody>${shown.map((one) => html`<${Row} key=${one.name} one=${one} />`)}</tbody>
          </table></div>
          ${all.length < storeCount.value ? html`<p><button type="button" onClick=${() => attempt(listMoreStores)}>${W.moreStores}</button></p>` : null}`
      : null}
    <${FirstStore} empty=${!all.length} />
    ${all.length && me.value?.backups ? html`<${BackUp} name="" />` : null}
  </main>`;
}

/** @param {{one: any}} props */
const Row = ({ one }) => html`<tr>
  <th scope="row"><a href=${`#/${encodeURIComponent(one.name)}`}>${one.name}</a>${one.settings?.name ? html` <span class="soft">${one.settings.name}</span>` : null}</th>
  <td class="number">${number(one.nodes)}</td><td class="number">${number(one.edges)}</td><td class="number">${number(one.sequence)}</td><td class="number">${one.last_write ? time(one.last_write) : W.never}</td>
  <td class="number">${bytes((one.journal_bytes ?? 0) + (one.engine_bytes ?? 0))}</td><td class="number">${number(one.lag)}</td>
  <td class="number">${one.state}</td><td class="number">${time(one.created_at)}</td></tr>`;
