// Statistics of store and server: counts, sizes, charts, indexes, and exports.

import { html, useEffect, useState } from "../vendor/preact.js";
import { refreshAbout } from "../load.js";
import { ask, memory, request, save } from "../server.js";
import { about, attempt, cypherOpen, looks, mayAdminister, say, store, timeline, view } from "../state.js";
import { W } from "../view_words.js";
import { Administration } from "./administration.js";
import { runStatement } from "./cypher.js";
import { Health } from "./health.js";
import { Mark } from "./legend.js";
import { LastWrites } from "./live.js";
import { Bar, bytes, number, time } from "./parts.js";
import { savePicture } from "./tools.js";

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

function Growth() {
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

function Commits() {
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
function StorageParts({ stats }) {
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

function RelationMatrix() {
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

const SHOWN = 50;
/** Time until statistics of a store that is catching up are read again. */
const CATCH_UP_MS = 2000;
/** @param {{title: string, counts: Record<string, number>, marked: boolean}} props */
function Counts({ title, counts, marked }) {
  const sorted = Object.entries(counts).sort((one, other) => other[1] - one[1]);
  const most = sorted[0]?.[1] ?? 1;
  return html`<table><caption>${title} (${number(sorted.length)})</caption><tbody>
    ${sorted.slice(0, SHOWN).map(([type, count]) => html`<tr key=${type}><th scope="row">${marked ? html`<${Mark} ...${looks.of(type)} /> ` : null}${type || W.untyped}</th><td class="number">${number(count)}</td><td class="share"><${Bar} share=${count / most} label=${number(count)} /></td></tr>`)}
  </tbody></table>${sorted.length > SHOWN ? html`<p class="soft">${W.andMore(sorted.length - SHOWN)}</p>` : null}`;
}

/** State of fact extraction and external indexes, if configured. @param {{stats: any}} props */
function Others({ stats }) {
  const { extraction, syncers = [] } = stats;
  return html`${extraction ? html`<h2>${W.extraction}</h2><dl class="wide">
      <dt>${W.model}</dt><dd>${extraction.model}</dd><dt>${W.waiting}</dt><dd>${number(extraction.waiting)}</dd><dt>${W.extracted}</dt><dd>${number(extraction.extracted)}</dd>
      <dt>${W.failures}</dt><dd>${number(extraction.failures)}</dd><dt>${W.setAside}</dt><dd>${number(extraction.set_aside_count)}</dd>
      <dt>${W.tokensToday}</dt><dd>${extraction.daily_tokens ? W.ofMost(number(extraction.tokens_today), number(extraction.daily_tokens)) : number(extraction.tokens_today)}</dd></dl>
      ${extraction.error ? html`<p class="note">${extraction.error}</p>` : null}` : null}
    ${syncers.length ? html`<table><caption>${W.syncers}</caption><thead><tr>${W.syncerColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
      <tbody>${syncers.map((/** @type {any} */ one) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td class="number">${number(one.lag)}</td><td class="number">${number(one.sent)}</td><td class="number">${number(one.failures)}</td><td>${one.error ?? W.good}</td></tr>`)}</tbody></table>` : null}`;
}

const download = (/** @type {string} */ format, /** @type {string} */ ending) =>
  attempt(async () => {
    const answer = await request("GET", memory(store.value, "export"), { query: { format } });
    save(await answer.blob(), `${store.value}.${ending}`);
  });

const languageNames = new Intl.DisplayNames(["en"], { type: "language" });

/** Format node counts by language. @param {Record<string, number>} counts */
const languages = (counts) =>
  Object.entries(counts).map(([code, count]) => `${languageNames.of(code)} ${number(count)}`).join(", ");

/** Counts of a store, and lag of its engine, history and indexes. @param {{stats: any}} props */
function Tiles({ stats }) {
  const behind = Math.max(stats.engine_lag, stats.history_lag ?? 0, ...stats.indexes.map((/** @type {any} */ one) => one.lag));
  useEffect(() => {
    const timer = behind ? setTimeout(() => void attempt(refreshAbout), CATCH_UP_MS) : undefined;
    return () => clearTimeout(timer);
  }, [stats]);
  const tiles = /** @type {[string, string][]} */ ([
    [W.nodes, number(stats.nodes)], [W.edges, number(stats.edges)], [W.commits, number(stats.sequence)],
    [W.projections, behind ? W.behindBy(behind) : W.upToDate],
    [W.lastCheck, stats.last_check ? `${time(stats.last_check)} ${stats.last_check_ok ? W.good : W.failed}` : W.never],
    [W.created, time(stats.created_at)],
    ...(Object.keys(stats.languages).length ? [/** @type {[string, string]} */ ([W.languages, languages(stats.languages)])] : []),
  ]);
  return html`<dl class="tiles">${tiles.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Stats() {
  useEffect(() => {
    void attempt(refreshAbout);
  }, []);
  const stats = about.value?.stats;
  if (!stats) return html`<p role="status">${W.loading}</p>`;
  const reindex = () => attempt(async () => {
    await ask("POST", memory(store.value, "reindex"));
    say(W.reindexing);
    await refreshAbout();
  });
  return html`<div class="scroll fill pad overview" tabindex="0" role="region" aria-label=${W.statistics}>
    <h2>${W.statistics}</h2>
    <${Tiles} stats=${stats} />
    <${Growth} /><${Commits} />
    <div class="columns"><div><${Counts} title=${W.types} counts=${stats.types} marked /></div><div><${Counts} title=${W.relations} counts=${stats.relation_types} /></div><div><${StorageParts} stats=${stats} /></div></div>
    <${RelationMatrix} />
    <${LastWrites} />
    <h2>${W.indexes}</h2>
    ${stats.indexes.length
      ? html`<div class="scroll" tabindex="0" role="region" aria-label=${W.indexHealth}><table><caption class="hidden">${W.indexes}</caption><thead><tr>${W.indexColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
          <tbody>${stats.indexes.map((/** @type {any} */ one) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td class="number">${number(one.lag)}</td><td class="number">${number(one.entities)}</td><td class="number">${bytes(one.bytes)}</td><td>${one.model}${one.degraded ? ` (${W.isDegraded})` : ""}</td><td>${one.error ?? (one.progress === null ? W.good : W.rebuilt(one.progress))}</td></tr>`)}</tbody></table></div>`
      : html`<p class="soft">${W.indexesOff}</p>`}
    <p class="row">
      ${mayAdminister.value && stats.indexes.length ? html`<button type="button" onClick=${reindex}>${W.reindex}</button>` : null}
      <button type="button" class="plain" onClick=${() => download("", "jsonl")}>${W.exportAs("JSON lines")}</button>
      <button type="button" class="plain" onClick=${() => download("graphml", "graphml")}>${W.exportAs("GraphML")}</button>
      <button type="button" class="plain" onClick=${() => savePicture("png")}>${W.exportAs("PNG")}</button>
      <button type="button" class="plain" onClick=${() => savePicture("svg")}>${W.exportAs("SVG")}</button>
    </p>
    <${Administration} />
    <${Others} stats=${stats} />
    <${Health} />
  </div>`;
}
