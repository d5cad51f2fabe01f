// Backup dialog if the server has a backup folder, otherwise the command to run.

import { html, useState } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { attempt, mayAdminister, me, say } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd } from "./forms.js";
import { bytes, Command, Dialog, number, time } from "./parts.js";

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
