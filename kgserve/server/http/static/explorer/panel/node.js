// Details of a node: content, edges and history.

import { html, signal, useSignalEffect, useState } from "../vendor/preact.js";
import { listen } from "../events.js";
import { labelOf } from "../graph/labels.js";
import { stateAt } from "../graph/time.js";
import { findPath, hide, pin } from "../keyboard.js";
import { expand, memoryCount, missed, refreshNode } from "../load.js";
import { ask, memory } from "../server.js";
import { asOf, attempt, changed, entry, focus, graph, looks, mayWrite, openEdge, revision, say, selected, store, validAt } from "../state.js";
import { W } from "../view_words.js";
import { undoChange, undoDeletion } from "../entry/undo.js";
import { beginEdit, Edit, Heads, isEdited } from "./edit.js";
import { EdgePanel, Edges, Validity, Written } from "./edges.js";
import { FormEnd } from "./forms.js";
import { History } from "./history.js";
import { Mark } from "./legend.js";
import { MemoryFacts } from "./memory.js";
import { Forget } from "./memory_actions.js";
import { isWithdrawn, showEntity } from "./memory_state.js";
import { Dialog, number, time, Tree } from "./parts.js";

/** Data of the focused node; null: none, or not loaded yet. */
export const shown = signal(/** @type {{key: string, answer: any, error: string} | null} */ (null));
/** Open dialog: `delete`, `retire`, `forget`, `heads`. */
const doing = signal("");
let round = 0;

/** Load the focused node. */
export async function refreshShown() {
  const mine = ++round;
  const key = focus.value;
  const node = graph.nodes.get(key);
  if (!node) {
    shown.value = null;
    return;
  }
  if (stateAt(node, asOf.value) < 0) {
    shown.value = { key, answer: null, error: W.notThen };
    return;
  }
  const query = { as_of: asOf.value, valid_at: validAt.value === "now" ? undefined : validAt.value };
  try {
    const answer = await ask("GET", memory(node.store || store.value, "nodes", node.id), { query: node.store ? {} : query });
    if (mine !== round) return;
    shown.value = { key, answer, error: "" };
    if (asOf.value === null && !node.store) refreshNode(answer.node);
  } catch (error) {
    if (mine === round) shown.value = { key, answer: null, error: /** @type {Error} */ (error).message };
  }
}

/** Milliseconds without an event before the node is loaded again: those of its edges precede that of its own deletion. */
const REST = 100;
let waiting = 0;

listen((notice) => {
  if (asOf.value !== null || ![notice.data.id, notice.data.from, notice.data.to].includes(focus.value)) return;
  clearTimeout(waiting);
  waiting = setTimeout(refreshShown, REST);
});

export function NodePanel() {
  useSignalEffect(() => {
    focus.value;
    asOf.value;
    validAt.value;
    missed.value;
    const wait = setTimeout(refreshShown, shown.peek()?.key === focus.value ? 250 : 0);
    return () => clearTimeout(wait);
  });
  revision.value;
  if (openEdge.value) return html`<${EdgePanel} key=${openEdge.value} />`;
  const node = graph.nodes.get(focus.value);
  if (!node) return html`<section class="details" aria-label=${W.details}><p>${W.nothingChosen}</p><ul class="plain-list soft">${W.tips.map((tip) => html`<li key=${tip}>${tip}</li>`)}</ul></section>`;
  const now = shown.value?.key === node.key ? shown.value : null;
  const editing = mayWrite.value && !node.store && isEdited(node.id);
  return html`<section class="details" aria-label=${W.details}>
    <h2><${Mark} ...${looks.of(node.type)} /> ${node.label}</h2>
    <${Actions} node=${node} />
    ${editing ? html`<${Edit} id=${node.id} row=${now?.answer?.node} gone=${stateAt(node, null) < 0} onSaved=${refreshShown} onConflict=${settleConflict} />` : null}
    ${now?.error && !editing ? html`<p class="note">${now.error}</p>${node.store ? null : html`<${History} key=${node.key} id=${node.id} present=${null} />`}` : null}
    ${now?.answer && !editing ? html`<${Facts} key=${node.key} node=${node} answer=${now.answer} />` : null}
  </section>`;
}

/** Show both versions of the focused node. */
async function settleConflict() {
  await refreshShown();
  doing.value = "heads";
}

/** @param {{node: import("../graph/model.js").Node}} props */
function Actions({ node }) {
  revision.value;
  if (node.store) {
    return html`<p class="row"><a href=${`#/${encodeURIComponent(node.store)}?start=${encodeURIComponent(node.id)}`}>${W.openIn(node.store)}</a></p>`;
  }
  const open = graph.broughtOnlyBy(node.key).length > 0;
  return html`<p class="row">
    <button type="button" onClick=${() => expand(node.key)}>${open ? W.collapse : W.expand}</button>
    <button type="button" class="plain" aria-pressed=${node.pinned} onClick=${() => pin([node.key])}>${W.pin}</button>
    <button type="button" class="plain" onClick=${() => hide([node.key])}>${W.hide}</button>
    ${selected.value.size === 2 ? html`<button type="button" class="plain" onClick=${findPath}>${W.path}</button>` : null}
    ${memoryCount.value.count && shown.value?.answer?.node.name && shown.value.answer.node.confidence === undefined ? html`<button type="button" class="plain" onClick=${() => showEntity(node.id)}>${W.memoriesOf}</button>` : null}
  </p>`;
}

/** @param {{node: import("../graph/model.js").Node, answer: any}} props */
function Facts({ node, answer }) {
  const row = answer.node;
  const writable = mayWrite.value && !node.store;
  const conflict = writable && doing.value === "heads" ? html`<${Heads} row=${row} onClose=${stop} onSaved=${refreshShown} />` : null;
  return html`
    ${row.content ? html`<h3 class="hidden">${W.content}</h3><${Content} text=${row.content} />` : null}
    <dl>
      <dt>${W.id}</dt><dd class="mono">${row.id}</dd>
      <dt>${W.type}</dt><dd>${row.type || W.untyped}</dd>
      ${row.name && row.name !== node.label ? html`<dt>${W.name}</dt><dd>${row.name}</dd>` : null}
      ${row.summary && row.summary !== node.label ? html`<dt>${W.summary}</dt><dd>${row.summary}</dd>` : null}
      ${row.tags?.length ? html`<dt>${W.tags}</dt><dd>${row.tags.map((/** @type {string} */ tag) => html`<span class="tag" key=${tag}>${tag}</span> `)}</dd>` : null}
      ${(row.valid_from || row.valid_to) && !(row.ended && isWithdrawn(row)) ? html`<${Validity} ...${row} />` : null}
      ${row.freshness_at ? html`<dt>${W.freshUntil}</dt><dd>${time(row.freshness_at)} ${row.stale ? html`<strong>${W.stale}</strong>` : null}</dd>` : null}
      <${Written} ...${row} />
    </dl>
    ${row.conflicts?.length ? html`<p class="note">${W.inConflict(row.conflicts)} ${writable ? html`<button type="button" onClick=${() => { doing.value = "heads"; }}>${W.settle}</button>` : null}</p>` : null}
    ${Object.keys(row.attributes).length ? html`<h3>${W.attributes}</h3><${Tree} value=${row.attributes} />` : null}
    ${row.confidence === undefined ? null : html`<${MemoryFacts} key=${row.id} answer=${answer} />`}
    <${Edges} title=${W.outgoing} edges=${answer.outgoing} end="to" writable=${writable} />
    <${Edges} title=${W.incoming} edges=${answer.incoming} end="from" writable=${writable} />
    ${answer.edges_truncated ? html`<p class="note">${W.moreEdges}</p>` : null}
    ${node.store ? null : html`<${History} key=${`${row.id} ${row.sequence}`} id=${row.id} present=${row} />`}
    ${writable ? html`<p class="row">
      ${row.confidence === undefined ? html`<button type="button" onClick=${() => beginEdit(row)}>${W.edit}</button>` : null}
      <button type="button" class="plain" onClick=${() => { entry.value = { kind: "edge", from: row.id, to: "" }; }}>${W.addNames.edge}</button></p>
      <p class="row apart"><button type="button" class="plain" onClick=${() => { doing.value = "retire"; }}>${W.retire}</button>
      <button type="button" class="plain bad" onClick=${() => { doing.value = "delete"; }}>${W.delete}</button>
      ${row.name && row.confidence === undefined ? html`<button type="button" class="plain bad" onClick=${() => { doing.value = "forget"; }}>${W.forget}</button>` : null}</p>` : null}
    ${conflict}
    ${doing.value === "retire" && writable ? html`<${Retire} row=${row} />` : null}
    ${doing.value === "forget" && writable ? html`<${Forget} row=${row} onClose=${() => { doing.value = ""; }} />` : null}
    ${doing.value === "delete" && writable ? html`<${Delete} row=${row} />` : null}`;
}

const LONG = 1500;

/** @param {{text: string}} props */
function Content({ text }) {
  const [whole, setWhole] = useState(text.length <= LONG);
  return html`<p class="content">${whole ? text.slice(0, 200_000) : `${text.slice(0, LONG)}…`}</p>
    ${whole ? null : html`<button type="button" class="plain small" onClick=${() => setWhole(true)}>${W.showAll(number(text.length))}</button>`}`;
}

const stop = () => {
  doing.value = "";
};

/** @param {{row: any}} props */
function Retire({ row }) {
  const [when, setWhen] = useState("");
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    stop();
    void attempt(async () => {
      const body = when ? { valid_to: new Date(when).toISOString() } : {};
      const answer = await ask("POST", memory(store.value, "nodes", row.id, "retire"), { body });
      say(W.retired(time(answer.valid_to)), false, answer.changed ? undoChange(row.id, row.version, answer.version) : undefined);
      await refreshShown();
    });
  };
  return html`<${Dialog} title=${W.retireTitle(labelOf(row))} onClose=${stop}><form onSubmit=${send}>
    <p>${W.retireText}</p>
    <label>${W.until("")} <input type="datetime-local" value=${when} onInput=${(/** @type {any} */ event) => setWhen(event.currentTarget.value)} /></label>
    <p class="soft">${W.leftOutIsNow}</p>
    <${FormEnd} does=${W.retire} /></form><//>`;
}

/** @param {{row: any}} props */
function Delete({ row }) {
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    stop();
    void attempt(async () => {
      const before = await ask("GET", memory(store.value, "nodes", row.id), { query: { valid_at: "any" } });
      const answer = await ask("DELETE", memory(store.value, "nodes", row.id));
      graph.removeNode(row.id);
      focus.value = "";
      selected.value = new Set();
      changed();
      say(W.deleted(labelOf(row), answer.edges_deleted ?? 0) + (answer.memories_about ? W.memoriesStay(answer.memories_about) : ""), false, undoDeletion(before));
    });
  };
  return html`<${Dialog} title=${W.deleteTitle(labelOf(row))} onClose=${stop}><form onSubmit=${send}>
    <p>${W.deleteText}</p><${FormEnd} bad does=${W.delete} /></form><//>`;
}
