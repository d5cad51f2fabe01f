// Panels that are loaded when first shown.

import { html, signal } from "../vendor/preact.js";
import { W } from "../words.js";

/** @param {() => Promise<any>} load imports the component */
function lazy(load) {
  const part = signal(/** @type {any} */ (null));
  const come = () => load().then((found) => {
    part.value = found;
  });
  const Part = () => {
    if (part.value) return html`<${part.value} />`;
    void come();
    return html`<p role="status">${W.loading}</p>`;
  };
  return Object.assign(Part, { come });
}

export const CanvasTools = lazy(() => import("./tools.js").then((m) => m.CanvasTools));
export const Clocks = lazy(() => import("./clocks.js").then((m) => m.ClockHandles));
export const Compared = lazy(() => import("./compare.js").then((m) => m.Compared));
export const CypherPane = lazy(() => import("./cypher.js").then((m) => m.CypherPane));
export const Drawer = lazy(() => import("./drawer.js").then((m) => m.Drawer));
export const Entry = lazy(() => import("../entry/dialogs.js").then((m) => m.Entry));
export const Help = lazy(() => import("./help.js").then((m) => m.Help));
export const KeyDialog = lazy(() => import("./key.js").then((m) => m.KeyDialog));
export const KeyForm = lazy(() => import("./key.js").then((m) => m.KeyForm));
export const Live = lazy(() => import("./live.js").then((m) => m.Live));
export const LookChoice = lazy(() => import("./look.js").then((m) => m.LookChoice));
export const Memories = lazy(() => import("./memories.js").then((m) => m.Memories));
export const NodePanel = lazy(() => import("./node.js").then((m) => m.NodePanel));
export const PastBand = lazy(() => import("./past.js").then((m) => m.PastBand));
export const Settings = lazy(() => import("./settings.js").then((m) => m.Settings));
export const Stats = lazy(() => import("./stats.js").then((m) => m.Stats));
export const Stores = lazy(() => import("./stores.js").then((m) => m.Stores));
export const Table = lazy(() => import("./table.js").then((m) => m.Table));
export const Tour = lazy(() => import("../entry/tour.js").then((m) => m.Tour));
