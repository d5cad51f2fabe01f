// Navigation between the views of a store: side rail, or bottom bar on phones.

import { html } from "../vendor/preact.js";
import { Brain, ChartColumn, Activity, Plus, Settings, SquareTerminal, Table2, Waypoints } from "../vendor/icons.js";
import { toggleCypher } from "../keyboard.js";
import { memoryCount } from "../load.js";
import { cypherOpen, mayWrite, sheet, store, view } from "../state.js";
import { W } from "../words.js";
import { Icon } from "./parts.js";

/** Icons by view, in display order. */
export const VIEWS = /** @type {const} */ ({ graph: Waypoints, table: Table2, memories: Brain, live: Activity, stats: ChartColumn, settings: Settings });

/** Return true if the view has a Cypher drawer. */
export const hasDrawer = () => view.value === "graph" || view.value === "table";

/** Return true if the view shows nodes and so has the side panel. */
export const hasSidePanel = () => view.value !== "stats" && view.value !== "settings";

/** Return the names of the views available for this store. */
export const offeredViews = () => Object.keys(VIEWS).filter((name) => name !== "memories" || view.value === "memories" || (memoryCount.value.store === store.value && memoryCount.value.count));

/** @param {string} name */
export function openView(name) {
  view.value = name;
  sheet.value = "middle";
}

/** Actions that add data. */
export const ADDITIONS = /** @type {const} */ (["node", "edge", "connect", "import"]);

/** Start an action that adds data. @param {string} what one of ADDITIONS */
export async function add(what) {
  if (what === "connect" && view.value !== "graph") openView("graph");
  (await import("../entry/dialogs.js")).beginEntry(what);
}

const closeMenu = () => document.getElementById("additions")?.hidePopover();

/** Menu of actions that add data; only with write permission. */
const AddMenu = () => html`<button type="button" class="add" popovertarget="additions"><${Icon} of=${Plus} />${W.add}</button>
  <div id="additions" class="menu" popover role="group" aria-label=${W.add}>${ADDITIONS.map((what) => html`<button key=${what} type="button" class="plain" onClick=${() => { closeMenu(); void add(what); }}>${W.addNames[what]}</button>`)}</div>`;

export function Navigation() {
  return html`<nav class="rail" aria-label=${W.views}>
    ${mayWrite.value ? html`<${AddMenu} />` : null}
    ${offeredViews().map((name) => html`<button key=${name} type="button" aria-current=${view.value === name ? "page" : undefined} onClick=${() => openView(name)}><${Icon} of=${VIEWS[name]} />${W.viewNames[name]}</button>`)}
    <span class="grow"></span>
    <button type="button" class="cypher-toggle" aria-expanded=${cypherOpen.value && hasDrawer()} onClick=${toggleCypher}><${Icon} of=${SquareTerminal} />${W.cypher}</button>
  </nav>`;
}
