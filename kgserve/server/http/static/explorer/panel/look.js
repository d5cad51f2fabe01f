// Picker for the colour and shape of a type.

import { html } from "../vendor/preact.js";
import { keptLooks } from "../link.js";
import { LIGHT, SHAPES } from "../graph/colours.js";
import { changed, looks, revision, store } from "../state.js";
import { W } from "../words.js";
import { dressed, Mark } from "./legend.js";

/** Set the look of a type and store it in this browser. @param {string} type @param {Partial<import("../graph/colours.js").Look> | null} look null: the default */
function chooseLook(type, look) {
  looks.choose(type, look);
  const text = looks.format();
  try {
    if (text) localStorage.setItem(keptLooks(store.value), text);
    else localStorage.removeItem(keptLooks(store.value));
  } catch {
    // Storage is full or blocked; the link still holds the look.
  }
  changed();
}

/** Picker for the colour and shape of the type chosen in the legend. */
export function LookChoice() {
  revision.value;
  const type = dressed.value ?? "";
  const now = looks.of(type);
  return html`<div class="looks" role="group" aria-label=${W.recolour(type || W.untyped)}>
    <span role="group" aria-label=${W.colour}>${LIGHT.map((_, colour) => html`<button key=${colour} type="button" class="plain small" aria-pressed=${now.colour === colour} aria-label=${W.colours[colour]} onClick=${() => chooseLook(type, { colour })}><${Mark} colour=${colour} shape=${now.shape} /></button>`)}</span>
    <span role="group" aria-label=${W.shape}>${SHAPES.map((shape) => html`<button key=${shape} type="button" class="plain small" aria-pressed=${now.shape === shape} aria-label=${W.shapes[shape]} onClick=${() => chooseLook(type, { shape })}><${Mark} colour=${now.colour} shape=${shape} /></button>`)}</span>
    ${looks.chosen.has(type) ? html`<button type="button" class="plain small" onClick=${() => chooseLook(type, null)}>${W.usual}</button>` : null}</div>`;
}
