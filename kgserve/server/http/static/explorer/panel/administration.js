// Backups, keys, and the audit log, for administrators.

import { html, useState } from "../vendor/preact.js";
import { ask } from "../server.js";
import { attempt, mayAdminister, me, store } from "../state.js";
import { W } from "../view_words.js";
import { BackUp } from "./backup.js";
import { Command, time } from "./parts.js";

const RECORDS = 20;

export function Administration() {
  const [records, setRecords] = useState(/** @type {any[]} */ ([]));
  // Reading the log is itself logged, so it is read only when opened.
  const read = (/** @type {any} */ event) => {
    if (event.currentTarget.open) void attempt(async () => setRecords((await ask("GET", "/api/audit", { query: { limit: RECORDS } })).records.reverse()));
  };
  if (!mayAdminister.value) return null;
  return html`<h2>${W.backups}</h2><${BackUp} name=${store.value} />
    <h2>${W.keysTitle}</h2><p>${me.value.open ? W.noKeyYet : W.keyInUse(me.value.name)}</p>
    <div class="columns"><${Command} label=${W.createKey} text=${`kgserve keys create --name NAME --role read --stores ${store.value}`} />
      <${Command} label=${W.listKeys} text="kgserve keys list" /><${Command} label=${W.revokeKey} text="kgserve keys revoke KEY_ID" /></div>
    <details onToggle=${read}><summary>${W.audit}</summary>${records.length ? html`<div class="scroll" tabindex="0" role="region" aria-label=${W.audit}><table><caption class="hidden">${W.audit}</caption><thead><tr>${W.auditColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
      <tbody>${records.map((one, i) => html`<tr key=${one.request ?? i}><td>${time(one.time)}</td><td>${one.caller ?? ""}</td><td>${one.act ?? one.kind}</td><td>${one.store ?? ""}</td><td>${one.outcome ?? ""}</td></tr>`)}</tbody></table></div>` : null}</details>`;
}
