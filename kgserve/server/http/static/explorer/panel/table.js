// Table of the nodes on the canvas, also for screen readers.

import { computed, html, signal } from "../vendor/preact.js";
import { expand } from "../load.js";
import { choose, compared, focus, look, looks, selected, visible } from "../state.js";
import { difference } from "../graph/time.js";
import { W } from "../words.js";
import { Mark } from "./legend.js";
import { number, time } from "./parts.js";
import { LongTable } from "./rows.js";

const order = signal({ by: "degree", down: true });
const { compare: inWords } = new Intl.Collator();

/** @type {[string, (node: import("../graph/model.js").Node) => string | number | null][]} */
const COLUMNS = [
  ["label", (node) => node.label],
  ["type", (node) => node.type],
  ["degree", (node) => node.degree],
  ["version", (node) => node.version],
  ["validFrom", (node) => node.validFrom],
  ["validTo", (node) => node.validTo],
  ["confidence", (node) => node.confidence],
];

/** @param {any} one @param {any} other */
const compare = (one, other) => (one === other ? 0 : one === null ? 1 : other === null ? -1 : typeof one === "string" ? inWords(one, other) : one - other);

const memories = computed(() => [...visible.value.nodes.values()].some((node) => node.confidence !== null));
const columns = computed(() => COLUMNS.filter(([name]) => name !== "confidence" || memories.value));
const sorted = computed(() => {
  const { by, down } = order.value;
  const read = columns.value.find(([name]) => name === by)?.[1] ?? COLUMNS[0][1];
  return [...visible.value.nodes.values()].sort((one, other) => (down ? -1 : 1) * compare(read(one), read(other)));
});
/** Keys of nodes that can be collapsed, which removes the nodes that only they added. */
const expanded = computed(() => new Set([...visible.value.nodes.values()].flatMap(({ broughtBy }) => (broughtBy.size === 1 ? [...broughtBy] : []))));

export function Table() {
  const nodes = sorted.value;
  const by = (/** @type {string} */ name) => {
    order.value = { by: name, down: order.value.by === name ? !order.value.down : name === "degree" };
  };
  const two = compared.value;
  const change = (/** @type {import("../graph/model.js").Node} */ node) => (two ? difference(node, two.before, two.after) : "same");
  const head = html`<th scope="col"><span class="hidden">${W.chosen}</span></th>
    ${columns.value.map(([name]) => html`<th key=${name} scope="col" aria-sort=${order.value.by === name ? (order.value.down ? "descending" : "ascending") : "none"}>
      <button type="button" class="plain small" onClick=${() => by(name)}>${W.columns[name]}</button></th>`)}
    ${two ? html`<th scope="col">${W.change}</th>` : null}<th scope="col">${W.actions}</th>`;
  return html`<${LongTable} big label=${W.table} caption=${W.onCanvas(nodes.length, visible.value.edges.length)} head=${head} columns=${columns.value.length + (two ? 3 : 2)} rows=${nodes}
    keyOf=${(/** @type {import("../graph/model.js").Node} */ node) => node.key} classOf=${(/** @type {import("../graph/model.js").Node} */ node) => (focus.value === node.key ? "current" : "")}>
    ${(/** @type {import("../graph/model.js").Node} */ node) => html`<td><input type="checkbox" checked=${selected.value.has(node.key)} aria-label=${W.choose(node.label)} onChange=${() => choose(node.key)} /></td>
      <th scope="row"><button type="button" class="link" onClick=${() => look(node.key)}>${node.label}</button></th>
      <td><${Mark} ...${looks.of(node.type)} /> ${node.type}</td><td class="number">${number(node.degree)}</td><td class="number">${number(node.version)}</td>
      <td>${node.validFrom === null ? "" : time(node.validFrom)}</td><td>${node.validTo === null ? "" : time(node.validTo)}</td>
      ${memories.value ? html`<td class="number">${node.confidence === null ? "" : node.confidence.toFixed(2)}</td>` : null}
      ${two ? html`<td class=${change(node)}>${W.differences[change(node)]}</td>` : null}
      <td>${node.store ? null : html`<button type="button" class="plain small" onClick=${() => expand(node.key)} aria-label=${W.expandNode(node.label, expanded.value.has(node.key))}>${expanded.value.has(node.key) ? "−" : "+"}</button>`}</td>`}<//>`;
}
