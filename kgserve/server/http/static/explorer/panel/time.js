// Bitemporal controls: store as of a commit, and facts valid at a time. Evaluated in the browser.

import { computed, html, signal, useSignalEffect } from "../vendor/preact.js";
import { Clock, X } from "../vendor/icons.js";
import { bringThen } from "../load.js";
import { about, announce, asOf, compared, noPast, timeline, timeOpen, validAt } from "../state.js";
import { W } from "../words.js";
import { Clocks } from "./lazy.js";
import { day, Icon } from "./parts.js";

const FRAME = 90;
const STEPS = 200;
/** Milliseconds without input before a request is sent. */
const REST = 250;

/** Sequence number of the last commit. */
export const last = computed(() => about.value?.stats.sequence ?? 0);
export const first = computed(() => timeline.value[0]?.[0] ?? 1);
export const playing = signal(0);

/** Show the store as of a commit; the last one is now. @param {number} sequence */
export function lookBack(sequence) {
  const wanted = Math.max(first.value, Math.min(last.value, sequence));
  asOf.value = wanted >= last.value ? null : wanted;
}

/** Move by a number of commits; negative: back. @param {number} by */
export function step(by) {
  if (noPast.value || !last.value) return;
  lookBack((asOf.value ?? last.value) + by);
  if (asOf.value === null) announce(W.backNow);
}

/** Toggle the comparison of the shown commit, or the first one, with the last. */
export function compareAll() {
  if (noPast.value || last.value < 2) return;
  compared.value = compared.value ? null : { before: asOf.value ?? first.value, after: last.value };
  timeOpen.value = timeOpen.value && !compared.value;
  asOf.value = null;
}

export function play() {
  if (playing.value) {
    clearInterval(playing.value);
    playing.value = 0;
    return;
  }
  const each = Math.max(1, Math.ceil((last.value - first.value) / STEPS));
  let at = asOf.value ?? first.value;
  playing.value = setInterval(() => {
    lookBack(at);
    if (at >= last.value) play();
    at += each;
  }, FRAME);
}

/** Describe the time that the canvas shows. */
function moment() {
  const known = asOf.value === null ? "" : W.commit(asOf.value);
  const at = validAt.value;
  const held = at === "now" ? "" : at === "any" ? W.trueAnyTime : W.trueOn(day(Date.parse(at)));
  return [known, held].filter(Boolean).join(" · ") || W.present;
}

export function TimeBar() {
  useSignalEffect(() => {
    const wanted = asOf.value ?? compared.value?.before;
    if (asOf.value !== null) compared.value = null;
    if (wanted === undefined) return undefined;
    const rest = setTimeout(() => void bringThen(wanted), REST);
    return () => clearTimeout(rest);
  });
  const toggle = () => {
    timeOpen.value = !timeOpen.value;
  };
  return html`<section class="time" aria-label=${W.clocks}>
    ${timeOpen.value ? html`<div class="card" id="clocks"><${Clocks} /></div>` : null}
    <button type="button" class="pill" aria-expanded=${timeOpen.value} aria-controls="clocks" title=${W.clocksText} onClick=${toggle}><${Icon} of=${timeOpen.value ? X : Clock} />${moment()}</button>
  </section>`;
}
