// Form for a new node or a new version of one.

import { html, useState } from "../vendor/preact.js";
import { FormEnd } from "../panel/forms.js";
import { ListField } from "../panel/setting_fields.js";
import { ask, memory } from "../server.js";
import { about, store } from "../state.js";
import { roundedAttribute, rowsOf } from "./attributes.js";
import { AttributesField, checkValidity, OfferField, readAttributes, typed, ValidityFields } from "./fields.js";
import { W } from "./words.js";

/** @typedef {{id: string, type: string, summary: string, content: string, tags: string[], attributes: import("./fields.js").AttributesDraft, valid_from: string, valid_to: string}} NodeDraft */

/** @type {NodeDraft} */
export const EMPTY = { id: "", type: "", summary: "", content: "", tags: [], attributes: { rows: [], json: null }, valid_from: "", valid_to: "" };

/** @param {any} row @returns {NodeDraft} */
export const draftOf = (row) => ({
  id: row.id, type: row.type, summary: row.summary ?? "", content: row.content, tags: row.tags ?? [],
  attributes: { rows: rowsOf(row.attributes), json: null }, valid_from: row.valid_from ?? "", valid_to: row.valid_to ?? "",
});

/** Return whether a node is a memory; writing one as a node would clear its confidence and more. @param {any} row */
export const isMemory = (row) => row?.confidence !== undefined;

/**
 * Write a version of a node. Throws Refused, and Error if the form is invalid.
 * @param {any} seen the version it is based on; null: a new node @param {NodeDraft} draft @param {number} [basedOn] @returns {Promise<{node: any, replaced: number, created?: boolean}>} the written node, and the version before
 */
export async function writeNode(seen, draft, basedOn = seen?.version) {
  checkValidity(draft.valid_from, draft.valid_to);
  const attributes = readAttributes(draft.attributes);
  const rounded = seen && roundedAttribute(seen.attributes);
  if (rounded) throw new Error(W.hugeNumber(rounded));
  const name = store.value;
  if (isMemory(seen)) {
    const body = { content: draft.content, tags: draft.tags, metadata: attributes, based_on_version: basedOn };
    await ask("PUT", `/api/memories/${encodeURIComponent(seen.id)}`, { query: { store: name }, body });
    return { node: (await ask("GET", memory(name, "nodes", seen.id), { query: { valid_at: "any" } })).node, replaced: seen.version };
  }
  const id = draft.id.trim();
  if (!seen && id && (await ask("POST", memory(name, "get"), { body: { ids: [id], valid_at: "any" } })).nodes.length) throw new Error(W.idTaken(id));
  const { valid_from, valid_to } = draft;
  const body = {
    id: id || undefined, type: draft.type.trim(), content: draft.content, summary: draft.summary, tags: draft.tags, attributes,
    valid_from: valid_from || undefined, valid_to: valid_to || undefined, freshness_at: seen?.freshness_at, based_on_version: basedOn,
  };
  const { node, created, replaced_version } = await ask("POST", memory(name, "nodes"), { body });
  return { node, created, replaced: replaced_version ?? basedOn };
}

/**
 * @param {object} props
 * @param {any} props.row the node; null: a new one
 * @param {NodeDraft} props.draft
 * @param {(draft: NodeDraft) => void} props.onInput
 * @param {() => Promise<void>} props.onSave its errors are shown
 * @param {() => void} [props.onCancel] default: close the dialog
 * @param {string} props.title
 */
export function NodeForm({ row, draft, onInput, onSave, onCancel, title }) {
  const [wrong, setWrong] = useState("");
  const [saving, setSaving] = useState(false);
  const change = (/** @type {Partial<NodeDraft>} */ part) => onInput({ ...draft, ...part });
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setWrong("");
    setSaving(true);
    try {
      await onSave();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
    setSaving(false);
  };
  const types = Object.keys(about.value?.stats.types ?? {});
  return html`<form class="entry" aria-label=${title} onSubmit=${send}>
    <${OfferField} label=${W.type} help=${row ? "" : W.typeHelp} list="types-offered" offered=${types} required value=${draft.type} onInput=${(/** @type {string} */ type) => change({ type })} />
      <label class="field">${W.summary}<input value=${draft.summary} onInput=${(/** @type {any} */ event) => change({ summary: typed(event) })} /><span class="help">${W.titleHelp}</span></label>
    <label class="field">${W.content}<textarea rows="4" value=${draft.content} onInput=${(/** @type {any} */ event) => change({ content: typed(event) })}></textarea></label>
    <${ListField} label=${W.tags} help=${W.tagsHelp} value=${draft.tags} disabled=${false} onChange=${(/** @type {string[]} */ tags) => change({ tags })} />
    <${AttributesField} draft=${draft.attributes} onInput=${(/** @type {any} */ attributes) => change({ attributes })} />
    <${ValidityFields} from=${draft.valid_from} to=${draft.valid_to} onPick=${(/** @type {string} */ which, /** @type {string} */ value) => change({ [which]: value })} />
    ${row ? null : html`<label class="field">${W.id}<input class="mono" value=${draft.id} onInput=${(/** @type {any} */ event) => change({ id: typed(event) })} /><span class="help">${W.idHelp}</span></label>`}
    <${FormEnd} does=${row ? W.save : W.create} wrong=${wrong} disabled=${saving} onCancel=${onCancel} /></form>`;
}
