// Fields shared by the forms of nodes and edges.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Plus, X } from "../vendor/icons.js";
import { labelOf } from "../graph/labels.js";
import { Icon, TimeField } from "../panel/parts.js";
import { ask, memory } from "../server.js";
import { about, graph, store } from "../state.js";
import { attributesOf, parseAttributes, rowsOf } from "./attributes.js";
import { W } from "./words.js";

/** @typedef {import("./attributes.js").AttributeRow} AttributeRow */
/** @typedef {{rows: AttributeRow[], json: string | null}} AttributesDraft rows of the form, or JSON edited instead */

const OFFERED = 200;
const HITS = 8;
const PAUSE_MS = 200;

/** Return the value of a field. @param {any} event @returns {string} */
export const typed = (event) => event.currentTarget.value;

/** Text field with suggestions. @param {{label: string, help?: string, list: string, offered: Iterable<string>, value: string, required?: boolean, disabled?: boolean, onInput: (value: string) => void}} props */
export const OfferField = ({ label, help, list, offered, value, required, disabled, onInput }) => html`<label class="field">${label}
    <input list=${list} value=${value} required=${required} disabled=${disabled} autocomplete="off" onInput=${(/** @type {any} */ event) => onInput(typed(event))} />
    <datalist id=${list}>${[...offered].slice(0, OFFERED).map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
    ${help ? html`<span class="help">${help}</span>` : null}</label>`;

/** Fields for the start and end of validity. @param {{from: string, to: string, onPick: (which: "valid_from" | "valid_to", value: string) => void}} props */
export const ValidityFields = ({ from, to, onPick }) => html`<fieldset><legend>${W.validityField}</legend><div class="pair-of-fields">
    <${TimeField} label=${W.valid_from} value=${from} onPick=${(/** @type {string} */ value) => onPick("valid_from", value)} />
    <${TimeField} label=${W.valid_to} value=${to} onPick=${(/** @type {string} */ value) => onPick("valid_to", value)} /></div>
    <span class="help">${W.validityHelp}</span></fieldset>`;

/** Throw Error if the end is not after the start. @param {string} from @param {string} to */
export function checkValidity(from, to) {
  if (from && to && Date.parse(to) <= Date.parse(from)) throw new Error(W.endBeforeStart);
}

/** Parse the attributes of a draft. Throws Error. @param {AttributesDraft} draft */
export const readAttributes = ({ rows, json }) => (json === null ? attributesOf(rows) : parseAttributes(json));

/** @param {{row: AttributeRow, onInput: (row: AttributeRow) => void, onRemove: () => void}} props */
function AttributeLine({ row, onInput, onRemove }) {
  const name = row.name || W.attributeValue;
  const kind = (/** @type {any} */ event) => {
    const next = typed(event);
    onInput({ ...row, kind: /** @type {any} */ (next), text: next === "boolean" ? String(row.text === "true") : row.text });
  };
  const write = (/** @type {any} */ event) => onInput({ ...row, text: typed(event) });
  return html`<div class="attribute" role="group" aria-label=${name}>
    <input aria-label=${W.attributeName} placeholder=${W.attributeName} value=${row.name} onInput=${(/** @type {any} */ event) => onInput({ ...row, name: typed(event) })} />
    <select aria-label=${W.attributeKind} value=${row.kind} onChange=${kind}>${Object.entries(W.attributeKinds).map(([one, words]) => html`<option key=${one} value=${one}>${words}</option>`)}</select>
    ${row.kind === "boolean"
      ? html`<select aria-label=${W.attributeValue} value=${row.text} onChange=${write}>${Object.entries(W.booleans).map(([one, words]) => html`<option key=${one} value=${one}>${words}</option>`)}</select>`
      : html`<input aria-label=${W.attributeValue} placeholder=${W.attributeValue} inputmode=${row.kind === "number" ? "decimal" : undefined} value=${row.text} onInput=${write} />`}
    <button type="button" class="icon-button" aria-label=${W.removeAttribute(row.name)} onClick=${onRemove}><${Icon} of=${X} /></button></div>`;
}

/** Form of attributes, or their JSON. @param {{draft: AttributesDraft, onInput: (draft: AttributesDraft) => void}} props */
export function AttributesField({ draft, onInput }) {
  const { rows, json } = draft;
  const [wrong, setWrong] = useState("");
  const change = (/** @type {number} */ at, /** @type {AttributeRow[]} */ ...next) => onInput({ rows: [...rows.slice(0, at), ...next, ...rows.slice(at + 1)], json: null });
  const toggle = () => {
    try {
      setWrong("");
      if (json === null) onInput({ rows, json: JSON.stringify(attributesOf(rows), null, 2) });
      else onInput({ rows: rowsOf(parseAttributes(json)), json: null });
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  return html`<fieldset><legend>${W.attributes}</legend>
    ${json === null
      ? html`${rows.map((row, at) => html`<${AttributeLine} key=${at} row=${row} onInput=${(/** @type {AttributeRow} */ next) => change(at, next)} onRemove=${() => change(at)} />`)}
        <p class="row"><button type="button" class="small" onClick=${() => change(rows.length, { name: "", kind: "text", text: "" })}><${Icon} of=${Plus} />${W.addAttribute}</button>
          <button type="button" class="plain small" onClick=${toggle}>${W.asJson}</button></p>`
      : html`<label class="field">${W.attributesJson}<textarea rows="6" value=${json} onInput=${(/** @type {any} */ event) => onInput({ rows, json: typed(event) })}></textarea><span class="help">${W.jsonHelp}</span></label>
        <p class="row"><button type="button" class="plain small" onClick=${toggle}>${W.asForm}</button></p>`}
    ${wrong ? html`<p class="note" role="alert">${wrong}</p>` : null}</fieldset>`;
}

/** Return nodes of the canvas and the store that match a text. @param {string} text @returns {Promise<[string, string][]>} ids with labels */
export async function nodesLike(text) {
  const like = text.toLowerCase();
  const seen = [...graph.nodes.values()].filter((node) => !node.store && `${node.id} ${node.label}`.toLowerCase().includes(like)).slice(0, HITS);
  const found = new Map(seen.map((node) => [node.id, node.label]));
  if (like.trim() && about.value?.stats.indexes.length) {
    const { hits } = await ask("POST", memory(store.value, "search"), { body: { query: text, limit: HITS, prefix: true, mode: "keyword" } }).catch(() => ({ hits: [] }));
    for (const { node } of hits) if (!found.has(node.id)) found.set(node.id, labelOf(node));
  }
  return [...found];
}

/** Return the id of the only node with a label; undefined: none, or several. @param {[string, string][]} nodes ids with labels @param {string} label */
export function idOfLabel(nodes, label) {
  const ids = nodes.filter(([, name]) => name === label).map(([id]) => id);
  return ids.length === 1 && !nodes.some(([id]) => id === label) ? ids[0] : undefined;
}

/** Field for a node, by title or id, with suggestions. @param {{label: string, list: string, value: string, onInput: (id: string) => void}} props `value`: its id, or other text */
export function NodeField({ label, list, value, onInput }) {
  const [offered, setOffered] = useState(/** @type {[string, string][]} */ ([]));
  const [text, setText] = useState(graph.nodes.get(value)?.label ?? value);
  useEffect(() => {
    let wanted = true;
    const wait = setTimeout(async () => {
      const found = await nodesLike(text);
      if (wanted) setOffered(found);
    }, PAUSE_MS);
    return () => {
      wanted = false;
      clearTimeout(wait);
    };
  }, [text]);
  const write = (/** @type {any} */ event) => {
    const next = typed(event);
    setText(next);
    onInput(idOfLabel(offered, next) ?? next);
  };
  const id = value === text ? idOfLabel(offered, text) : value;
  const named = graph.nodes.get(value)?.label ?? offered.find(([id]) => id === value)?.[1];
  return html`<label class="field">${label}<input list=${list} required autocomplete="off" value=${text} onInput=${write} />
    <datalist id=${list}>${offered.map(([id, name]) => html`<option key=${id} value=${idOfLabel(offered, name) ? name : id} label=${idOfLabel(offered, name) ? id : name}></option>`)}</datalist>
    <span class="help">${id ? W.idIs(id) : named && named !== value ? named : W.nodeHelp}</span></label>`;
}
