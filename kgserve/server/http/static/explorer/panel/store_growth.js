// Charts of the growth of a store: nodes by creation time, and commits.

import { html, useEffect, useState } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { store, timeline } from "../state.js";
import { W } from "../view_words.js";
import { number, time } from "./parts.js";

const HOUR_MS = 3_600_000;
const TIMEOUT_MS = 10_000;
const [WIDTH, HEIGHT] = [1000, 60];

/** Return the unit of time for a store's age. @param {number} age in milliseconds */
const unitOf = (age) => (age < HOUR_MS / 60 ? "millisecond" : age < HOUR_MS / 6 ? "second" : age < 6 * HOUR_MS ? "minute" : age < 72 * HOUR_MS ? "hour" : "day");

/** Read the cumulative number of nodes by unit of time. @returns {Promise<{at: number, nodes: number}[]>} */
async function readGrowth() {
  const first = timeline.value[0]?.[2];
  const last = timeline.value.at(-1)?.[3];
  const unit = unitOf(first && last ? Date.parse(last) - Date.parse(first) : Number.POSITIVE_INFINITY);
  const query = `MATCH (n:Entity) RETURN date_trunc('${unit}', n.created_at) AS time, count(*) AS nodes ORDER BY time`;
  const { rows } = await ask("POST", memory(store.value, "cypher"), { body: { query, timeout_ms: TIMEOUT_MS, max_rows: 10_000 } });
  let nodes = 0;
  return rows.map((/** @type {[string, number]} */ [at, made]) => {
    nodes += made;
    return { at: Date.parse(at), nodes };
  });
}

export function Growth() {
  const [points, setPoints] = useState(/** @type {{at: number, nodes: number}[]} */ ([]));
  const [why, setWhy] = useState("");
  useEffect(() => {
    let current = true;
    readGrowth().then((found) => current && setPoints(found), (error) => current && setWhy(error.message));
    return () => {
      current = false;
    };
  }, [store.value, timeline.value]);
  if (why) return html`<p class="soft">${W.growth}: ${why}</p>`;
  const [first, last] = [points[0], points.at(-1)];
  if (!first || !last || first === last) return null;
  const label = W.grewTo(number(last.nodes), time(first.at), time(last.at));
  const x = (/** @type {number} */ at) => ((at - first.at) / (last.at - first.at)) * WIDTH;
  const steps = points.map(({ at, nodes }) => `H${x(at).toFixed(1)}V${(HEIGHT * (1 - nodes / last.nodes)).toFixed(1)}`).join("");
  return html`<figure><figcaption>${label}</figcaption><svg class="growth" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}><path d=${`M0 ${HEIGHT}${steps}H${WIDTH}V${HEIGHT}Z`} /></svg></figure>`;
}

export function Commits() {
  const most = Math.max(1, ...timeline.value.map((bucket) => bucket[4]));
  if (!timeline.value.length) return null;
  const width = WIDTH / timeline.value.length;
  const label = W.commitsOver(time(timeline.value[0][2]), time(timeline.value.at(-1)?.[3]));
  return html`<figure><figcaption>${label}</figcaption>
    <svg class="bars tall" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
      ${timeline.value.map(([from, , , , commits], i) => html`<rect key=${from} x=${i * width} width=${width * 0.9} y=${HEIGHT - (HEIGHT * commits) / most} height=${(HEIGHT * commits) / most} />`)}</svg></figure>`;
}
