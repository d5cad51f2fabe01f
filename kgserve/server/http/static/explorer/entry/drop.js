// Handlers of files dropped on the page, and of data pasted outside of fields.

import { entry, mayWrite, me, say } from "../state.js";
import { pastedFile } from "./preview.js";
import { W } from "./words.js";

/** @param {File} file */
function take(file) {
  if (mayWrite.value) entry.value = { kind: "import", file };
  else if (me.value) say(me.value.role === "read" ? W.mayOnlyRead : W.notInPast, true);
}

const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");

document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  document.body.classList.add("dropping");
});
for (const over of ["dragleave", "drop"]) document.addEventListener(over, () => document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  const [file] = event.dataTransfer?.files ?? [];
  if (file) take(file);
});
document.addEventListener("paste", (event) => {
  const target = /** @type {HTMLElement} */ (event.composedPath()[0]);
  if (target.isContentEditable || target.matches?.("input, textarea, select") || document.querySelector("dialog[open]")) return;
  const [copied] = event.clipboardData?.files ?? [];
  const file = copied ?? pastedFile(event.clipboardData?.getData("text/plain") ?? "");
  if (!file) return;
  event.preventDefault();
  take(file);
});
