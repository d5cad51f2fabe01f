// Tour of the page: four cards, each next to the part that it explains. Every card can be skipped.

import { html, useEffect, useRef } from "../vendor/preact.js";
import { endTour } from "../keyboard.js";
import { about, mayWrite, sheet, tourStep, view } from "../state.js";
import { W } from "./words.js";

/** Selectors of the parts, by step. */
const PARTS = [".canvas", ".time", ".search", ".rail .add"];
const GAP = 12;

/** Return left and top of a card in pixels, next to its part. @param {DOMRect} part @param {DOMRect} card @returns {[number, number]} */
function placeBeside(part, card) {
  const within = (/** @type {number} */ at, /** @type {number} */ size, /** @type {number} */ all) => Math.max(GAP, Math.min(at, all - size - GAP));
  if (part.height > innerHeight / 2) return [within(part.left + (part.width - card.width) / 2, card.width, innerWidth), within(part.bottom - card.height - 5 * GAP, card.height, innerHeight)];
  const below = part.bottom + GAP + card.height <= innerHeight;
  const beside = part.width < card.width / 2 && part.right + GAP + card.width <= innerWidth;
  if (beside) return [part.right + GAP, within(part.top, card.height, innerHeight)];
  return [within(part.left, card.width, innerWidth), within(below ? part.bottom + GAP : part.top - GAP - card.height, card.height, innerHeight)];
}

export function Tour() {
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const step = tourStep.value;
  const ready = Boolean(about.value);
  const open = useRef(false);
  useEffect(() => {
    if (open.current && !(ready && view.value === "graph")) tourStep.value = 0;
    open.current ||= ready;
  }, [ready, view.value]);
  useEffect(() => {
    if (!ready) return undefined;
    view.value = "graph";
    sheet.value = "middle";
    const part = document.querySelector(PARTS[step - 1]) ?? document.querySelector(".rail");
    const place = () => {
      if (!part || !card.current) return;
      const [left, top] = placeBeside(part.getBoundingClientRect(), card.current.getBoundingClientRect());
      card.current.style.left = `${left}px`;
      card.current.style.top = `${top}px`;
    };
    const soon = requestAnimationFrame(place);
    part?.classList.add("toured");
    card.current?.focus();
    addEventListener("resize", place);
    return () => {
      cancelAnimationFrame(soon);
      removeEventListener("resize", place);
      part?.classList.remove("toured");
    };
  }, [step, ready]);
  if (!ready) return null;
  const [title, text] = W.tourSteps[step - 1];
  const last = step === PARTS.length;
  return html`<section class="tour" role="dialog" aria-label=${W.tour} aria-describedby="tour-text" tabindex="-1" ref=${card}>
    <p class="soft">${W.tourStep(step, PARTS.length)}</p><h2>${title}</h2><p id="tour-text">${last && !mayWrite.value ? W.tourReadOnly : text}</p>
    <p class="row">${step > 1 ? html`<button type="button" onClick=${() => { tourStep.value = step - 1; }}>${W.back}</button>` : null}
      <button type="button" class="primary" onClick=${last ? endTour : () => { tourStep.value = step + 1; }}>${last ? W.endTour : W.next}</button>
      ${last ? null : html`<button type="button" class="plain" onClick=${endTour}>${W.skipTour}</button>`}</p></section>`;
}
