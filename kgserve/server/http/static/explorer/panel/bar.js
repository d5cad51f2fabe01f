// Top bar: store, search, clocks and caller.

import { html } from "../vendor/preact.js";
import { live } from "../events.js";
import { asOf, helpOpen, keyOpen, lost, me, store, stores, timeline, validAt } from "../state.js";
import { W } from "../words.js";
import { time } from "./parts.js";
import { SearchBox } from "./search.js";

/** The time of a commit, as far as the timeline tells. @param {number} sequence */
export function timeOf(sequence) {
  const bucket = timeline.value.find(([from, to]) => from <= sequence && sequence <= to);
  if (!bucket) return "";
  const [from, to, begun, ended] = bucket;
  const share = to > from ? (sequence - from) / (to - from) : 0;
  return time(Date.parse(begun) + share * (Date.parse(ended) - Date.parse(begun)));
}

export function TopBar() {
  const choose = (/** @type {any} */ event) => {
    location.hash = `#/${encodeURIComponent(event.currentTarget.value)}`;
  };
  const who = me.value;
  return html`<header class="top">
    <a class="brand" href="#/">kgserve</a>
    ${store.value && !lost.value
      ? html`<label class="quiet"><span class="hidden">${W.store}</span>
          <select value=${store.value} onChange=${choose} aria-label=${W.store}>
            ${(stores.value ?? [{ name: store.value }]).map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
          </select></label>
          <${SearchBox} />
          <span class="moment">${W.asOfIs(asOf.value === null ? W.now : `${asOf.value}`)}</span>
          <span class="moment">${W.trueIs(validAt.value === "now" ? W.now : validAt.value === "any" ? W.anyTime : time(validAt.value))}</span>
          <span class="moment live" data-on=${live.value.on}>${live.value.on ? W.liveOn : W.liveOff}</span>`
      : html`<span class="grow"></span>`}
    <button type="button" class="plain" onClick=${() => { keyOpen.value = true; }}>${who ? W.keyIs(who) : W.key}</button>
    <button type="button" class="plain" aria-label=${W.help} onClick=${() => { helpOpen.value = true; }}>?</button>
  </header>`;
}
