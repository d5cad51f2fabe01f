// Table of the last commits of a store, with links to the store as of each commit.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { ask, memory } from "../server.js";
import { about, noPast, store, view } from "../state.js";
import { W } from "../view_words.js";
import { number, time } from "./parts.js";
import { showInGraph } from "./memory_state.js";
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
export const WriteTable = ({ label, changes }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table><caption class="hidden">${label}</caption>
    <thead><tr>${W.writeColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${changes.map((one) => html`<tr key=${one.sequence}><th scope="row">${noPast.value ? number(one.sequence) : html`<button type="button" class="link" aria-label=${W.lookAtCommit(one.sequence)} onClick=${() => { lookBack(one.sequence); view.value = "graph"; }}>${number(one.sequence)}</button>`}</th>
      <td>${time(one.time)}</td><td>${summaryOf(one)}</td><td>${nodesOf(one)}</td></tr>`)}</tbody></table></div>`;

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

/** Summarize the writes of a commit in numbers. @param {any} change */
function summaryOf(change) {
  const counts = Object.entries(W.writeKinds).map(([kind, words]) => [words, change[kind].length]).filter(([, count]) => count);
  return `${counts.map(([words, count]) => words(count)).join(", ") || W.nothingVisible}${change.truncated ? ", …" : ""}`;
}

/** Render the first nodes that a commit wrote or deleted. @param {any} change */
function nodesOf(change) {
  const nodes = [...change.nodes_created, ...change.nodes_updated];
  const gone = nodes.length ? [] : change.nodes_deleted;
  const authors = [...new Set(nodes.map((node) => node.created_by).filter(Boolean))];
  return html`${nodes.slice(0, NAMED).map((node) => html`<button type="button" class="link" key=${node.id} onClick=${() => showInGraph(node.id)}>${labelOf(node)}</button> `)}
    ${gone.length ? gone.slice(0, NAMED).join(" ") : null}
    ${nodes.length + gone.length > NAMED ? html`<span class="soft">${W.andMore(nodes.length + gone.length - NAMED)}</span> ` : null}${authors.length ? html`<span class="soft">${W.by(authors.slice(0, NAMED).join(", "))}</span>` : null}`;
}
