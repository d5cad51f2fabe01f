// Backups, keys, and the audit log, for administrators.

import { html, useState } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { attempt, mayAdminister, me, say, store } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd } from "./forms.js";
import { bytes, Command, Dialog, number, time } from "./parts.js";

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

/** Backup button, for administrators. @param {{name: string}} props the store; empty: all */
export function BackUp({ name }) {
  const [open, setOpen] = useState(false);
  if (!mayAdminister.value) return null;
  if (!me.value.backups) return html`<${Command} label=${W.backUpThere} text=${`kgserve backup${name ? ` ${name}` : ""} --to FOLDER`} />`;
  return html`<p><button type="button" class="plain" onClick=${() => setOpen(true)}>${name ? W.backUp : W.backUpAll}</button></p>
    ${open ? html`<${Form} name=${name} onClose=${() => setOpen(false)} />` : null}`;
}

/** @param {{name: string, onClose: () => void}} props */
function Form({ name, onClose }) {
  const [to, setTo] = useState("explorer");
  const [full, setFull] = useState(false);
  const [under, setUnder] = useState(false);
  const [done, setDone] = useState(/** @type {{stores: any[], failed: any[]} | null} */ (null));
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setUnder(true);
    await attempt(async () => {
      const answer = await ask("POST", name ? memory(name, "backup") : "/api/backup", { body: { to: to.trim(), full } });
      setDone(name ? { stores: [answer], failed: [] } : answer);
      say(W.backedUp);
    });
    setUnder(false);
  };
  return html`<${Dialog} title=${name ? W.backUpTitle(name) : W.backUpAll} onClose=${onClose}><form onSubmit=${send}>
    <p>${W.backUpText}</p>
    <label>${W.backUpFolder} <input value=${to} autocomplete="off" onInput=${(/** @type {any} */ event) => setTo(event.currentTarget.value)} /></label>
    <label class="check"><input type="checkbox" checked=${full} onChange=${() => setFull(!full)} /> ${W.backUpFull}</label>
    <${FormEnd} does=${under ? W.running : W.backUp} disabled=${under} /></form>
    ${done ? html`<section aria-label=${W.backedUp}>
      ${done.failed.map((one) => html`<p class="note" role="alert" key=${one.store}>${one.store}: ${one.error}</p>`)}
      <ul>${done.stores.map((one) => html`<li key=${one.store}><strong>${one.store}</strong> ${W.copiedUpTo(number(one.sequence), bytes(one.bytes_copied), bytes(one.bytes_total))}
        ${W.restorable(time(one.since), time(one.taken_at))}</li>`)}</ul></section>` : null}<//>`;
}
