// Edit form for a node, based on the displayed version; shows both versions on a conflict.

import { html, useEffect, useState } from "../vendor/preact.js";
import { refreshNode } from "../load.js";
import { ask, memory, Refused } from "../server.js";
import { attempt, say, store } from "../state.js";
import { W } from "../words.js";
import { Diff, differences } from "./history.js";
import { refreshShown } from "./node.js";
import { Dialog, time, TimeField } from "./parts.js";

/** @typedef {{type: string, content: string, summary: string, tags: string, attributes: string, valid_from: string, valid_to: string}} Draft */

/** @param {any} row @returns {Draft} */
const draftOf = (row) => ({
  type: row.type, content: row.content, summary: row.summary ?? "", tags: (row.tags ?? []).join("\n"),
  attributes: JSON.stringify(row.attributes, null, 2), valid_from: row.valid_from ?? "", valid_to: row.valid_to ?? "",
});

const lines = (/** @type {string} */ text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** A memory has a confidence and more that a version as a whole would clear, so it is changed as a memory. @param {any} row */
const isMemory = (row) => row.confidence !== undefined;

/**
 * Write what a form holds. Raises Refused, and SyntaxError for attributes that are no JSON.
 * @param {any} row what was seen @param {Draft} draft @param {number} basedOn @returns {Promise<any>} the node as it is then
 */
async function write(row, draft, basedOn) {
  const attributes = JSON.parse(draft.attributes || "{}");
  if (isMemory(row)) {
    const body = { content: draft.content, tags: lines(draft.tags), metadata: attributes, based_on_version: basedOn };
    await ask("PUT", `/api/memories/${encodeURIComponent(row.id)}`, { query: { store: store.value }, body });
    return (await ask("GET", memory(store.value, "nodes", row.id))).node;
  }
  const body = {
    id: row.id, type: draft.type, content: draft.content, summary: draft.summary, tags: lines(draft.tags), attributes,
    valid_from: draft.valid_from, valid_to: draft.valid_to, freshness_at: row.freshness_at, based_on_version: basedOn,
  };
  return (await ask("POST", memory(store.value, "nodes"), { body })).node;
}

/** @param {{row: any, onClose: () => void}} props */
export function Edit({ row, onClose }) {
  const [seen] = useState(row);
  const [draft, setDraft] = useState(() => draftOf(row));
  const [wrong, setWrong] = useState("");
  const [conflict, setConflict] = useState(/** @type {any} */ (null));
  const change = (/** @type {keyof Draft} */ name) => (/** @type {any} */ event) => setDraft({ ...draft, [name]: event.currentTarget.value });
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      const node = await write(seen, draft, seen.version);
      refreshNode(node);
      say(W.saved(node.version));
      onClose();
      await refreshShown();
    } catch (error) {
      if (error instanceof Refused && error.code === "conflict_manual") setConflict(error.problem.node);
      else setWrong(error instanceof SyntaxError ? W.noJson(error.message) : /** @type {Error} */ (error).message);
    }
  };
  if (conflict) return html`<${Heads} row=${conflict} onClose=${() => { onClose(); void refreshShown(); }} />`;
  const line = (/** @type {keyof Draft} */ name) => html`<label>${W[name]} <input value=${draft[name]} onInput=${change(name)} /></label>`;
  const when = (/** @type {keyof Draft} */ name) => html`<${TimeField} label=${W[name]} value=${draft[name]} onPick=${(/** @type {string} */ value) => setDraft({ ...draft, [name]: value })} />`;
  const text = (/** @type {keyof Draft} */ name, rows = 4) => html`<label>${W[name]} <textarea rows=${rows} value=${draft[name]} onInput=${change(name)}></textarea></label>`;
  return html`<${Dialog} title=${W.editTitle(row.id)} onClose=${onClose} wide><form class="edit" onSubmit=${send}>
    <p class="soft">${W.basedOn(seen.version)}</p>
    ${row.version !== seen.version ? html`<p class="note">${W.movedOn(row.version)}</p>` : null}
    ${isMemory(row) ? null : line("type")} ${text("content", 6)} ${isMemory(row) ? null : line("summary")} ${text("tags", 2)} ${text("attributes", 5)}
    ${isMemory(row) ? null : html`<div class="pair-of-fields">${when("valid_from")} ${when("valid_to")}</div>`}
    ${wrong ? html`<p class="note" role="alert">${wrong}</p>` : null}
    <button>${W.save}</button></form><//>`;
}

/** Both heads of a node in conflict, side by side; whoever looks decides. @param {{row: any, onClose: () => void}} props */
export function Heads({ row, onClose }) {
  const [heads, setHeads] = useState(/** @type {any[]} */ ([row]));
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    void attempt(async () => {
      const others = await Promise.all((row.conflicts ?? []).map((/** @type {number} */ version) => ask("GET", memory(store.value, "nodes", row.id), { query: { version } })));
      setHeads([row, ...others.map((answer) => answer.node)]);
    });
  }, [row]);
  const keep = async (/** @type {any} */ head) => {
    try {
      const node = await write(head, draftOf(head), row.version);
      refreshNode(node);
      say(W.settled(node.version));
      onClose();
      await refreshShown();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  return html`<${Dialog} title=${W.conflictTitle(row.id)} onClose=${onClose} wide>
    <p>${W.conflictText}</p>
    ${wrong ? html`<p class="note" role="alert">${wrong}</p>` : null}
    <div class="heads">${heads.map((head) => html`<section key=${head.version} aria-label=${W.versionNumber(head.version)}>
      <h3>${W.versionNumber(head.version)}</h3><p class="soft">${time(head.updated_at)}${head.created_by ? ` ${W.by(head.created_by)}` : ""}</p>
      <p class="content">${head.content}</p>
      ${head === heads[0] ? null : html`<${Diff} diff=${differences(heads[0], { ...head, conflicts: heads[0].conflicts })} />`}
      <button type="button" onClick=${() => keep(head)}>${W.keep(head.version)}</button></section>`)}</div><//>`;
}
