// End of a form, and a question before input is lost.

import { html } from "../vendor/preact.js";
import { W } from "../entry/words.js";
import { closeDialog } from "./parts.js";

/** Functions that tell whether a part of the page has unsaved changes. @type {Set<() => boolean>} */
export const unsaved = new Set();
const typed = () => document.querySelector("[data-typed]")?.closest("dialog");

/** Ask before an event closes a dialog with input. @param {any} event */
function keepInput(event) {
  const { type, key, target } = event;
  const dialog = typed();
  if (!dialog || !(key ? key === "Escape" : type === "cancel" ? target === dialog : target.closest("header > button"))) return;
  event.preventDefault();
  event.stopPropagation();
  if (confirm(W.discardTyped)) closeDialog(dialog);
}

for (const type of ["keydown", "cancel", "click"]) document.addEventListener(type, keepInput, true);
document.addEventListener("input", (/** @type {any} */ event) => event.target.closest("dialog :is(.entry, .edit)")?.setAttribute("data-typed", ""));
addEventListener("beforeunload", (event) => {
  if (typed() || [...unsaved].some((has) => has())) event.preventDefault();
});

/** @param {Element | null} element */
export const scrollToView = (element) => element?.scrollIntoView({ block: "nearest" });

/** Error, submit button and Cancel. @param {{does: string, wrong?: string, disabled?: boolean, bad?: boolean, onCancel?: () => void}} props `onCancel`: default: close the dialog */
export const FormEnd = ({ does, wrong, disabled, bad, onCancel }) => html`<div class="row end">
  ${wrong ? html`<p class="note" role="alert" ref=${scrollToView}>${wrong}</p>` : null}
  <button class=${bad ? "bad" : ""} disabled=${disabled}>${does}</button>
  <button type="button" onClick=${onCancel ?? ((/** @type {any} */ event) => closeDialog(event.currentTarget.closest("dialog")))}>${W.cancel}</button></div>`;
