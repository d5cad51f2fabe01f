// Components that several panels share.

import { html, useEffect, useRef } from "../vendor/preact.js";
import { W } from "../words.js";

/** A number, its digits grouped. @param {number | null | undefined} value */
export const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));

/** Bytes for people. @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${number(Math.round((value / 1024 ** power) * 10) / 10)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** A time with its zone, that of whoever looks. @param {string | number | null | undefined} value */
export function time(value) {
  if (value === null || value === undefined || value === "") return "–";
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return String(value);
  return `${date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" })} ${zone(date)}`;
}

/** The day of a time. @param {number} value */
export const day = (value) => new Date(value).toLocaleDateString("en-GB", { dateStyle: "medium", timeZone: "UTC" });

/** @param {Date} date */
function zone(date) {
  const minutes = -date.getTimezoneOffset();
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${size % 60 ? `:${String(size % 60).padStart(2, "0")}` : ""}`;
}

/** A modal window; closing it, by Escape too, calls `onClose`. @param {{title: string, onClose: () => void, children?: any, wide?: boolean}} props */
export function Dialog({ title, onClose, children, wide }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose}>
    <header><h2>${title}</h2><button type="button" class="plain" onClick=${() => dialog.current?.close()}>${W.close}</button></header>
    ${children}
  </dialog>`;
}

/** JSON as a tree that opens and closes. @param {{value: any, name?: string, depth?: number}} props */
export function Tree({ value, name, depth = 0 }) {
  const label = name === undefined ? null : html`<span class="name">${name}</span>`;
  if (value === null || typeof value !== "object") return html`<div class="leaf">${label} <span class="value">${value === null ? "null" : String(value)}</span></div>`;
  const entries = Object.entries(value).slice(0, 200);
  if (!entries.length) return html`<div class="leaf">${label} <span class="value">${Array.isArray(value) ? "[]" : "{}"}</span></div>`;
  const inside = entries.map(([key, each]) => html`<${Tree} key=${key} name=${key} value=${each} depth=${depth + 1} />`);
  if (name === undefined) return html`<div class="tree">${inside}</div>`;
  return html`<details class="tree" open=${depth < 2}><summary>${label} (${entries.length})</summary>${inside}</details>`;
}

/** A value of any kind as one line of text. @param {any} value */
export const plain = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** A command to copy. @param {{text: string, label: string}} props */
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

/** A horizontal bar for a share. @param {{share: number, label: string}} props */
export const Bar = ({ share, label }) => html`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${label}>
  <rect class="ground" width="100" height="8" /><rect class="part" width=${Math.max(0.5, 100 * share)} height="8" /></svg>`;
