// Forms of nodes and edges.

import { html, useState } from "../vendor/preact.js";
import { edgeKey } from "../graph/model.js";
import { missed, put } from "../load.js";
import { FormEnd } from "../panel/forms.js";
import { takeEdge } from "../panel/fresh.js";
import { ask, memory } from "../server.js";
import { about, graph, say, store } from "../state.js";
import { AttributesField, checkValidity, idOfLabel, ListField, NodeField, nodesLike, OfferField, readAttributes, roundedAttribute, rowsOf, typed, ValidityFields } from "./fields.js";
import { undoEdge, whyNotDrawn } from "./undo.js";
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

/** @typedef {{from: string, to: string, relation_type: string, weight: string, attributes: import("./fields.js").AttributesDraft, valid_from: string, valid_to: string}} EdgeDraft */

/** Show an edge and both its nodes. @param {any} edge */
async function showEdge(edge) {
  const away = [edge.from, edge.to].filter((id) => !graph.nodes.has(id));
  if (away.length) await put(away);
  else takeEdge(edge);
  missed.value++;
}

/** Return the ids of nodes that are given by id or title. Throws Error. @param {string[]} texts */
async function resolveNodes(texts) {
  const { missing = [] } = await ask("POST", memory(store.value, "get"), { body: { ids: [...new Set(texts)], valid_at: "any" } });
  const ids = new Map();
  for (const text of missing) {
    const id = idOfLabel(await nodesLike(text), text);
    if (!id) throw new Error(W.noSuchNode(text));
    ids.set(text, id);
  }
  return texts.map((text) => ids.get(text) ?? text);
}

/** Write an edge and report it. Throws Error and Refused. @param {EdgeDraft} draft */
async function writeEdge(draft) {
  const kind = draft.relation_type.trim();
  checkValidity(draft.valid_from, draft.valid_to);
  const metadata = readAttributes(draft.attributes);
  const name = store.value;
  const [from, to] = await resolveNodes([draft.from.trim(), draft.to.trim()]);
  const edge = {
    from_lineage: from, to_lineage: to, kind, weight: draft.weight === "" ? undefined : Number(draft.weight), metadata: Object.keys(metadata).length ? metadata : undefined,
    valid_from: draft.valid_from || undefined, valid_to: draft.valid_to || undefined,
  };
  const { edges: [result], sequence } = await ask("POST", memory(name, "subgraph"), { body: { edges: [edge] } });
  if (result.error) throw new Error(result.error.replace(/^\w+: /, ""));
  const written = (await ask("GET", memory(name, "edges", result.edge_id))).edge;
  await showEdge({ ...written, sequence });
  const label = (/** @type {string} */ id) => graph.nodes.get(id)?.label ?? id;
  if (result.created === false && !result.replaced) say(W.edgeAsItIs);
  else {
    const undo = await undoEdge(result.edge_id, { from, to, relation_type: kind }, result.created === false ? result.replaced : null);
    say((result.created === false ? W.edgeSaved : W.edgeCreated)(label(from), kind, label(to)) + whyNotDrawn(graph.edges.get(edgeKey(from, kind, to))), false, undo);
  }
}

/** @param {{from: string, to: string, onClose: () => void}} props */
export function EdgeForm({ from, to, onClose }) {
  const [draft, setDraft] = useState(/** @type {EdgeDraft} */ ({ from, to, relation_type: "", weight: "", attributes: { rows: [], json: null }, valid_from: "", valid_to: "" }));
  const [wrong, setWrong] = useState("");
  const [swaps, setSwaps] = useState(0);
  const change = (/** @type {Partial<EdgeDraft>} */ part) => setDraft({ ...draft, ...part });
  const swap = () => {
    change({ from: draft.to, to: draft.from });
    setSwaps(swaps + 1);
  };
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setWrong("");
    try {
      await writeEdge(draft);
      onClose();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  const relations = Object.keys(about.value?.stats.relation_types ?? {});
  return html`<form class="entry" aria-label=${W.newEdge} onSubmit=${send}>
    <${NodeField} key=${`from ${swaps}`} label=${W.from} list="from-offered" value=${draft.from} onInput=${(/** @type {string} */ id) => change({ from: id })} />
    <${OfferField} label=${W.relation} help=${W.relationHelp} list="relations-offered" offered=${relations} required value=${draft.relation_type} onInput=${(/** @type {string} */ type) => change({ relation_type: type })} />
    <${NodeField} key=${`to ${swaps}`} label=${W.to} list="to-offered" value=${draft.to} onInput=${(/** @type {string} */ id) => change({ to: id })} />
    <details><summary>${W.more}</summary><div class="entry">
      <button type="button" class="plain small" onClick=${swap}>${W.swap}</button>
      <label class="field">${W.weight}<input type="number" step="any" placeholder="1" value=${draft.weight} onInput=${(/** @type {any} */ event) => change({ weight: typed(event) })} /></label>
      <${ValidityFields} from=${draft.valid_from} to=${draft.valid_to} onPick=${(/** @type {string} */ which, /** @type {string} */ value) => change({ [which]: value })} />
      <${AttributesField} draft=${draft.attributes} onInput=${(/** @type {any} */ attributes) => change({ attributes })} /></div></details>
    <${FormEnd} does=${W.create} wrong=${wrong} /></form>`;
}
