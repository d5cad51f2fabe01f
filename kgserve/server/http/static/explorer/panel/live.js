// Changes of a store within a period: facts that began or ended, commits, and live events.

import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { GitCompareArrows } from "../vendor/icons.js";
import { follow, live, strip, wanted } from "../events.js";
import { endsWithin } from "../graph/time.js";
import { about, compared, graph, noPast, revision, view } from "../state.js";
import { W } from "../view_words.js";
import { changesOfStore, WriteTable } from "./last_writes.js";
import { day, Icon, time } from "./parts.js";
import { showNode } from "./search.js";

const DAY_MS = 86_400_000;
const PERIOD_DAYS = { day: 1, week: 7, month: 30, year: 365, all: Number.POSITIVE_INFINITY };
const COMMITS = 50;
const MAX_FACTS = 200;
const period = signal("week");

/** @typedef {{at: number, ended: boolean, row: any, edge: boolean}} Turn start or end of the validity of a node or an edge */

/** Return the starts and ends of validity within a period, newest first. @param {number} start milliseconds @returns {Turn[]} */
function turnsSince(start) {
  revision.value;
  const turns = (/** @type {Iterable<any>} */ rows, /** @type {boolean} */ edge) => [...rows].flatMap((row) => endsWithin(row, start, Date.now()).map((turn) => ({ ...turn, row, edge })));
  return [...turns(graph.nodes.values(), false), ...turns(graph.edges.values(), true)].sort((one, other) => other.at - one.at);
}

const titleOf = (/** @type {string} */ id) => graph.nodes.get(id)?.label ?? id;

/** Node of the canvas, as a link to its details. @param {{id: string}} props */
const NodeLink = ({ id }) => html`<button type="button" class="link" onClick=${() => showNode(id)}>${titleOf(id)}</button>`;

/** Table of facts that began or ended. @param {{start: number}} props */
function Facts({ start }) {
  const turns = turnsSince(start);
  return html`<h2>${W.factsTitle}</h2><p class="soft">${W.factsText}</p>
    ${turns.length
      ? html`<div class="scroll" tabindex="0" role="region" aria-label=${W.factsTitle}><table><caption class="hidden">${W.factsTitle}</caption>
          <thead><tr>${W.factColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
          <tbody>${turns.slice(0, MAX_FACTS).map(({ at, ended, row, edge }, i) => html`<tr key=${i}><td class="when">${day(at)}</td><td class=${ended ? "gone" : "come"}>${ended ? W.factEnded : W.factBegan}</td>
            <th scope="row">${edge ? html`<${NodeLink} id=${row.from} /> ${row.type} <${NodeLink} id=${row.to} />` : html`<${NodeLink} id=${row.key} /> <span class="soft">${row.type}</span>`}</th></tr>`)}</tbody></table></div>
        ${turns.length > MAX_FACTS ? html`<p class="soft">${W.andMore(turns.length - MAX_FACTS)}</p>` : null}`
      : html`<p>${W.noFacts}</p>`}`;
}

/** Table of commits, with a button to compare the store before them with now. @param {{start: number}} props */
function Commits({ start }) {
  const [page, setPage] = useState(/** @type {{changes: any[], from: number}} */ ({ changes: [], from: 0 }));
  const [why, setWhy] = useState("");
  const sequence = about.value?.stats.sequence ?? 0;
  const read = (/** @type {number} */ last) => changesOfStore(last, COMMITS);
  useEffect(() => {
    let current = true;
    read(sequence).then((found) => current && setPage(found), (error) => current && setWhy(error.message));
    return () => {
      current = false;
    };
  }, [sequence]);
  const more = () => read(page.from).then((found) => setPage({ ...found, changes: [...page.changes, ...found.changes] }), (error) => setWhy(error.message));
  const within = page.changes.filter((one) => Date.parse(one.time) >= start);
  const before = (within.at(-1)?.sequence ?? 0) - 1;
  const whole = within.length < page.changes.length;
  const compare = () => {
    view.value = "graph";
    compared.value = { before, after: sequence };
  };
  return html`<h2>${W.writtenTitle}</h2><p class="soft">${W.writtenText}</p>
    ${why ? html`<p class="note" role="alert">${why}</p>` : null}
    ${within.length ? html`<${WriteTable} label=${W.writtenTitle} changes=${within} />` : html`<p>${W.nothingWritten}</p>`}
    <p class="row">${whole || page.from <= 0 ? null : html`<button type="button" onClick=${more}>${W.earlierCommits}</button>`}
      ${whole && before > 0 && !noPast.value ? html`<button type="button" onClick=${compare}><${Icon} of=${GitCompareArrows} />${W.compareWith(before)}</button>` : null}</p>`;
}

/** List of the events since the page was opened. */
function Events() {
  const toggle = () => {
    wanted.value = !wanted.value;
    follow();
  };
  return html`<details><summary>${W.eventsTitle(strip.value.length)}</summary>
    <p class="row"><label class="check"><input type="checkbox" checked=${wanted.value} onChange=${toggle} /> ${W.followChanges}</label>
      <span class="soft">${live.value.on ? W.liveOn : live.value.why || W.liveOff}</span></p>
    <ol class="strip">${strip.value.map((notice) => html`<li key=${`${notice.id} ${notice.event} ${notice.data.id ?? ""}`}>
      <span class="soft">${time(notice.data.time)}</span> <strong>${notice.event.replaceAll("_", " ")}</strong>
      ${notice.event.startsWith("node_") && notice.event !== "node_deleted" ? html`<${NodeLink} id=${notice.data.id} />` : html`<span>${notice.data.from ? `${titleOf(notice.data.from)} –${notice.data.relation_type}→ ${titleOf(notice.data.to)}` : titleOf(notice.data.id ?? "")}</span>`}</li>`)}</ol></details>`;
}

export function Live() {
  const start = Date.now() - PERIOD_DAYS[period.value] * DAY_MS;
  return html`<div class="scroll fill pad changes" tabindex="0" role="region" aria-label=${W.live}>
    <p class="row"><label>${W.period}<select value=${period.value} onChange=${(/** @type {any} */ event) => { period.value = event.currentTarget.value; }}>
      ${Object.entries(W.periods).map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select></label></p>
    <${Facts} start=${start} /><${Commits} start=${start} /><${Events} /></div>`;
}
