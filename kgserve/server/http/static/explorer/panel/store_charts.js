// Charts of a store: growth, commits, storage by part, and relations between types.

import { html, useEffect, useState } from "../vendor/preact.js";
import { refreshAbout } from "../load.js";
import { ask, memory } from "../server.js";
import { cypherOpen, looks, store, timeline, view } from "../state.js";
import { W } from "../view_words.js";
import { runStatement } from "./cypher.js";
import { Mark } from "./legend.js";
import { Bar, bytes, number, time } from "./parts.js";

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

/** Return the sizes in bytes by part. @param {any} stats @returns {[string, number][]} */
function partsOf(stats) {
  const parts = /** @type {[string, number | undefined][]} */ ([
    [W.journal, stats.journal_bytes], [W.engine, stats.engine_bytes], [W.engineLog, stats.engine_log_bytes], [W.pastStates, stats.history?.bytes],
    ...stats.indexes.map((/** @type {any} */ one) => [W.indexNamed(one.name), one.bytes]),
  ]);
  return parts.flatMap(([name, size]) => (size ? [/** @type {[string, number]} */ ([name, size])] : [])).sort((one, other) => other[1] - one[1]);
}

/** @param {{stats: any}} props */
export function StorageParts({ stats }) {
  const parts = partsOf(stats);
  const all = parts.reduce((sum, [, size]) => sum + size, 0);
  if (!all) return null;
  return html`<table><caption>${W.storageOf(bytes(all))}</caption><tbody>${parts.map(([name, size]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${bytes(size)}</td>
    <td class="share"><${Bar} share=${size / all} label=${W.ofStorage(Math.round((100 * size) / all))} /></td></tr>`)}</tbody></table>`;
}

const SHOWN_TYPES = 12;
const STATEMENT = "MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity) RETURN a.type, e.relation_type, b.type, count(*) AS edges ORDER BY edges DESC";

/** @typedef {[from: string, relation: string, to: string, edges: number]} Joined */

/** Return the types at one end of the edges, most frequent first. @param {Joined[]} rows @param {0 | 2} end */
function typesAt(rows, end) {
  const counts = /** @type {Map<string, number>} */ (new Map());
  for (const row of rows) counts.set(row[end], (counts.get(row[end]) ?? 0) + row[3]);
  return [...counts].sort((one, other) => other[1] - one[1]).map(([type]) => type);
}

const quoted = (/** @type {string} */ text) => `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;

/** Run a statement for the edges of a relation in the Cypher drawer. @param {Joined} joined */
function showEdges([from, relation, to]) {
  view.value = "graph";
  cypherOpen.value = true;
  void runStatement(`MATCH (a:Entity)-[e:RELATES_TO]->(b:Entity)\nWHERE a.type = ${quoted(from)} AND e.relation_type = ${quoted(relation)} AND b.type = ${quoted(to)}\nRETURN a, e, b LIMIT 100`);
}

export function RelationMatrix() {
  const [rows, setRows] = useState(/** @type {Joined[] | null} */ (null));
  const [why, setWhy] = useState("");
  useEffect(() => {
    let current = true;
    ask("POST", memory(store.value, "cypher"), { body: { query: STATEMENT, timeout_ms: TIMEOUT_MS, max_rows: 10_000 } })
      .then((answer) => current && setRows(answer.rows), (error) => current && setWhy(error.message))
      .then(() => (current ? refreshAbout() : undefined)) // The engine has caught up with the journal.
      .catch(() => undefined);
    return () => {
      current = false;
    };
  }, [store.value]);
  if (why) return html`<p class="soft">${W.matrix}: ${why}</p>`;
  if (!rows) return html`<p role="status">${W.loading}</p>`;
  if (!rows.length) return null;
  const [from, to] = [typesAt(rows, 0), typesAt(rows, 2)];
  const name = (/** @type {string} */ type) => html`<${Mark} ...${looks.of(type)} /> ${type || W.untyped}`;
  const cell = (/** @type {string} */ row, /** @type {string} */ column) => rows.filter((one) => one[0] === row && one[2] === column)
    .map((one) => html`<li key=${one[1]}><button type="button" class="link" aria-label=${W.edgesFromTo(row, one[1], column, one[3])} onClick=${() => showEdges(one)}>${one[1]}</button> <span class="soft">${number(one[3])}</span></li>`);
  const left = from.length + to.length - Math.min(from.length, SHOWN_TYPES) - Math.min(to.length, SHOWN_TYPES);
  return html`<h2>${W.matrix}</h2><div class="scroll matrix" tabindex="0" role="region" aria-label=${W.matrix}><table><caption>${W.matrixText}</caption>
      <thead><tr><th scope="col">${W.fromAndTo}</th>${to.slice(0, SHOWN_TYPES).map((type) => html`<th key=${type} scope="col">${name(type)}</th>`)}</tr></thead>
      <tbody>${from.slice(0, SHOWN_TYPES).map((row) => html`<tr key=${row}><th scope="row">${name(row)}</th>${to.slice(0, SHOWN_TYPES).map((column) => html`<td key=${column}><ul class="plain-list">${cell(row, column)}</ul></td>`)}</tr>`)}</tbody></table></div>
    ${left ? html`<p class="soft">${W.typesLeftOut(left)}</p>` : null}`;
}
