// Time sliders, with a histogram of commits. Loaded when the control is opened.

import { computed, html } from "../vendor/preact.js";
import { GitCompareArrows, Pause, Play, StepBack, StepForward } from "../vendor/icons.js";
import { validRange } from "../graph/time.js";
import { asOf, compared, graph, noPast, revision, timeline, validAt } from "../state.js";
import { W } from "../words.js";
import { useCommitTime } from "./past.js";
import { day, Icon, time, TimeField } from "./parts.js";
import { compareAll, first, last, lookBack, play, playing, step } from "./time.js";

const HEIGHT = 32;
/** Half the width of a bar, in commits. */
const BAR = 0.35;
const DAY_MS = 86_400_000;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

/** Histogram of commits by sequence, aligned with the slider. */
function Bars() {
  const most = Math.max(1, ...timeline.value.map((bucket) => bucket[4]));
  const [begin, end] = [first.value, Math.max(last.value, first.value + 1)];
  const at = (/** @type {number} */ sequence) => (1000 * (sequence - begin)) / (end - begin);
  return html`<svg class="bars" viewBox=${`0 0 1000 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    ${timeline.value.map(([from, to, , , commits]) => {
      const height = Math.max(1, (HEIGHT * Math.log1p(commits)) / Math.log1p(most));
      return html`<rect key=${from} x=${at(from - BAR)} width=${Math.max(2, at(to + BAR) - at(from - BAR))} y=${HEIGHT - height} height=${height} />`;
    })}</svg>`;
}

/** Slider for the commit to show. */
function Known() {
  const now = asOf.value ?? last.value;
  const [when, begin] = [useCommitTime(now), useCommitTime(first.value)];
  const pick = (/** @type {any} */ event) => lookBack(event.currentTarget.valueAsNumber);
  const words = asOf.value === null ? W.now : `${W.commit(now)}, ${when}`;
  return html`<div class="clock">
    <header><label for="as-of">${W.asOf}</label> <output for="as-of">${words}</output>
      <span class="row">
      <button type="button" class="icon-button" aria-label=${W.stepBack} title=${W.stepBack} onClick=${() => step(-1)}><${Icon} of=${StepBack} /></button>
      ${STILL.matches ? null : html`<button type="button" class="icon-button" aria-pressed=${Boolean(playing.value)} aria-label=${W.play} title=${W.play} onClick=${play}><${Icon} of=${playing.value ? Pause : Play} /></button>`}
      <button type="button" class="icon-button" aria-label=${W.stepOn} title=${W.stepOn} onClick=${() => step(1)}><${Icon} of=${StepForward} /></button>
      <button type="button" aria-pressed=${Boolean(compared.value)} onClick=${compareAll}><${Icon} of=${GitCompareArrows} />${W.compare}</button></span></header>
    <span class="track"><${Bars} /><input id="as-of" type="range" min=${first.value} max=${last.value} step="1" value=${now} onInput=${pick} aria-valuetext=${words} /></span>
    <p class="ends"><span>${begin}</span><span>${W.now}</span></p>
  </div>`;
}

/** Range of valid time on the canvas. */
const range = computed(() => {
  revision.value;
  return validRange([...graph.nodes.values(), ...graph.edges.values()]);
});

/** Slider for the valid time to show. */
function True() {
  const between = range.value;
  const fixed = validAt.value !== "now" && validAt.value !== "any";
  const choose = (/** @type {any} */ event) => {
    const chosen = event.currentTarget.value;
    const week = Date.now() - 7 * DAY_MS;
    validAt.value = chosen === "at" ? new Date(between && between[1] < week ? between[0] : week).toISOString() : chosen;
  };
  const wide = between ? Math.max(1, Math.round((between[1] - between[0]) / 1000)) : 1;
  const slide = (/** @type {any} */ event) => {
    validAt.value = new Date(event.currentTarget.valueAsNumber).toISOString();
  };
  return html`<div class="clock">
    <header><label for="true-at">${W.trueAt}</label>
    <select id="true-at" value=${fixed ? "at" : validAt.value} onChange=${choose}>
      <option value="now">${W.trueNow}</option><option value="any">${W.anyTime}</option><option value="at">${W.aTime}</option>
    </select>
    ${fixed ? html`<${TimeField} label=${html`<span class="hidden">${W.pickTime}</span>`} value=${validAt.value} onPick=${(/** @type {string} */ picked) => { validAt.value = picked || "now"; }} />` : html`<span class="soft">${between ? W.validBetween(day(between[0]), day(between[1])) : W.nothingDated}</span>`}</header>
    ${fixed && between
      ? html`<span class="track"><input type="range" aria-label=${W.trueAt} min=${between[0] - wide} max=${between[0] + wide * Math.ceil((between[1] - between[0]) / wide + 1)} step=${wide}
          value=${Date.parse(validAt.value)} onInput=${slide} aria-valuetext=${time(validAt.value)} /></span>
          <p class="ends"><span>${day(between[0])}</span><span>${day(between[1])}</span></p>`
      : null}
  </div>`;
}

export const ClockHandles = () => html`${noPast.value || last.value < 2 ? html`<p class="soft">${noPast.value || W.onlyOneCommit}</p>` : html`<${Known} />`}<${True} />`;
