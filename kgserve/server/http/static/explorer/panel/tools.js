// Canvas overlay: zoom, saving and sharing, selection, paths, and hidden nodes.

import { html, useRef } from "../vendor/preact.js";
import { arrangement, format, replaceAddress } from "../address.js";
import { findPath, hide, pin, unhide } from "../keyboard.js";
import { parse } from "../link.js";
import { expand, more } from "../load.js";
import { sceneOf } from "../scene.js";
import { save } from "../server.js";
import { about, attempt, connecting, graph, mayWrite, revision, say, selected, store, truncated, visible, way } from "../state.js";
import { W } from "../words.js";
import { canvas } from "./canvas.js";
import { drafted } from "./pointer.js";

const ZOOM = 1.25;
/** SVG paths of the icons, in a view box of 24 by 24. */
const ICONS = {
  in: "M12 5v14M5 12h14", out: "M5 12h14", fit: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5", relayout: "M20 12a8 8 0 1 1-2.6-5.9M20 3v5h-5", share: "M12 15V4M8 7.5L12 4l4 3.5M5 13v6h14v-6",
};

/** @param {{name: keyof typeof ICONS}} props */
const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;

/** Maximum number of nodes with positions in a link. */
const MOST_PLACES = 1000;

/** Return the arrangement with the camera and, for up to MOST_PLACES nodes, all positions. @param {import("../graph/renderer.js").View} view @returns {Partial<import("../link.js").Link>} */
function wholeArrangement(view) {
  const own = [...graph.nodes.values()].filter((node) => !node.store);
  const places = own.length <= MOST_PLACES ? { ids: own.map(({ id }) => id), places: own.map(({ x, y }) => /** @type {[number, number]} */ ([x, y])) } : {};
  return { ...arrangement(), ...places, camera: [view.x, view.y, view.scale] };
}

/** Save the graph as a picture. @param {"png" | "svg"} form */
export const savePicture = (form) =>
  attempt(async () => {
    const { pictureOf, svgOf } = await import("../graph/export.js");
    const scene = sceneOf(new Map());
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const blob = form === "png" ? await pictureOf(scene, dark) : new Blob([await svgOf(scene, dark)], { type: "image/svg+xml" });
    save(blob, `${store.value}.${form}`);
  });

/** Return a link to the exact picture: nodes, positions, colours and view. */
const pictureLink = () => new URL(format({ ...parse(location.hash), ...wholeArrangement(/** @type {any} */ (canvas.shown).view) }), location.href).href;

function Share() {
  const menu = useRef(/** @type {HTMLDetailsElement | null} */ (null));
  const close = () => {
    if (menu.current) menu.current.open = false;
  };
  const copy = async () => {
    close();
    const link = pictureLink();
    replaceAddress(link);
    await navigator.clipboard?.writeText(link).catch(() => undefined);
    say(W.linkCopied);
  };
  const pick = (/** @type {"png" | "svg"} */ form) => () => {
    close();
    void savePicture(form);
  };
  return html`<details class="share-menu" ref=${menu} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && close()}>
    <summary role="button" aria-label=${W.share} title=${W.share}><${Icon} name="share" /></summary>
    <div><button type="button" class="plain" onClick=${copy}>${W.copyLink}</button>
      <button type="button" class="plain" onClick=${pick("png")}>${W.savePng}</button>
      <button type="button" class="plain" onClick=${pick("svg")}>${W.saveSvg}</button></div></details>`;
}

/** Toolbar with actions for several selected nodes. */
function Selection() {
  revision.value;
  const keys = [...selected.value].filter((key) => graph.nodes.has(key));
  if (keys.length < 2) return null;
  const pinned = keys.every((key) => graph.nodes.get(key)?.pinned);
  return html`<p class="chosen" role="toolbar" aria-label=${W.selection}><span>${W.selectedNodes(keys.length)}</span>
    ${keys.length === 2 ? html`<button type="button" class="plain small" onClick=${findPath}>${W.path}</button>` : null}
    <button type="button" class="plain small" onClick=${() => pin(keys)}>${pinned ? W.unpin : W.pin}</button>
    <button type="button" class="plain small" onClick=${() => hide(keys)}>${W.hide}</button>
    ${keys.length <= 10 ? html`<button type="button" class="plain small" onClick=${async () => { for (const key of keys) if (!graph.broughtOnlyBy(key).length) await expand(key); }}>${W.expand}</button>` : null}</p>`;
}

/** Edge being drawn, and instructions. */
function DraftEdge() {
  const edge = drafted.value;
  return html`${edge ? html`<svg class="draft-edge" aria-hidden="true"><line x1=${edge.start[0]} y1=${edge.start[1]} x2=${edge.x} y2=${edge.y} /><circle class=${edge.to ? "over" : ""} cx=${edge.x} cy=${edge.y} r=${edge.to ? 14 : 5} /></svg>` : null}
    ${connecting.value && mayWrite.value ? html`<p class="chosen connecting" role="status"><span>${W.connectHint}</span><button type="button" class="plain small" onClick=${() => { connecting.value = false; }}>${W.stopConnecting}</button></p>` : null}`;
}

export function CanvasTools() {
  revision.value;
  visible.value;
  const hidden = [...graph.nodes.values()].filter((node) => node.hidden).length;
  const button = (/** @type {keyof typeof ICONS} */ icon, /** @type {string} */ label, /** @type {() => void} */ onClick) => html`<button type="button" onClick=${onClick} aria-label=${label} title=${label}><${Icon} name=${icon} /></button>`;
  return html`<div class="tools" role="toolbar" aria-label=${W.tools}>
      ${button("in", W.zoomIn, () => canvas.zoom(ZOOM))}
      ${button("out", W.zoomOut, () => canvas.zoom(1 / ZOOM))}
      ${button("fit", W.fit, () => canvas.fit())}
      ${button("relayout", W.relayout, () => canvas.relayout())}
      <${Share} />
    </div>
    <${DraftEdge} />
    <div class="over-canvas">
      ${truncated.value ? html`<p class="chosen"><span>${W.partOf(graph.nodes.size, about.value?.stats.nodes ?? 0)}</span><button type="button" class="plain small" onClick=${more}>${W.showMore}</button></p>` : null}
      ${hidden ? html`<button type="button" class="plain" onClick=${unhide}>${W.unhide(hidden)}</button>` : null}
      <${Selection} />
      ${way.value.length ? html`<p class="chosen"><span>${W.pathOf(way.value.length - 1)}</span> <button type="button" class="plain small" onClick=${() => { way.value = []; }}>${W.close}</button></p>` : null}
    </div>`;
}
