// Table of the last commits of a store, with links to the store as of each commit.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { ask, memory } from "../server.js";
import { about, noPast, store, view } from "../state.js";
import { W } from "../view_words.js";
import { number, time } from "./parts.js";
import { isWithdrawn, showInGraph, titlesOf } from "./memory_state.js";
import { lookBack } from "./time.js";

const COMMITS = 8;
const NAMED = 3;

/** Return up to `limit` commits that end with one, newest first, and the commit before them. @param {number} last @param {number} limit @returns {Promise<{changes: any[], from: number}>} */
export async function changesOfStore(last, limit) {
  const from = Math.max(0, last - limit);
  const { changes } = await ask("GET", memory(store.value, "changes"), { query: { since: from, limit: last - from || 1 } });
  return { changes: changes.filter((/** @type {any} */ one) => one.sequence <= last).reverse(), from };
}

/** @param {{label: string, changes: any[]}} props */
export function WriteTable({ label, changes }) {
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
    changesOfStore(sequence, COMMITS).then((page) => current && setChanges(page.changes), (error) => current && setWhy(error.message));
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
