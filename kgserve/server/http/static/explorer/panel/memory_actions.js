// Buttons to edit, merge and forget a memory or an entity, with their dialogs.

import { html, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { attempt, mayWrite } from "../state.js";
import { W } from "../view_words.js";
import { Forget } from "./forget.js";
import { MemoryEdit } from "./memory_edit.js";
import { Merge } from "./memory_merge.js";
import { isMemory, readAgain, restoreForgotten } from "./memory_state.js";

const DIALOGS = { edit: MemoryEdit, merge: Merge, forget: Forget };

/** Buttons of a row; none if read-only, and only Restore if forgotten. @param {{row: any, small?: boolean}} props `small`: in a table row */
export function MemoryActions({ row, small = false }) {
  const [open, setOpen] = useState(/** @type {{name: string, row: any} | null} */ (null));
  if (!mayWrite.value || (row.ended && row.ended !== "forgotten")) return null;
  const start = (/** @type {string} */ name) => () => attempt(async () => setOpen({ name, row: await readAgain(row) }));
  const button = (/** @type {string} */ name, look = "plain", run = start(name)) => html`<button type="button" class=${`${look}${small ? " small" : ""}`} aria-label=${small ? W.doWith(W[name], labelOf(row)) : undefined} onClick=${run}>${W[name]}</button>`;
  if (row.ended) return button("restore", small ? "plain" : "", () => attempt(() => restoreForgotten(row)));
  const Shown = open ? DIALOGS[open.name] : null;
  return html`<span class="row acts">${isMemory(row) ? button("edit", small ? "plain" : "") : null} ${button("merge")} ${button("forget", "plain bad")}
    ${Shown && open ? html`<${Shown} row=${open.row} onClose=${() => setOpen(null)} />` : null}</span>`;
}
