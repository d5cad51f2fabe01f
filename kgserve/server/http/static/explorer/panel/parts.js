// Components and formatters shared by several panels.

import { html, useEffect, useRef } from "../vendor/preact.js";
import { X } from "../vendor/icons.js";
import { W } from "../words.js";

/** Decorative icon for a text or a labelled button. @param {{of: import("../vendor/icons.js").IconShape}} props */
export const Icon = ({ of }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">${of.map(([tag, drawn], i) => html`<${tag} key=${i} ...${drawn} />`)}</svg>`;

/** Format a number with grouped digits. @param {number | null | undefined} value */
export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

/** Format bytes in a binary unit. @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${number(Math.round((value / 1024 ** power) * 10) / 10)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** Format a time in the browser's time zone. @param {string | number | null | undefined} value */
export function time(value) {
  if (value === null || value === undefined || value === "") return "–";
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return String(value);
  return `${date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" })} ${zone(date)}`;
}

/** Format the UTC date of a time in milliseconds. @param {number} value */
export const day = (value) => new Date(value).toLocaleDateString("en-GB", { dateStyle: "medium", timeZone: "UTC" });

/** Format a time for a `datetime-local` field; empty if impossible. @param {string | number | null | undefined} value */
export function localTime(value) {
  const date = new Date(value || Number.NaN);
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  return Number.isNaN(local.getTime()) || local.getUTCFullYear() > 9999 || local.getUTCFullYear() < 1 ? "" : local.toISOString().slice(0, 19);
}

/**
 * Field for a date and time. An unchanged value keeps its microseconds.
 * @param {{label: string, value: string, help?: string, disabled?: boolean, onPick: (value: string) => void}} props `value` is RFC 3339, or empty
 */
export function TimeField({ label, value, help, disabled, onPick }) {
  const shown = localTime(value);
  const pick = (/** @type {any} */ event) => onPick(event.currentTarget.value ? new Date(event.currentTarget.value).toISOString() : "");
  return html`<label class="field">${label}
    ${value && !shown ? html`<input value=${value} disabled=${disabled} onInput=${(/** @type {any} */ event) => onPick(event.currentTarget.value)} />`
      : html`<input type="datetime-local" step="1" value=${shown} disabled=${disabled} onChange=${pick} />`}
    ${help ? html`<span class="help">${help}</span>` : null}</label>`;
}

/** @param {Date} date */
function zone(date) {
  const minutes = -date.getTimezoneOffset();
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${size % 60 ? `:${String(size % 60).padStart(2, "0")}` : ""}`;
}

/**
 * Close a dialog, and tell its owner first: the browser's own event comes after the focus has returned,
 * so that a quick second press would open a dialog that this event then closes.
 * @param {HTMLDialogElement} dialog
 */
export function closeDialog(dialog) {
  dialog.dispatchEvent(new Event("close"));
  dialog.close();
}

/** Modal dialog with the focus in its first required field; closing it, also with Escape, calls `onClose`. @param {{title: string, onClose: () => void, children?: any, wide?: boolean}} props */
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    if (!dialog.current || dialog.current.open) return;
    dialog.current.showModal();
    /** @type {HTMLElement | null} */ (dialog.current.querySelector("form :is(input, textarea):invalid") ?? dialog.current.querySelector("form :is(input, textarea, select)"))?.focus();
  }, []);
  const cancel = (/** @type {any} */ event) => {
    // A file picker in the dialog sends this event as well.
    if (event.target !== event.currentTarget) return;
    event.preventDefault();
    closeDialog(event.target);
  };
  const closed = (/** @type {any} */ event) => event.currentTarget.isConnected && onClose();
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${cancel} onClose=${closed}>
    <header><h2>${title}</h2><button type="button" class="icon-button" aria-label=${W.close} onClick=${() => dialog.current && closeDialog(dialog.current)}><${Icon} of=${X} /></button></header>
    ${children}
  </dialog>`;
}

/** Collapsible tree of a JSON value. @param {{value: any, name?: string, depth?: number}} props */
export function Tree({ value, name, depth = 0 }) {
  const label = name === undefined ? null : html`<span class="name">${name}</span>`;
  if (value === null || typeof value !== "object") return html`<div class="leaf">${label} <span class="value">${value === null ? "null" : String(value)}</span></div>`;
  const entries = Object.entries(value).slice(0, 200);
  if (!entries.length) return html`<div class="leaf">${label} <span class="value">${Array.isArray(value) ? "[]" : "{}"}</span></div>`;
  const inside = entries.map(([key, each]) => html`<${Tree} key=${key} name=${key} value=${each} depth=${depth + 1} />`);
  if (name === undefined) return html`<div class="tree">${inside}</div>`;
  return html`<details class="tree" open=${depth < 2}><summary>${label} (${entries.length})</summary>${inside}</details>`;
}

/** Format a value of any type as one line of text. @param {any} value */
export const plain = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** Command with a copy button. @param {{text: string, label: string}} props */
export function Command({ text, label }) {
  const copy = (/** @type {any} */ event) => {
    const done = event.currentTarget;
    navigator.clipboard?.writeText(text).then(() => {
      done.textContent = W.copied;
    });
  };
  return html`<figure class="command"><figcaption>${label}</figcaption><pre tabindex="0">${text}</pre>
    ${navigator.clipboard ? html`<button type="button" class="plain" onClick=${copy}>${W.copy}</button>` : null}</figure>`;
}

/** Horizontal bar for a share (0 to 1). @param {{share: number, label: string}} props */
export const Bar = ({ share, label }) => html`<svg class="bar-of" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${label}>
  <rect class="ground" width="100" height="8" /><rect class="part" width=${Math.max(0.5, 100 * share)} height="8" /></svg>`;
