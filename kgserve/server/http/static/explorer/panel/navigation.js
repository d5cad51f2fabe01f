// Views of a store: a rail of icons with words, on phones a bar at the bottom.

import { html } from "../vendor/preact.js";
import { Brain, ChartColumn, Activity, Settings, SquareTerminal, Table2, Waypoints } from "../vendor/icons.js";
import { toggleCypher } from "../keyboard.js";
import { memoryCount } from "../load.js";
import { cypherOpen, sheet, store, view } from "../state.js";
import { W } from "../words.js";
import { Icon } from "./parts.js";

/** Icons of the views, in order. */
export const VIEWS = /** @type {const} */ ({ graph: Waypoints, table: Table2, memories: Brain, live: Activity, stats: ChartColumn, settings: Settings });

/** True if a view has the drawer for Cypher below it. */
export const hasDrawer = () => view.value === "graph" || view.value === "table";

/** True if a view has the side panel: what it shows are nodes. */
export const hasSidePanel = () => view.value !== "stats" && view.value !== "settings";

/** Names of the views that this store has. */
export const offeredViews = () => Object.keys(VIEWS).filter((name) => name !== "memories" || view.value === "memories" || (memoryCount.value.store === store.value && memoryCount.value.count));

/** @param {string} name */
export function openView(name) {
  view.value = name;
  sheet.value = "middle";
}

export function Navigation() {
  return html`<nav class="rail" aria-label=${W.views}>
    ${offeredViews().map((name) => html`<button key=${name} type="button" aria-current=${view.value === name ? "page" : undefined} onClick=${() => openView(name)}><${Icon} of=${VIEWS[name]} />${W.viewNames[name]}</button>`)}
    <span class="grow"></span>
    <button type="button" class="cypher-toggle" aria-expanded=${cypherOpen.value && hasDrawer()} onClick=${toggleCypher}><${Icon} of=${SquareTerminal} />${W.cypher}</button>
  </nav>`;
}
