// Editor of a node in the side panel, and dialog that resolves conflicting versions.

import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { readAttributes } from "../entry/fields.js";
import { draftOf, isMemory, NodeForm, writeNode } from "../entry/forms.js";
import { undoChange, undoNode } from "../entry/undo.js";
import { W } from "../entry/words.js";
import { refreshNode } from "../load.js";
import { ask, key, memory, Refused } from "../server.js";
import { about, attempt, say, store } from "../state.js";
import { unsaved } from "./forms.js";
import { Dialog, plain, time } from "./parts.js";

/** @typedef {import("../entry/forms.js").NodeDraft} NodeDraft */

/** Unsaved edits by store, id and key, kept while other nodes are shown. */
const edits = signal(/** @type {Record<string, {seen: any, draft: NodeDraft} | null>} */ ({}));
const editKey = (/** @type {string} */ id) => JSON.stringify([store.value, id, key.value]);
const same = (/** @type {any} */ one, /** @type {any} */ other) => JSON.stringify(one) === JSON.stringify(other);

/** @param {string} id @param {{seen: any, draft: NodeDraft} | null} edit null: remove it */
const keepEdit = (id, edit) => {
  edits.value = { ...edits.value, [editKey(id)]: edit };
};

unsaved.add(() => Object.values(edits.value).some((edit) => edit && !same(edit.draft, draftOf(edit.seen))));

/** @param {string} id */
export const isEdited = (id) => Boolean(edits.value[editKey(id)]);

/** @param {any} row */
export const beginEdit = (row) => keepEdit(row.id, { seen: row, draft: draftOf(row) });

/** Base a draft on a later version: fields that it does not change are of that. @param {any} seen @param {NodeDraft} draft @param {any} row @returns {NodeDraft} */
function rebaseDraft(seen, draft, row) {
  const before = draftOf(seen);
  return Object.assign(draftOf(row), Object.fromEntries(Object.entries(draft).filter(([name, value]) => !same(value, before[name]))));
}

/** @param {{id: string, row: any, gone: boolean, onSaved: () => Promise<void>, onConflict: () => void}} props `row`: the current version; `gone`: it is deleted */
export function Edit({ id, row, gone, onSaved, onConflict }) {
  const edit = edits.value[editKey(id)];
  if (!edit) return null;
  const { seen, draft } = edit;
  const newer = row?.version > seen.version;
  const manual = about.value?.settings.conflict_policy === "manual";
  const [base, mine] = newer && !manual ? [row, rebaseDraft(seen, draft, row)] : [seen, draft];
  const end = () => keepEdit(id, null);
  const save = async () => {
    try {
      const { node, created, replaced } = await writeNode(base, mine);
      end();
      refreshNode(node);
      if (created) say(W.saved(node.version), false, undoNode(node));
      else say((replaced > base.version ? W.savedOver : W.saved)(node.version, replaced), false, node.version === replaced ? undefined : undoChange(id, replaced, node.version));
      await onSaved();
    } catch (error) {
      if (!(error instanceof Refused) || error.code !== "conflict_manual") throw error;
      end();
      refreshNode(error.problem.node);
      onConflict();
    }
  };
  return html`
    ${gone ? html`<p class="note" role="status">${W.deletedMeanwhile}</p>` : null}
    ${newer ? html`<div class="note" role="status"><p>${W.movedOn(row.version)} ${manual ? W.keepsBoth : W.replacesThese}</p>
      <${Versions} heads=${[draftedRow(base, mine), row]} names=${[W.yours, W.versionNumber(row.version)]} /></div>` : null}
    <${NodeForm} row=${seen} title=${W.editTitle(id)} draft=${draft} onInput=${(/** @type {NodeDraft} */ next) => keepEdit(id, { seen, draft: next })} onSave=${save} onCancel=${end} />
    <p class="soft">${W.basedOn(seen.version)} ${W.unsaved}</p>`;
}

/** Return a node with the values of a draft. @param {any} seen @param {NodeDraft} draft */
function draftedRow(seen, draft) {
  const { type, summary, content, tags, valid_from, valid_to } = draft;
  let { attributes } = seen;
  try {
    attributes = readAttributes(draft.attributes);
  } catch {
    // Invalid attributes: the form reports them on submit.
  }
  return { ...seen, type, summary, content, tags, attributes, valid_from, valid_to };
}

/** Fields compared between versions. */
const FIELDS = /** @type {const} */ (["type", "summary", "content", "tags", "valid_from", "valid_to"]);

/** Return the value of a field or attribute. @param {any} head @param {string} path */
function valueAt(head, path) {
  const value = path.startsWith("attributes.") ? head.attributes[path.slice(11)] : head[path];
  return value === undefined || value === "" || (Array.isArray(value) && !value.length) ? null : value;
}

/** Return the fields in which versions differ. @param {any[]} heads @returns {string[]} */
function differingFields(heads) {
  const attributes = new Set(heads.flatMap((head) => Object.keys(head.attributes).map((name) => `attributes.${name}`)));
  return [...FIELDS, ...attributes].filter((path) => new Set(heads.map((head) => JSON.stringify(valueAt(head, path)))).size > 1);
}

/** Return the cell for a value. @param {string} path @param {any} value */
const cell = (path, value) => (value === null ? html`<span class="soft">${W.nothing}</span>` : path.startsWith("valid_") ? time(value) : plain(value));

/** @param {string} path */
const fieldName = (path) => W[path] ?? path.slice(11);

/**
 * Table that compares versions; with `picks`, one can be chosen for each field.
 * @param {{heads: any[], names: string[], picks?: Record<string, number>, onPick?: (path: string, at: number) => void}} props
 */
function Versions({ heads, names, picks, onPick }) {
  const paths = differingFields(heads);
  if (!paths.length) return html`<p class="soft">${W.noDifference}</p>`;
  return html`<div class="scroll rows" tabindex="0" role="region" aria-label=${W.compare}><table class="versions"><thead><tr><th scope="col">${W.field}</th>${names.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${paths.map((path) => html`<tr key=${path}><th scope="row">${fieldName(path)}</th>${heads.map((head, at) => html`<td key=${at}>${picks
      ? html`<label class="check"><input type="radio" name=${`pick ${path}`} checked=${(picks[path] ?? 0) === at} aria-label=${W.takeFrom(fieldName(path), head.version)} onChange=${() => onPick?.(path, at)} /> <span>${cell(path, valueAt(head, path))}</span></label>`
      : cell(path, valueAt(head, path))}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** Return a version with each field from the chosen head. @param {any[]} heads @param {Record<string, number>} picks */
function pickFields(heads, picks) {
  const made = { ...heads[0], attributes: { ...heads[0].attributes } };
  for (const [path, at] of Object.entries(picks)) {
    const value = valueAt(heads[at], path);
    if (!path.startsWith("attributes.")) made[path] = value ?? (path === "tags" ? [] : "");
    else if (value === null && !(path.slice(11) in heads[at].attributes)) delete made.attributes[path.slice(11)];
    else made.attributes[path.slice(11)] = heads[at].attributes[path.slice(11)];
  }
  return made;
}

/** Dialog that compares the heads of a node in conflict, to keep or merge them. @param {{row: any, onClose: () => void, onSaved: () => Promise<void>}} props */
export function Heads({ row, onClose, onSaved }) {
  const [heads, setHeads] = useState(/** @type {any[]} */ ([row]));
  const [picks, setPicks] = useState(/** @type {Record<string, number>} */ ({}));
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    void attempt(async () => {
      const others = await Promise.all((row.conflicts ?? []).map((/** @type {number} */ version) => ask("GET", memory(store.value, "nodes", row.id), { query: { version } })));
      setHeads([row, ...others.map((answer) => answer.node)]);
    });
  }, [row]);
  const keep = async (/** @type {any} */ head) => {
    try {
      const { node } = await writeNode(head, draftOf(head), row.version);
      refreshNode(node);
      say(W.settled(node.version));
      onClose();
      await onSaved();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  const names = heads.map((head) => W.versionNumber(head.version));
  return html`<${Dialog} title=${W.conflictTitle(row.id)} onClose=${onClose} wide>
    <p>${W.conflictText}</p>
    ${wrong ? html`<p class="note" role="alert">${wrong}</p>` : null}
    <div class="heads">${heads.map((head) => html`<section key=${head.version} aria-label=${W.versionNumber(head.version)}>
      <h3>${W.versionNumber(head.version)}</h3><p class="soft">${time(head.updated_at)}${head.created_by ? ` ${W.by(head.created_by)}` : ""}</p>
      <p class="content">${head.content}</p>
      <button type="button" onClick=${() => keep(head)}>${W.keep(head.version)}</button></section>`)}</div>
    ${heads.length > 1 && !isMemory(row) ? html`<h3>${W.merged}</h3><${Versions} heads=${heads} names=${names} picks=${picks} onPick=${(/** @type {string} */ path, /** @type {number} */ at) => setPicks({ ...picks, [path]: at })} />
      <p><button type="button" class="primary" disabled=${!Object.values(picks).some(Boolean)} onClick=${() => keep(pickFields(heads, picks))}>${W.saveMerged}</button></p>` : null}<//>`;
}
