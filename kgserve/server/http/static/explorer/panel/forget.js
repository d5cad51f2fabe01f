// Dialog that confirms forgetting an entity or a memory. The toast offers undo.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { attempt } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd } from "./forms.js";
import { forget, forgetWithUndo, isMemory } from "./memory_state.js";
import { Dialog } from "./parts.js";

/** @param {{row: any, onClose: () => void}} props */
export function Forget({ row, onClose }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  useEffect(() => {
    void attempt(async () => setFound(await forget(row, false, true)));
  }, [row.id]);
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
    void attempt(() => forgetWithUndo(row));
  };
  return html`<${Dialog} title=${W.forgetTitle(labelOf(row))} onClose=${onClose}><form onSubmit=${send}>
    ${isMemory(row) ? html`<p>${W.forgetMemoryText}</p><p class="content">${row.content}</p>
      ${found ? html`<p class="soft">${W.goesWith(found.memories_removed - 1, found.relations_removed)}</p>` : null}`
      : html`<p>${W.forgetText}</p>${found ? html`<${Preview} found=${found} />` : null}`}
    <${FormEnd} bad does=${W.forget} disabled=${!found} /></form><//>`;
}

/** Preview of the memories removed and kept, from a dry run. @param {{found: any}} props */
const Preview = ({ found }) => html`<h3>${W.goes(found.memories_removed)}</h3>
  <ul>${found.preview.map((/** @type {any} */ one) => html`<li key=${one.id}>${one.content} ${one.also_about.length ? html`<span class="soft">${W.alsoAbout(one.also_about)}</span>` : null}</li>`)}</ul>
  ${found.kept_count ? html`<h3>${W.stays(found.kept_count)}</h3>
    <ul>${found.kept.map((/** @type {any} */ one) => html`<li key=${one.id}>${one.content} <span class="soft">${one.reason}</span></li>`)}</ul>` : null}`;
