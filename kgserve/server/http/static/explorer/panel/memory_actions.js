// Buttons to edit, merge and forget a memory or an entity, with their dialogs. Toasts offer undo.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { ask, Refused } from "../server.js";
import { attempt, mayWrite, store } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd, scrollToView } from "./forms.js";
import { changeMemory, forget, forgetWithUndo, isMemory, mergeWithUndo, readAgain, restoreForgotten } from "./memory_state.js";
import { Dialog, TimeField } from "./parts.js";

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

const OFFERED = 8;
const TYPING_PAUSE_MS = 300;

/** Find merge targets for a memory or an entity; without search text, memories with similar content. @param {any} row @param {string} text @returns {Promise<any[]>} */
async function findOthers(row, text) {
  const query = { store: store.value, limit: OFFERED + 1 };
  const found = isMemory(row)
    ? await ask("GET", "/api/memories/search", { query: { ...query, q: text.trim() || row.content.slice(0, 1000), touch: false } })
    : (await ask("GET", "/api/entities", { query: { ...query, name: text.trim() } })).entities;
  return found.filter((/** @type {any} */ one) => one.id !== row.id).slice(0, OFFERED);
}

/** @param {{row: any, onClose: () => void}} props */
function Merge({ row, onClose }) {
  const [text, setText] = useState("");
  const [others, setOthers] = useState(/** @type {any[] | null} */ (null));
  const [into, setInto] = useState(/** @type {any} */ (null));
  const [rule, setRule] = useState(/** @type {import("./memory_state.js").ContentRule} */ (isMemory(row) ? "keep" : "fill"));
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    let current = true;
    const wait = setTimeout(() => void attempt(async () => {
      const found = await findOthers(row, text);
      if (current) setOthers(found);
    }), others ? TYPING_PAUSE_MS : 0);
    return () => {
      current = false;
      clearTimeout(wait);
    };
  }, [text]);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await mergeWithUndo(row, into, rule);
      onClose();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  const rules = /** @type {import("./memory_state.js").ContentRule[]} */ (["keep", "append", "overwrite"]);
  return html`<${Dialog} title=${W.mergeTitle(labelOf(row))} onClose=${onClose} wide><form onSubmit=${send}>
    <p>${W.mergeText}</p>
    <label>${W.mergeSearch} <input type="search" value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)} /></label>
    <fieldset class="choices"><legend>${W.mergeInto}</legend>
      ${others?.map((one) => html`<label class="check" key=${one.id}><input type="radio" name="into" checked=${into?.id === one.id} onChange=${() => setInto(one)} /> ${labelOf(one)} <span class="soft">${one.memory_type ?? one.entity_type}</span></label>`)}
      ${others?.length === 0 ? html`<p class="soft">${W.nothingToMerge}</p>` : null}</fieldset>
    ${into && isMemory(row) ? html`<div class="heads"><section><h3>${W.mergeGoes}</h3><p class="content">${row.content}</p></section>
      <section><h3>${W.mergeStays}</h3><p class="content">${rule === "overwrite" ? row.content : into.content}${rule === "append" ? `\n${row.content}` : ""}</p></section></div>
      <fieldset class="choices"><legend>${W.mergeWhich}</legend>${rules.map((name) => html`<label class="check" key=${name}><input type="radio" name="rule" checked=${rule === name} onChange=${() => setRule(name)} /> ${W.mergeRules[name]}</label>`)}</fieldset>` : null}
    <${FormEnd} does=${W.merge} wrong=${wrong} disabled=${!into} /></form><//>`;
}

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
function MemoryEdit({ row: given, onClose }) {
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

const DIALOGS = { edit: MemoryEdit, merge: Merge, forget: Forget };

/** Buttons of a row; none if read-only, and only Restore if forgotten. @param {{row: any, small?: boolean}} props `small`: in a table row */
export function MemoryActions({ row, small = false }) {
  const [open, setOpen] = useState(/** @type {{name: string, row: any} | null} */ (null));
  if (!mayWrite.value || (row.ended && row.ended !== "forgotten")) return null;
  const start = (/** @type {string} */ name) => () => attempt(async () => setOpen({ name, row: await readAgain(row) }));
  const button = (/** @type {string} */ name, look = "plain", run = start(name)) => html`<button type="button" class=${`${look}${small ? " small" : ""}`} aria-label=${small ? W.doWith(W[name], labelOf(row)) : undefined} onClick=${run}>${W[name]}</button>`;
  if (row.ended) return button("restore", small ? "plain" : "", () => attempt(() => restoreForgotten(row)));
  const Shown = open ? DIALOGS[open.name] : null;
  return html`<span class="row acts">${isMemory(row) ? button("edit", small ? "plain" : "") : null} ${button("merge")} ${button("forget", "plain bad")}
    ${Shown && open ? html`<${Shown} row=${open.row} onClose=${() => setOpen(null)} />` : null}</span>`;
}
