// Cypher panel: results as graph, table, JSON or CSV, and the plan of a statement.

import { effect, html, signal, useEffect } from "../vendor/preact.js";
import { Play } from "../vendor/icons.js";
import { labelOf } from "../graph/labels.js";
import { put } from "../load.js";
import { ask, key, memory, request, save } from "../server.js";
import { announce, asOf, attempt, graph, mayWrite, say, selected, store, view } from "../state.js";
import { W } from "../view_words.js";
import { Editor } from "./editor.js";
import { Parameters, parametersFor, typedParameters } from "./parameters.js";
import { Icon, number, plain } from "./parts.js";
import { LongTable } from "./rows.js";
import { showNode } from "./search.js";
import { remember, remembers, SavedStatements, statements, toggleRemembering } from "./statements.js";

const FIRST = "MATCH (n)-[e]->(m) RETURN n, e, m LIMIT 25";
const PLANNED = /^\s*(explain|profile)\b/i;

const text = signal(FIRST);
const result = signal(/** @type {any} */ (null));
const wrong = signal("");
/** Position of an error, if reported, and its statement. */
const wrongAt = signal(/** @type {{line: number, column: number, text: string} | null} */ (null));
const how = signal("table");
const writing = signal(false);
const running = signal(false);
/** Statements that were left, by store and key. @type {Map<string, string>} */
const left = new Map();
let place = "";
effect(() => {
  const next = JSON.stringify([store.value, key.value]);
  if (next === place) return;
  left.set(place, text.peek());
  place = next;
  text.value = left.get(next) ?? FIRST;
  result.value = null;
  wrong.value = "";
  writing.value = false;
  typedParameters.value = {};
});

/** Return the request for a statement, unchanged, so that error positions match. @param {string} query @returns {{query: string, params?: Record<string, unknown>}} */
function requestFor(query) {
  const params = parametersFor(query);
  return Object.keys(params).length ? { query, params } : { query };
}

/** @param {boolean} [planned] only show the plan */
async function run(planned = false) {
  const query = text.value;
  if (!query.trim() || running.value) return;
  const mine = place;
  running.value = true;
  wrong.value = "";
  wrongAt.value = null;
  const prefix = planned && !PLANNED.test(query) ? "EXPLAIN " : "";
  const body = { ...requestFor(prefix + query), mode: writing.value && mayWrite.value && !planned ? "write" : undefined };
  try {
    const answer = await ask("POST", memory(store.value, "cypher"), { body });
    if (place !== mine) return;
    result.value = { ...answer, body, planned: planned || PLANNED.test(query) };
    if (!planned) remember(query.trim());
    announce(result.value.planned ? W.plan : W.rowsFound(answer.row_count, answer.truncated));
    if (how.value === "graph" && !result.value.planned) await draw();
  } catch (error) {
    if (place !== mine) return;
    result.value = null;
    const { code, message } = /** @type {import("../server.js").Refused} */ (error);
    wrong.value = code !== "forbidden" || body.mode ? message : mayWrite.value ? W.needsMark : W.mayNotChange;
    const at = /line (\d+), column (\d+)/.exec(wrong.value) ?? /line: ?(\d+), offset: ?(\d+)/.exec(wrong.value);
    wrongAt.value = at ? { line: Number(at[1]), column: Number(at[2]) - (at[1] === "1" ? prefix.length : 0), text: query } : null;
  } finally {
    running.value = false;
  }
}

/** Show a statement in the editor and run it. @param {string} query */
export async function runStatement(query) {
  text.value = query;
  await run();
}

/** Collect the ids of nodes in a value, at any depth. @param {any} value @param {Set<string>} ids */
export function idsIn(value, ids = new Set()) {
  if (value === null || typeof value !== "object") return ids;
  if (value._label === "Entity" && typeof value.id === "string") ids.add(value.id);
  if (typeof value._from === "string" && typeof value._to === "string" && value._label === "RELATES_TO") ids.add(value._from).add(value._to);
  for (const each of Object.values(value)) idsIn(each, ids);
  return ids;
}

/** Select the nodes of the result on the canvas; without any, show the table and return false. */
async function draw() {
  const ids = [...idsIn(result.value.rows)];
  if (ids.length) await put(ids);
  const here = ids.filter((id) => graph.nodes.has(id));
  how.value = here.length ? "graph" : "table";
  if (!here.length) return false;
  selected.value = new Set(here);
  view.value = "graph";
  return true;
}

const showGraph = () => attempt(async () => {
  if (!await draw()) say(W.noNodesInRows, true);
});

const csv = () =>
  attempt(async () => {
    const answer = await request("POST", memory(store.value, "cypher"), { body: result.value.body, accept: "text/csv" });
    save(await answer.blob(), `${store.value}.csv`);
  });

/** Completions of the editor. */
const offered = signal(/** @type {import("./editor.js").Word[]} */ ([]));

/** @typedef {{keywords: string[], functions: string[], procedures: string[], node_properties: string[], relation_properties: string[],
 * labels: Record<string, string[]>, relation_types: Record<string, string[]>}} Vocabulary
 */

/** Load completions: Cypher's words, and the names in this store. */
async function learn() {
  const mine = store.value;
  const found = await ask("GET", memory(mine, "cypher", "words")).catch(() => null);
  if (store.value === mine) offered.value = found ? wordsOf(found) : [];
}

/** Return the editor's completions for a store. @param {Vocabulary} found @returns {import("./editor.js").Word[]} */
export function wordsOf(found) {
  const owners = /** @type {Map<string, string[]>} */ (new Map());
  for (const [owner, names] of [...Object.entries(found.labels), ...Object.entries(found.relation_types)])
    for (const name of names) owners.set(name, [...(owners.get(name) ?? []), owner]);
  const columns = new Set([...found.node_properties, ...found.relation_properties]);
  const kinds = /** @type {[string, string[]][]} */ ([
    ["keyword", found.keywords], ["function", found.functions], ["procedure", found.procedures],
    ["label", [...Object.keys(found.labels), "Entity", "Elsewhere"]], ["relation", [...Object.keys(found.relation_types), "RELATES_TO", "LINKS_TO"]],
  ]);
  return [
    ...kinds.flatMap(([type, labels]) => labels.map((label) => ({ label, type }))),
    ...[...owners].filter(([label]) => !columns.has(label)).map(([label, of]) => ({ label, type: "property", of })),
    ...[...columns].map((label) => ({ label, type: "property" })),
  ];
}

/** Index in the earlier statements, for Ctrl and arrows; -1: the current one. */
let recalled = -1;

/** @param {number} step 1: the previous one */
function recall(step) {
  const before = statements();
  recalled = Math.max(-1, Math.min(before.length - 1, recalled + step));
  text.value = before[recalled] ?? "";
}

export function CypherPane() {
  const before = statements();
  useEffect(() => {
    void learn();
  }, [store.value]);
  const again = (/** @type {any} */ event) => {
    const chosen = event.currentTarget.value;
    if (!chosen) return;
    text.value = chosen;
    event.currentTarget.value = "";
  };
  const open = (/** @type {import("./statements.js").SavedStatement} */ saved) => {
    typedParameters.value = { ...typedParameters.value, ...saved.params };
    text.value = saved.text;
  };
  const marked = wrongAt.value?.text === text.value ? wrongAt.value : null;
  return html`<div class="asking"><div class="statement">
    ${asOf.value === null ? null : html`<p class="note" role="status">${W.statementsNow(asOf.value)}</p>`}
    <${Editor} text=${text} label=${W.statement} words=${offered.value} run=${() => run()} wrong=${marked} recall=${recall} error=${wrong.value} />
    <${Parameters} statement=${text.value} />
    <p class="row">
      <button type="button" class="primary" disabled=${running.value} onClick=${() => run()}><${Icon} of=${Play} />${running.value ? W.running : W.run}</button>
      <button type="button" disabled=${running.value} onClick=${() => run(true)}>${W.plan}</button>
      <${SavedStatements} present=${{ text: text.value, params: typedParameters.value }} onOpen=${open} />
      ${before.length ? html`<select aria-label=${W.earlier} onChange=${again}><option value="">${W.earlier}</option>${before.map((one) => html`<option key=${one} value=${one}>${one.slice(0, 80)}</option>`)}</select>` : null}
      ${mayWrite.value ? html`<label class="check"><input type="checkbox" checked=${writing.value} onChange=${() => { writing.value = !writing.value; }} /> ${W.mayChange}</label>` : null}
      <label class="check"><input type="checkbox" checked=${remembers.value} onChange=${toggleRemembering} /> ${W.rememberStatements}</label>
    </p></div>
    <div class="answer">
    ${result.value ? html`<${Result} />` : wrong.value ? null : html`<p class="soft">${W.noResultYet}</p>`}</div></div>`;
}

function Result() {
  const { body, columns, rows, row_count, truncated, took_ms, changes, planned } = result.value;
  if (planned) return html`<${Plan} columns=${columns} rows=${rows} />`;
  const nulls = Object.entries(body.params ?? {}).filter(([, value]) => value === null).map(([name]) => `$${name}`);
  const tab = (/** @type {string} */ name, then = () => { how.value = name; }) => html`<button type="button" role="tab" aria-selected=${how.value === name} aria-controls="rows" onClick=${then}>${W.forms[name]}</button>`;
  return html`<p class="row"><span>${W.rowsFound(row_count, truncated)} <span class="soft">${number(Math.round(took_ms))} ms</span></span>
      <span role="tablist" aria-label=${W.form}>${tab("graph", showGraph)}${tab("table")}${tab("json")}</span>
      ${writing.value ? null : html`<button type="button" class="plain" onClick=${csv}>${W.csv}</button>`}</p>
    ${nulls.length ? html`<p class="note">${W.nullParameters(nulls)}</p>` : null}
    ${changes ? html`<p class="note">${Object.entries(changes).filter(([, value]) => value).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`).join(", ") || W.nothingChanged}</p>` : null}
    <div id="rows" role="tabpanel" aria-label=${W.forms[how.value]}>
      ${how.value === "json"
        ? html`<pre class="scroll rows" tabindex="0" role="region" aria-label=${W.rows}>${JSON.stringify(rows.slice(0, 200), null, 2)}</pre>`
        : how.value === "table" ? html`<${Rows} key=${result.value.took_ms} columns=${columns} rows=${rows} />` : html`<p class="soft">${W.isOnCanvas}</p>`}</div>`;
}

/** Plan of a statement: text from the engine, rows from the interpreter. @param {{columns: string[], rows: any[][]}} props */
const Plan = ({ columns, rows }) => html`<section aria-label=${W.plan}><p class="soft">${W.planText}</p>
  ${columns.length === 1 ? html`<pre class="scroll rows plan" tabindex="0" role="region" aria-label=${W.plan}>${rows.map(([row]) => row).join("\n")}</pre>` : html`<${Rows} columns=${columns} rows=${rows} />`}</section>`;

/** @param {{columns: string[], rows: any[][]}} props */
const Rows = ({ columns, rows }) => html`<${LongTable} label=${W.rows} columns=${columns.length} rows=${rows} keyOf=${(/** @type {any[]} */ _, /** @type {number} */ at) => String(at)}
  head=${columns.map((name, i) => html`<th scope="col" key=${i}>${name}</th>`)}>
  ${(/** @type {any[]} */ row) => row.map((value, i) => html`<td key=${i}>${cell(value)}</td>`)}<//>`;

/** Return the title of a node on the canvas. @param {string} id */
const titleOf = (id) => graph.nodes.get(id)?.label;

/** Return a value for a cell; a node as a link. @param {any} value */
function cell(value) {
  if (value?._label === "Entity") return html`<button type="button" class="link" title=${value.id} onClick=${() => showNode(value.id)}>${titleOf(value.id) ?? labelOf({ ...value, attributes: JSON.parse(value.attributes ?? "{}") })}</button>`;
  if (value?._label) return `${titleOf(value._from) ?? value._from} –${value.relation_type}→ ${titleOf(value._to) ?? value._to}`;
  return plain(value).slice(0, 500);
}
