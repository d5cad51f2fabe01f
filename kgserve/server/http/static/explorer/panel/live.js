// Changes of a store within a period: facts that began or ended, commits, and live events. Each commit links to the store as of it.

import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { GitCompareArrows } from "../vendor/icons.js";
import { follow, live, strip, wanted } from "../events.js";
import { labelOf } from "../graph/labels.js";
import { endsWithin } from "../graph/time.js";
import { ask, memory } from "../server.js";
import { about, compared, graph, noPast, revision, store, view } from "../state.js";
import { W } from "../view_words.js";
import { isWithdrawn, showInGraph, titlesOf } from "./memory_state.js";
import { day, Icon, number, time } from "./parts.js";
import { showNode } from "./search.js";
import { lookBack } from "./time.js";

const DAY_MS = 86_400_000;
const PERIOD_DAYS = { day: 1, week: 7, month: 30, year: 365, all: Number.POSITIVE_INFINITY };
/** Commits read at once here, and in the statistics. */
const [COMMITS, LAST_COMMITS] = [50, 8];
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

const NAMED = 3;

/** Return up to `limit` commits that end with one, newest first, and the commit before them. @param {number} last @param {number} limit @returns {Promise<{changes: any[], from: number}>} */
async function changesOfStore(last, limit) {
  const from = Math.max(0, last - limit);
  const { changes } = await ask("GET", memory(store.value, "changes"), { query: { since: from, limit: last - from || 1 } });
  return { changes: changes.filter((/** @type {any} */ one) => one.sequence <= last).reverse(), from };
}

/** @param {{label: string, changes: any[]}} props */
function WriteTable({ label, changes }) {
  const [titles, setTitles] = useState(/** @type {Map<string, string>} */ (new Map()));
  useEffect(() => {
    let current = true;
    void titlesIn(changes).then((found) => current && setTitles(found));
    return () => {
      current = false;
    };
  }, [changes[0]?.sequence, changes.length]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table><caption class="hidden">${label}</caption>
    <thead><tr>${W.writeColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${changes.map((one) => html`<tr key=${one.sequence}><th scope="row">${noPast.value ? number(one.sequence) : html`<button type="button" class="link" aria-label=${W.lookAtCommit(one.sequence)} onClick=${() => { lookBack(one.sequence); view.value = "graph"; }}>${number(one.sequence)}</button>`}</th>
      <td>${time(one.time)}</td><td>${summaryOf(one)}</td><td><${Named} change=${one} titles=${titles} /></td></tr>`)}</tbody></table></div>`;
}

export function LastWrites() {
  const [changes, setChanges] = useState(/** @type {any[]} */ ([]));
  const [why, setWhy] = useState("");
  const sequence = about.value?.stats.sequence ?? 0;
  useEffect(() => {
    let current = true;
    changesOfStore(sequence, LAST_COMMITS).then((page) => current && setChanges(page.changes), (error) => current && setWhy(error.message));
    return () => {
      current = false;
    };
  }, [store.value, sequence]);
  if (why) return html`<p class="soft">${W.lastWrites}: ${why}</p>`;
  return changes.length ? html`<h2>${W.lastWrites}</h2><${WriteTable} label=${W.lastWrites} changes=${changes} />` : null;
}

/** Return the kind of a write, as named in `W.writeKinds`. @param {string} list of the commit that holds it @param {any} row @param {number} sequence */
function kindOf(list, row, sequence) {
  if (list !== "edges_updated") return row.ended || list;
  return row.sequence < sequence ? "edges_same" : isWithdrawn(row) ? "edges_withdrawn" : list;
}

/** Summarize the writes of a commit in numbers. @param {any} change */
function summaryOf(change) {
  if (change.truncated) return W.rowsWritten(change.rows);
  const counts = new Map();
  for (const list of Object.keys(W.writeKinds)) {
    for (const row of change[list] ?? []) {
      const kind = kindOf(list, row, change.sequence);
      counts.set(kind, (counts.get(kind) ?? 0) + 1);
    }
  }
  return [...counts].map(([kind, count]) => W.writeKinds[kind](count)).join(", ") || W.nothingVisible;
}

const nodesWritten = (/** @type {any} */ change) => [...change.nodes_created, ...change.nodes_updated];
/** Return the first deleted nodes and, if the commit has no nodes at all, the first edges. @param {any} change */
function othersWritten(change) {
  const gone = nodesWritten(change).length ? [] : change.nodes_deleted.slice(0, NAMED);
  const edges = nodesWritten(change).length + gone.length ? [] : [...change.edges_created, ...change.edges_updated, ...change.edges_deleted].slice(0, NAMED);
  return { gone, edges };
}

/** Return the titles of the nodes that commits name, newest commit first. @param {any[]} changes */
async function titlesIn(changes) {
  const titles = new Map([...changes].reverse().flatMap(nodesWritten).map((node) => [node.id, labelOf(node)]));
  const named = changes.flatMap((change) => {
    const { gone, edges } = othersWritten(change);
    return [...gone, ...edges.flatMap((edge) => [edge.from, edge.to])];
  });
  const before = await titlesOf(named.filter((id) => !titles.has(id)), (changes.at(-1)?.sequence ?? 1) - 1);
  return new Map([...before, ...titles]);
}

/** Names of the first nodes or edges that a commit wrote or deleted. @param {{change: any, titles: Map<string, string>}} props */
function Named({ change, titles }) {
  const nodes = nodesWritten(change);
  const { gone, edges } = othersWritten(change);
  const title = (/** @type {string} */ id) => titles.get(id) ?? id;
  const link = (/** @type {string} */ id) => html`<button type="button" class="link" key=${id} onClick=${() => showInGraph(id)}>${title(id)}</button> `;
  const count = nodes.length || change.nodes_deleted.length || change.edges_created.length + change.edges_updated.length + change.edges_deleted.length;
  const authors = [...new Set(nodes.map((node) => node.created_by).filter(Boolean))];
  return html`${nodes.slice(0, NAMED).map((node) => link(node.id))}${gone.map(title).join(", ")}
    ${edges.map((edge) => html`<div key=${`${edge.from} ${edge.relation_type} ${edge.to}`}>${link(edge.from)}${edge.relation_type} ${edge.to_graph ? `${edge.to_graph} / ${edge.to}` : link(edge.to)}</div>`)}
    ${count > NAMED ? html`<span class="soft">${W.andMore(count - NAMED)}</span> ` : null}${authors.length ? html`<span class="soft">${W.by(authors.slice(0, NAMED).join(", "))}</span>` : null}`;
}
