// Editor of a node in the side panel, and dialog that resolves conflicting versions.

import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { readAttributes } from "../entry/fields.js";
import { draftOf, isMemory, NodeForm, writeNode } from "../entry/node_form.js";
import { undoChange } from "../entry/undo.js";
import { W } from "../entry/words.js";
import { refreshNode } from "../load.js";
import { ask, memory, Refused } from "../server.js";
import { attempt, say, store } from "../state.js";
import { Dialog, plain, time } from "./parts.js";

/** @typedef {import("../entry/node_form.js").NodeDraft} NodeDraft */

/** Unsaved edits by store and id, kept while other nodes are shown. */
const edits = signal(/** @type {Map<string, {seen: any, draft: NodeDraft}>} */ (new Map()));
const editKey = (/** @type {string} */ id) => JSON.stringify([store.value, id]);

/** @param {string} id @param {{seen: any, draft: NodeDraft} | null} edit null: remove it */
function keepEdit(id, edit) {
  const next = new Map(edits.value);
  if (edit) next.set(editKey(id), edit);
  else next.delete(editKey(id));
  edits.value = next;
}

/** @param {string} id */
export const isEdited = (id) => edits.value.has(editKey(id));

/** @param {any} row */
export const beginEdit = (row) => keepEdit(row.id, { seen: row, draft: draftOf(row) });

/** @param {{row: any, onSaved: () => Promise<void>, onConflict: (node: any) => void}} props */
export function Edit({ row, onSaved, onConflict }) {
  const { seen, draft } = edits.value.get(editKey(row.id)) ?? { seen: row, draft: draftOf(row) };
  const end = () => keepEdit(row.id, null);
  const save = async () => {
    try {
      const { node, replaced } = await writeNode(seen, draft);
      end();
      refreshNode(node);
      say(W.saved(node.version), false, node.version === replaced ? undefined : undoChange(row.id, replaced, node.version));
      await onSaved();
    } catch (error) {
      if (!(error instanceof Refused) || error.code !== "conflict_manual") throw error;
      end();
      refreshNode(error.problem.node);
      onConflict(error.problem.node);
    }
  };
  return html`
    ${row.version > seen.version ? html`<div class="note" role="status"><p>${W.movedOn(row.version)}</p>
      <${Versions} heads=${[draftedRow(seen, draft), row]} names=${[W.yours, W.versionNumber(row.version)]} /></div>` : null}
    <${NodeForm} row=${seen} title=${W.editTitle(row.id)} draft=${draft} onInput=${(/** @type {NodeDraft} */ next) => keepEdit(row.id, { seen, draft: next })} onSave=${save} onCancel=${end} />
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
const FIELD_NAMES = { type: W.type, summary: W.titleField, content: W.content, tags: W.tags, valid_from: W.valid_from, valid_to: W.valid_to };

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
const fieldName = (path) => FIELD_NAMES[path] ?? path.slice(11);

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
