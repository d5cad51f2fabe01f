// Fields of forms, and conversion between attributes and form rows.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Plus, X } from "../vendor/icons.js";
import { labelOf } from "../graph/labels.js";
import { Icon, TimeField } from "../panel/parts.js";
import { ask, memory } from "../server.js";
import { about, graph, store } from "../state.js";
import { W } from "./words.js";

/** @typedef {"text" | "number" | "boolean" | "json"} AttributeKind */
/** @typedef {{name: string, kind: AttributeKind, text: string}} AttributeRow */
/** @typedef {{rows: AttributeRow[], json: string | null}} AttributesDraft rows of the form, or JSON edited instead */
/** @typedef {{label: string, help: string, value: any, disabled: boolean, onChange: (value: any) => void}} FieldProps */

const OFFERED = 200;
const HITS = 8;
const PAUSE_MS = 200;
const NUMBER = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
const KINDS = { string: "text", number: "number", boolean: "boolean" };

/** @param {Record<string, any>} attributes @returns {AttributeRow[]} */
export const rowsOf = (attributes) => Object.entries(attributes).map(([name, value]) => {
  const kind = /** @type {AttributeKind} */ (KINDS[typeof value] ?? "json");
  return { name, kind, text: kind === "json" ? JSON.stringify(value) : String(value) };
});

/** Return the name of the first attribute with an integer that the browser may have rounded; undefined: none. @param {Record<string, any>} attributes */
export const roundedAttribute = (attributes) => Object.keys(attributes).find((name) => isRounded(attributes[name]));

/** @param {any} value @returns {boolean} */
function isRounded(value) {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value);
  return value !== null && typeof value === "object" && Object.values(value).some(isRounded);
}

/** @param {AttributeRow} row @returns {any} */
function attributeValue({ name, kind, text }) {
  if (kind === "text") return text;
  if (kind === "boolean") return text === "true";
  if (kind === "number" && !NUMBER.test(text.trim())) throw new Error(W.noNumber(name));
  try {
    return JSON.parse(text.trim().replace(/^(-?)0+(?=\d)/, "$1"));
  } catch (error) {
    throw new Error(`${name}: ${W.noJson(/** @type {Error} */ (error).message)}`);
  }
}

/** Return the attributes of rows, without empty rows. Throws Error. @param {AttributeRow[]} rows @returns {Record<string, any>} */
export function attributesOf(rows) {
  const attributes = new Map();
  for (const row of rows) {
    const name = row.name.trim();
    if (!name && !row.text) continue;
    if (!name) throw new Error(W.namelessAttribute);
    if (attributes.has(name)) throw new Error(W.twice(name));
    attributes.set(name, attributeValue({ ...row, name }));
  }
  return checked(Object.fromEntries(attributes));
}

/** Parse attributes from JSON. Throws Error. @param {string} text @returns {Record<string, any>} */
export function parseAttributes(text) {
  let value;
  try {
    value = JSON.parse(text.trim() || "{}");
  } catch (error) {
    throw new Error(W.noJson(/** @type {Error} */ (error).message));
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(W.noObject);
  return checked(value);
}

/** @param {Record<string, any>} attributes */
function checked(attributes) {
  const rounded = roundedAttribute(attributes);
  if (rounded !== undefined) throw new Error(W.hugeNumber(rounded));
  return attributes;
}

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

/** @param {{name: string, look?: string, onClick: () => void}} props `look`: its class */
export const RemoveButton = ({ name, look, onClick }) => html`<button type="button" class=${look} aria-label=${W.remove(name)} onClick=${onClick}><${Icon} of=${X} /></button>`;

/** Field for a list of texts; Enter or a comma adds one. @param {FieldProps} props */
export function ListField({ label, help, value, disabled, onChange }) {
  const [typed, setTyped] = useState("");
  const add = () => {
    const more = typed.split(",").map((one) => one.trim()).filter((one) => one && !value.includes(one));
    setTyped("");
    if (more.length) onChange([...value, ...more]);
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" && event.key !== ",") return;
    event.preventDefault();
    add();
  };
  return html`<div class="field"><label>${label}
      <input value=${typed} disabled=${disabled} placeholder=${W.typeAndEnter} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} onKeyDown=${key} onBlur=${add} /></label>
    ${value.length ? html`<p class="row">${value.map((/** @type {string} */ one) => html`<span class="chip" key=${one}>${one}
      ${disabled ? null : html`<${RemoveButton} name=${one} onClick=${() => onChange(value.filter((/** @type {string} */ other) => other !== one))} />`}</span>`)}</p>` : null}
    <span class="help">${help}</span></div>`;
}
