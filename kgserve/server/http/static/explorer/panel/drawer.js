// Drawer for Cypher below the graph. The browser stores its height.

import { html, useRef, useState } from "../vendor/preact.js";
import { X } from "../vendor/icons.js";
import { cypherOpen } from "../state.js";
import { W } from "../words.js";
import { CypherPane } from "./lazy.js";
import { Icon } from "./parts.js";

const HEIGHT = "kgserve-drawer-height";
const LEAST_PIXELS = 160;
const STEP_PIXELS = 24;

export function Drawer() {
  const drawer = useRef(/** @type {HTMLElement | null} */ (null));
  const [height, setHeight] = useState(Number(localStorage.getItem(HEIGHT)) || 0);
  /** Apply the height with each rendering; an effect would run later, perhaps after the next change. @param {HTMLElement | null} element */
  const place = (element) => {
    drawer.current = element;
    if (element && height) element.style.height = `${height}px`;
  };
  /** Set the height and store it as limited by style sheets. @param {number} wanted pixels */
  const resize = (wanted) => {
    const element = /** @type {HTMLElement} */ (drawer.current);
    element.style.height = `${Math.max(LEAST_PIXELS, wanted)}px`;
    const now = Math.round(element.getBoundingClientRect().height);
    localStorage.setItem(HEIGHT, String(now));
    setHeight(now);
  };
  const grab = (/** @type {any} */ event) => {
    const handle = event.currentTarget;
    const bottom = /** @type {HTMLElement} */ (drawer.current).getBoundingClientRect().bottom;
    handle.setPointerCapture(event.pointerId);
    handle.onpointermove = (/** @type {PointerEvent} */ move) => resize(bottom - move.clientY);
    handle.onlostpointercapture = () => {
      handle.onpointermove = null;
    };
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    const step = event.key === "ArrowUp" ? STEP_PIXELS : event.key === "ArrowDown" ? -STEP_PIXELS : 0;
    if (!step) return;
    event.preventDefault();
    resize(/** @type {HTMLElement} */ (drawer.current).getBoundingClientRect().height + step);
  };
  const close = () => {
    cypherOpen.value = false;
  };
  return html`<section class="drawer" aria-label=${W.cypher} ref=${place}>
    <div class="grip" role="separator" tabindex="0" aria-orientation="horizontal" aria-label=${W.drawerHeight} aria-valuemin=${LEAST_PIXELS} aria-valuemax=${Math.round(innerHeight / 2)} aria-valuenow=${height || LEAST_PIXELS} onPointerDown=${grab} onKeyDown=${key}></div>
    <header class="bar"><h2>${W.cypher}</h2><button type="button" class="icon-button" aria-label=${W.closeDrawer} onClick=${close}><${Icon} of=${X} /></button></header>
    <${CypherPane} />
  </section>`;
}
