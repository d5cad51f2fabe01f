// Form of an edge between two nodes.

import { html, useState } from "../vendor/preact.js";
import { edgeKey } from "../graph/model.js";
import { FormEnd } from "../panel/forms.js";
import { takeEdge } from "../panel/fresh.js";
import { ask, memory } from "../server.js";
import { missed, put } from "../load.js";
import { about, graph, say, store } from "../state.js";
import { AttributesField, checkValidity, idOfLabel, NodeField, nodesLike, OfferField, readAttributes, typed, ValidityFields } from "./fields.js";
import { undoEdge, whyNotDrawn } from "./undo.js";
import { W } from "./words.js";

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
