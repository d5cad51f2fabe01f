// Statistics of store and server: counts, sizes, indexes, and exports.

import { html, useEffect } from "../vendor/preact.js";
import { refreshAbout } from "../load.js";
import { ask, memory, request, save } from "../server.js";
import { about, attempt, looks, mayAdminister, say, store } from "../state.js";
import { W } from "../view_words.js";
import { Mark } from "./legend.js";
import { Administration } from "./administration.js";
import { Health } from "./health.js";
import { LastWrites } from "./last_writes.js";
import { Bar, bytes, number, time } from "./parts.js";
import { Commits, Growth, RelationMatrix, StorageParts } from "./store_charts.js";
import { savePicture } from "./tools.js";

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
