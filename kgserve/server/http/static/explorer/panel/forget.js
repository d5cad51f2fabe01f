// Dialog to forget an entity: what goes, what stays, and a confirmation.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { ask } from "../server.js";
import { attempt, changed, focus, graph, say, selected, store } from "../state.js";
import { W } from "../view_words.js";
import { Dialog } from "./parts.js";

/** @param {string} entity @param {boolean} dry */
const forget = (entity, dry) => ask("POST", "/api/v1/forget", { query: { store: store.value }, body: { entity, dry_run: dry } });

/** @param {{row: any, onClose: () => void}} props */
export function Forget({ row, onClose }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  useEffect(() => {
    void attempt(async () => setFound(await forget(row.id, true)));
  }, [row.id]);
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
    // The event of the deletion may come before the answer.
    focus.value = "";
    void attempt(async () => {
      const answer = await forget(row.id, false);
      for (const id of [...answer.ids, ...answer.entities_removed]) graph.removeNode(id);
      selected.value = new Set();
      changed();
      say(W.forgotten(labelOf(row), answer.memories_removed));
    });
  };
  return html`<${Dialog} title=${W.forgetTitle(labelOf(row))} onClose=${onClose}><form onSubmit=${send}>
    <p>${W.forgetText}</p>
    ${found ? html`
      <h3>${W.goes(found.memories_removed)}</h3>
      <ul>${found.preview.map((/** @type {any} */ one) => html`<li key=${one.id}>${one.content} ${one.also_about.length ? html`<span class="soft">${W.alsoAbout(one.also_about)}</span>` : null}</li>`)}</ul>
      ${found.kept_count ? html`<h3>${W.stays(found.kept_count)}</h3>
        <ul>${found.kept.map((/** @type {any} */ one) => html`<li key=${one.id}>${one.content} <span class="soft">${one.reason}</span></li>`)}</ul>` : null}` : null}
    <button class="bad" disabled=${!found}>${W.forget}</button></form><//>`;
}
