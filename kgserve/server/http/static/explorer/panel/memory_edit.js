// Form to edit a memory. Only changed fields are written.

import { html, useState } from "../vendor/preact.js";
import { Refused } from "../server.js";
import { W } from "../view_words.js";
import { FormEnd, scrollToView } from "./forms.js";
import { changeMemory, readAgain } from "./memory_state.js";
import { Dialog, TimeField } from "./parts.js";

/** @typedef {Record<string, string>} Draft fields by name, as text */

const lines = (/** @type {string} */ text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const asText = (/** @type {string} */ text) => text;
/** Parsers of typed text, by field. @type {Record<string, (text: string) => unknown>} */
const FIELDS = {
  content: asText, memory_type: asText, entity_names: lines, tags: lines, confidence: Number, importance: Number,
  source: asText, context: asText, valid_from: asText, valid_to: asText, metadata: (text) => JSON.parse(text || "{}"),
};

/** @param {any} row a memory @returns {Draft} */
const draftOf = (row) => ({
  content: row.content, memory_type: row.memory_type, entity_names: row.entities.map((/** @type {any} */ one) => one.name).join("\n"), tags: row.tags.join("\n"),
  confidence: String(row.confidence), importance: String(row.importance), source: row.source ?? "", context: row.context ?? "",
  valid_from: row.valid_from ?? "", valid_to: row.valid_to ?? "", metadata: JSON.stringify(row.metadata, null, 2),
});

/** Return the changed fields of a draft. Throws SyntaxError if the metadata is not JSON. @param {Draft} before @param {Draft} after @param {Draft} from source of the values */
function changedFields(before, after, from) {
  const names = Object.keys(FIELDS).filter((name) => before[name] !== after[name]);
  return Object.fromEntries(names.map((name) => [name, FIELDS[name](from[name])]));
}

/** @param {{row: any, onClose: () => void}} props `row`: a memory from `/api/memories` */
export function MemoryEdit({ row: given, onClose }) {
  const [row, setRow] = useState(given);
  const before = draftOf(row);
  const [draft, setDraft] = useState(before);
  const [wrong, setWrong] = useState("");
  /** Fields that another caller has changed, too. */
  const [both, setBoth] = useState(/** @type {string[] | null} */ (null));
  const set = (/** @type {string} */ name, /** @type {string} */ value) => setDraft({ ...draft, [name]: value });
  const typed = (/** @type {string} */ name) => (/** @type {any} */ event) => set(name, event.currentTarget.value);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setWrong("");
    try {
      const fields = changedFields(before, draft, draft);
      if (Object.keys(fields).length) await changeMemory(row, fields, changedFields(before, draft, before));
      onClose();
    } catch (error) {
      if (error instanceof Refused && error.status === 409) return rebase().catch((again) => setWrong(again.message));
      return setWrong(error instanceof SyntaxError ? W.noJson(error.message) : /** @type {Error} */ (error).message);
    }
  };
  /** Base the draft on the version of another caller. */
  const rebase = async () => {
    const later = await readAgain(row);
    const theirs = draftOf(later);
    const changed = Object.keys(draft).filter((name) => draft[name] !== before[name]);
    setBoth(changed.filter((name) => theirs[name] !== before[name] && theirs[name] !== draft[name]));
    setDraft({ ...theirs, ...Object.fromEntries(changed.map((name) => [name, draft[name]])) });
    setRow(later);
  };
  const text = (/** @type {string} */ name, rows = 2) => html`<label>${W.memoryFields[name]} <textarea rows=${rows} value=${draft[name]} required=${name === "content"} onInput=${typed(name)}></textarea></label>`;
  const line = (/** @type {string} */ name) => html`<label>${W.memoryFields[name]} <input value=${draft[name]} onInput=${typed(name)} /></label>`;
  const share = (/** @type {string} */ name) => html`<label>${W.memoryFields[name]} <input type="number" min="0" max="1" step="any" required value=${draft[name]} onInput=${typed(name)} /></label>`;
  const when = (/** @type {string} */ name) => html`<${TimeField} label=${W[name]} value=${draft[name]} onPick=${(/** @type {string} */ value) => set(name, value)} />`;
  return html`<${Dialog} title=${W.editMemory} onClose=${onClose} wide><form class="edit" onSubmit=${send}>
    ${both ? html`<div class="note" role="alert" ref=${scrollToView}><p>${W.memoryMovedOn(row.version)}</p><dl>${both.map((name) => html`<dt>${W.memoryFields[name] ?? W[name]}</dt><dd>${before[name] || "–"}</dd>`)}</dl></div>` : html`<p class="soft">${W.memoryBase(row.version)}</p>`}
    ${text("content", 4)}
    <div class="pair-of-fields">${line("memory_type")} ${line("source")}</div>
    <div class="pair-of-fields">${text("entity_names")} ${text("tags")}</div>
    <div class="pair-of-fields">${share("confidence")} ${share("importance")}</div>
    <div class="pair-of-fields">${when("valid_from")} ${when("valid_to")}</div>
    <details><summary>${W.moreFields}</summary>${text("context")} ${text("metadata", 5)}</details>
    <${FormEnd} does=${W.save} wrong=${wrong} /></form><//>`;
}
