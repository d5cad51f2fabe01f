// Table of the last commits of a store, with links to the store as of each commit.

import { html, useEffect, useState } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { about, noPast, store, view } from "../state.js";
import { W } from "../view_words.js";
import { number, time } from "./parts.js";
import { showInGraph } from "./memory_state.js";
import { lookBack } from "./time.js";

const COMMITS = 8;
const NAMED = 3;

export function LastWrites() {
  const [changes, setChanges] = useState(/** @type {any[]} */ ([]));
  const [why, setWhy] = useState("");
  const sequence = about.value?.stats.sequence ?? 0;
  useEffect(() => {
    let current = true;
    ask("GET", memory(store.value, "changes"), { query: { since: Math.max(0, sequence - COMMITS), limit: COMMITS } })
      .then((page) => current && setChanges(page.changes.reverse()), (error) => current && setWhy(error.message));
    return () => {
      current = false;
    };
  }, [store.value, sequence]);
  if (why) return html`<p class="soft">${W.lastWrites}: ${why}</p>`;
  if (!changes.length) return null;
  return html`<h2>${W.lastWrites}</h2><div class="scroll" tabindex="0" role="region" aria-label=${W.lastWrites}><table><caption class="hidden">${W.lastWrites}</caption>
    <thead><tr>${W.writeColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${changes.map((one) => html`<tr key=${one.sequence}><th scope="row">${noPast.value ? number(one.sequence) : html`<button type="button" class="link" aria-label=${W.lookAtCommit(one.sequence)} onClick=${() => { lookBack(one.sequence); view.value = "graph"; }}>${number(one.sequence)}</button>`}</th>
      <td>${time(one.time)}</td><td>${summaryOf(one)}</td><td>${nodesOf(one)}</td></tr>`)}</tbody></table></div>`;
}

/** Summarize the writes of a commit in numbers. @param {any} change */
function summaryOf(change) {
  const counts = Object.entries(W.writeKinds).map(([kind, words]) => [words, change[kind].length]).filter(([, count]) => count);
  return `${counts.map(([words, count]) => words(count)).join(", ") || W.nothingVisible}${change.truncated ? ", …" : ""}`;
}

/** Render the first nodes that a commit wrote. @param {any} change */
function nodesOf(change) {
  const nodes = [...change.nodes_created, ...change.nodes_updated];
  const authors = [...new Set(nodes.map((node) => node.created_by).filter(Boolean))];
  return html`${nodes.slice(0, NAMED).map((node) => html`<button type="button" class="link" key=${node.id} onClick=${() => showInGraph(node.id)}>${node.name || node.id}</button> `)}
    ${nodes.length > NAMED ? html`<span class="soft">${W.andMore(nodes.length - NAMED)}</span> ` : null}${authors.length ? html`<span class="soft">${W.by(authors.slice(0, NAMED).join(", "))}</span>` : null}`;
}
