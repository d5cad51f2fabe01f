// Curves of a memory's confidence: a small one for lists, and one with dates for details.

import { html } from "../vendor/preact.js";
import { about } from "../state.js";
import { W } from "../view_words.js";
import { day } from "./parts.js";

const DAY_MS = 86_400_000;
const HALF_LIVES = 4;
const POINTS = 40;
const [WIDTH, HEIGHT] = [300, 80];

/** Return the half-life of a type in milliseconds; Infinity: no decay. @param {string} type */
function halfLifeOf(type) {
  const { half_life_days: usual = null, half_life_by_type: byType = {} } = about.value?.settings?.memory ?? {};
  const days = type in byType ? byType[type] : usual;
  return days === null ? Number.POSITIVE_INFINITY : days * DAY_MS;
}

/**
 * Return the decay of confidence since it was last renewed; times in ms.
 * @param {{confidence: number, effective_confidence: number}} memory @param {number} half half-life in ms @param {number} now
 */
export function fadingOf({ confidence, effective_confidence: left }, half, now) {
  const fades = Number.isFinite(half) && left > 0;
  const since = fades ? now - half * Math.max(0, Math.log2(confidence / left)) : now;
  const end = fades ? Math.max(since + HALF_LIVES * half, now + half) : now + DAY_MS;
  return {
    since, end, fades,
    at: (/** @type {number} */ when) => (fades ? confidence * 0.5 ** (Math.max(0, when - since) / half) : left),
    /** Return when it falls to a value; null: never. @param {number} value */
    reaches: (value) => (fades && value > 0 && value < confidence ? since + half * Math.log2(confidence / value) : null),
  };
}

/** @param {ReturnType<typeof fadingOf>} fading @returns {string} */
function pathOf({ since, end, at }) {
  const points = Array.from({ length: POINTS + 1 }, (_, i) => i / POINTS);
  return points.map((share) => `${(share * WIDTH).toFixed(1)} ${((1 - at(since + share * (end - since))) * HEIGHT).toFixed(1)}`).join("L");
}

/** @param {{fading: ReturnType<typeof fadingOf>, now: number, label: string, threshold?: number}} props */
function Curve({ fading, now, label, threshold }) {
  const x = ((now - fading.since) / (fading.end - fading.since)) * WIDTH;
  const line = pathOf(fading);
  return html`<svg class="fading" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    <path class="area" d=${`M0 ${HEIGHT}L${line}L${WIDTH} ${HEIGHT}Z`} />
    ${threshold ? html`<path class="threshold" d=${`M0 ${(1 - threshold) * HEIGHT}H${WIDTH}`} />` : null}
    <path class="line" d=${`M${line}`} /><path class="today" d=${`M${x} 0V${HEIGHT}`} /></svg>`;
}

/** Curve without dates. @param {{memory: any}} props */
export function SmallFading({ memory }) {
  const now = Date.now();
  return html`<${Curve} fading=${fadingOf(memory, halfLifeOf(memory.memory_type), now)} now=${now} label=${W.confidenceIs(memory.effective_confidence, memory.confidence)} />`;
}

/** Curve with dates and a caption. @param {{memory: any}} props */
export function Fading({ memory }) {
  const now = Date.now();
  const fading = fadingOf(memory, halfLifeOf(memory.memory_type), now);
  if (!fading.fades) return html`<p class="soft">${W.neverFades}</p>`;
  const { prune, prune_threshold: least } = about.value?.settings?.memory ?? {};
  const goes = prune === "off" ? null : fading.reaches(least);
  const half = fading.reaches(memory.confidence / 2);
  return html`<figure class="curve"><${Curve} fading=${fading} now=${now} threshold=${goes ? least : 0} label=${W.confidenceIs(memory.effective_confidence, memory.confidence)} />
    <p class="ends"><span>${day(fading.since)}</span><span>${day(fading.end)}</span></p>
    <figcaption>${half && half > now ? W.halfLeft(day(half)) : null} ${goes ? W.fadesAway[prune](day(goes)) : null} ${W.useRenews}</figcaption></figure>`;
}
