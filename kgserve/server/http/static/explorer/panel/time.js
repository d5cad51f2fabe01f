// Two clocks: what the store knew as of a commit, and what was true at a time. Evaluated in the browser.

import { computed, html, signal, useSignalEffect } from "../vendor/preact.js";
import { validRange } from "../graph/time.js";
import { bringThen } from "../load.js";
import { about, asOf, compared, graph, noPast, revision, say, timeline, validAt } from "../state.js";
import { W } from "../words.js";
import { timeOf } from "./bar.js";
import { Compared } from "./lazy.js";
import { day, time } from "./parts.js";

const FRAME = 90;
const STEPS = 200;
const HEIGHT = 24;
/** Milliseconds without input before a request is sent. */
const REST = 250;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

/** The last commit. */
export const last = computed(() => about.value?.stats.sequence ?? 0);
export const first = computed(() => timeline.value[0]?.[0] ?? 1);
const playing = signal(0);

/** Look at a commit; the last one is now. @param {number} sequence */
export function lookBack(sequence) {
  const wanted = Math.max(first.value, Math.min(last.value, sequence));
  asOf.value = wanted >= last.value ? null : wanted;
}

/** One commit back or on. @param {number} by */
export function step(by) {
  if (noPast.value || !last.value) return;
  lookBack((asOf.value ?? last.value) + by);
  if (asOf.value === null) say(W.backNow);
}

function play() {
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

/** Bars of commits by sequence, aligned with the slider. */
function Bars() {
  const most = Math.max(1, ...timeline.value.map((bucket) => bucket[4]));
  const [begin, end] = [first.value, Math.max(last.value, first.value + 1)];
  const at = (/** @type {number} */ sequence) => (1000 * (sequence - begin)) / (end - begin);
  return html`<svg class="bars" viewBox=${`0 0 1000 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    ${timeline.value.map(([from, to, , , commits]) => {
      const height = Math.max(1, (HEIGHT * Math.log1p(commits)) / Math.log1p(most));
      return html`<rect key=${from} x=${at(from)} width=${Math.max(2, at(to) - at(from) + 1)} y=${HEIGHT - height} height=${height} />`;
    })}</svg>`;
}

function AsOf() {
  if (noPast.value) return html`<p class="soft clock">${noPast.value}</p>`;
  if (last.value < 2) return html`<p class="soft clock">${W.onlyOneCommit}</p>`;
  const now = asOf.value ?? last.value;
  const pick = (/** @type {any} */ event) => lookBack(event.currentTarget.valueAsNumber);
  const words = asOf.value === null ? W.now : `${W.commit(now)} ${timeOf(now)}`;
  return html`<div class="clock">
    <label for="as-of">${W.asOf}</label>
    <span class="track"><${Bars} /><input id="as-of" type="range" min=${first.value} max=${last.value} step="1" value=${now} onInput=${pick} aria-valuetext=${words} /></span>
    <output for="as-of">${words}</output>
    ${STILL.matches ? null : html`<button type="button" class="plain" aria-pressed=${Boolean(playing.value)} aria-label=${W.play} onClick=${play}>${playing.value ? "❚❚" : "▶"}</button>`}
    <button type="button" class="plain" aria-pressed=${Boolean(compared.value)} onClick=${() => {
      compared.value = compared.value ? null : { before: asOf.value ?? first.value, after: last.value };
      asOf.value = null;
    }}>⇄ ${W.compare}</button>
  </div>`;
}

/** Minimum and maximum valid time on the canvas. */
const range = computed(() => {
  revision.value;
  return validRange([...graph.nodes.values(), ...graph.edges.values()]);
});

function TrueAt() {
  const between = range.value;
  const fixed = validAt.value !== "now" && validAt.value !== "any";
  const choose = (/** @type {any} */ event) => {
    const chosen = event.currentTarget.value;
    validAt.value = chosen === "at" ? new Date(between?.[0] ?? Date.now()).toISOString() : chosen;
  };
  const wide = between ? Math.max(1, Math.round((between[1] - between[0]) / 1000)) : 1;
  const slide = (/** @type {any} */ event) => {
    validAt.value = new Date(event.currentTarget.valueAsNumber).toISOString();
  };
  return html`<div class="clock">
    <label for="true-at">${W.trueAt}</label>
    <select id="true-at" value=${fixed ? "at" : validAt.value} onChange=${choose}>
      <option value="now">${W.now}</option><option value="any">${W.anyTime}</option>${between || fixed ? html`<option value="at">${W.aTime}</option>` : null}
    </select>
    ${fixed && between
      ? html`<span class="track"><input type="range" aria-label=${W.trueAt} min=${between[0] - wide} max=${between[0] + wide * Math.ceil((between[1] - between[0]) / wide + 1)} step=${wide}
          value=${Date.parse(validAt.value)} onInput=${slide} aria-valuetext=${time(validAt.value)} /></span><output>${time(validAt.value)}</output>`
      : between ? html`<span class="soft">${W.validBetween(day(between[0]), day(between[1]))}</span>` : html`<span class="soft">${W.nothingDated}</span>`}
  </div>`;
}

export function TimeBar() {
  useSignalEffect(() => {
    const wanted = asOf.value ?? compared.value?.before;
    if (asOf.value !== null) compared.value = null;
    if (wanted === undefined) return undefined;
    const rest = setTimeout(() => void bringThen(wanted), REST);
    return () => clearTimeout(rest);
  });
  return html`<section class="time" aria-label=${W.clocks}>
    ${asOf.value === null ? null : html`<p class="band" role="status">${W.asOfBand(asOf.value, timeOf(asOf.value))}
      <button type="button" onClick=${() => { asOf.value = null; }}>${W.backToNow}</button></p>`}
    <${AsOf} /><${TrueAt} />${compared.value ? html`<${Compared} />` : null}
  </section>`;
}

