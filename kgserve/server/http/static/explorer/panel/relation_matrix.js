// Matrix of the relations between node types. A relation opens as a Cypher statement.

import { html, useEffect, useState } from "../vendor/preact.js";
import { refreshAbout } from "../load.js";
import { ask, memory } from "../server.js";
import { cypherOpen, looks, store, view } from "../state.js";
import { W } from "../view_words.js";
import { runStatement } from "./cypher.js";
import { Mark } from "./legend.js";
import { number } from "./parts.js";

const SHOWN_TYPES = 12;
const TIMEOUT_MS = 10_000;
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
