// Fields for settings that are lists, tables, JSON objects, or a choice with a number.

import { html, useState } from "../vendor/preact.js";
import { Plus, X } from "../vendor/icons.js";
import { parseAttributes } from "../entry/attributes.js";
import { W } from "../view_words.js";
import { Icon } from "./parts.js";

/** @typedef {{label: string, help: string, value: any, disabled: boolean, onChange: (value: any) => void}} FieldProps */

const HISTORY_DAYS = 90;

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
      ${disabled ? null : html`<button type="button" aria-label=${W.remove(one)} onClick=${() => onChange(value.filter((/** @type {string} */ other) => other !== one))}><${Icon} of=${X} /></button>`}</span>`)}</p>` : null}
    <span class="help">${help}</span></div>`;
}

/** Field for a JSON object. The value is text once it is changed; while that is invalid, the form cannot be sent. @param {FieldProps} props */
export function JsonField({ label, help, value, disabled, onChange }) {
  const text = typeof value === "string" ? value : Object.keys(value).length ? JSON.stringify(value, null, 2) : "";
  let wrong = "";
  try {
    parseAttributes(text);
  } catch (error) {
    wrong = /** @type {Error} */ (error).message;
  }
  return html`<label class="field">${label}<textarea rows="3" value=${text} disabled=${disabled} ref=${(/** @type {HTMLTextAreaElement | null} */ field) => field?.setCustomValidity(wrong)} onInput=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}></textarea>
    <span class="help">${help}</span>${wrong ? html`<span class="note" role="alert">${wrong}</span>` : null}</label>`;
}

/** Field for history retention: all, none, or a number of days. @param {FieldProps} props */
export function HistoryField({ label, help, value, disabled, onChange }) {
  const days = typeof value === "number";
  const choose = (/** @type {any} */ event) => onChange(event.currentTarget.value === "days" ? HISTORY_DAYS : event.currentTarget.value);
  return html`<div class="field"><div class="pair-of-fields"><label>${label}<select value=${days ? "days" : value} disabled=${disabled} onChange=${choose}>
      ${Object.entries(W.historyChoices).map(([one, words]) => html`<option key=${one} value=${one}>${words}</option>`)}</select></label>
    ${days ? html`<label>${W.days}<input type="number" min="0" step="1" required value=${value} disabled=${disabled} onInput=${(/** @type {any} */ event) => onChange(event.currentTarget.valueAsNumber)} /></label>` : null}</div>
    <span class="help">${help}</span></div>`;
}

/** Field for half-lives in days by memory type; empty: never fades. @param {FieldProps} props */
export function DaysByTypeField({ label, help, value, disabled, onChange }) {
  const [typed, setTyped] = useState("");
  const add = () => {
    if (typed.trim()) onChange({ ...value, [typed.trim()]: null });
    setTyped("");
  };
  const days = (/** @type {string} */ type) => (/** @type {any} */ event) => onChange({ ...value, [type]: event.currentTarget.value === "" ? null : event.currentTarget.valueAsNumber });
  const without = (/** @type {string} */ type) => Object.fromEntries(Object.entries(value).filter(([other]) => other !== type));
  return html`<div class="field" role="group" aria-label=${label}><span class="label">${label}</span>
    ${Object.keys(value).map((type) => html`<p class="row" key=${type}><span class="chip">${type}</span>
      <input type="number" step="any" min="0" aria-label=${W.daysOf(type)} placeholder=${W.never} value=${value[type] ?? ""} disabled=${disabled} onInput=${days(type)} /> ${W.days}
      ${disabled ? null : html`<button type="button" class="icon-button" aria-label=${W.remove(type)} onClick=${() => onChange(without(type))}><${Icon} of=${X} /></button>`}</p>`)}
    ${disabled ? null : html`<p class="row"><input aria-label=${W.typeOfMemory} placeholder=${W.typeOfMemory} value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} />
      <button type="button" disabled=${!typed.trim()} onClick=${add}><${Icon} of=${Plus} />${W.addType}</button></p>`}
    <span class="help">${help}</span></div>`;
}
