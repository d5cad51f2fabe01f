// The same selection as the canvas, as a table: what screen readers get, and whoever would rather read.

import { html, signal } from "../vendor/preact.js";
import { expand } from "../load.js";
import { choose, compared, focus, graph, look, looks, selected, visible } from "../state.js";
import { difference } from "../graph/time.js";
import { W } from "../words.js";
import { Mark } from "./legend.js";
import { number, Pages, time } from "./parts.js";

const order = signal({ by: "degree", down: true });
const page = signal(0);

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
const compare = (one, other) => (one === other ? 0 : one === null ? 1 : other === null ? -1 : typeof one === "string" ? one.localeCompare(other) : one - other);

export function Table() {
  const nodes = [...visible.value.nodes.values()];
  const memories = nodes.some((node) => node.confidence !== null);
  const columns = COLUMNS.filter(([name]) => name !== "confidence" || memories);
  const read = columns.find(([name]) => name === order.value.by)?.[1] ?? columns[0][1];
  nodes.sort((one, other) => (order.value.down ? -1 : 1) * compare(read(one), read(other)));
  const by = (/** @type {string} */ name) => {
    order.value = { by: name, down: order.value.by === name ? !order.value.down : name === "degree" };
    page.value = 0;
  };
  const two = compared.value;
  return html`<div class="scroll fill" tabindex="0" role="region" aria-label=${W.table}>
    <${Pages} rows=${nodes} page=${page}>${(/** @type {import("../graph/model.js").Node[]} */ rows) => html`<table>
      <caption class="hidden">${W.onCanvas(nodes.length, visible.value.edges.length)}</caption>
      <thead><tr><th scope="col"><span class="hidden">${W.chosen}</span></th>
        ${columns.map(([name]) => html`<th key=${name} scope="col" aria-sort=${order.value.by === name ? (order.value.down ? "descending" : "ascending") : "none"}>
          <button type="button" class="plain small" onClick=${() => by(name)}>${W.columns[name]}</button></th>`)}
        ${two ? html`<th scope="col">${W.change}</th>` : null}<th scope="col">${W.actions}</th></tr></thead>
      <tbody>${rows.map((node) => html`<tr key=${node.key} class=${focus.value === node.key ? "current" : ""}>
        <td><input type="checkbox" checked=${selected.value.has(node.key)} aria-label=${W.choose(node.label)} onChange=${() => choose(node.key)} /></td>
        <th scope="row"><button type="button" class="link" onClick=${() => look(node.key)}>${node.label}</button></th>
        <td><${Mark} ...${looks.of(node.type)} /> ${node.type}</td><td class="number">${number(node.degree)}</td><td class="number">${number(node.version)}</td>
        <td>${node.validFrom === null ? "" : time(node.validFrom)}</td><td>${node.validTo === null ? "" : time(node.validTo)}</td>
        ${memories ? html`<td class="number">${node.confidence === null ? "" : node.confidence.toFixed(2)}</td>` : null}
        ${two ? html`<td class=${difference(node, two.before, two.after)}>${W.differences[difference(node, two.before, two.after)]}</td>` : null}
        <td>${node.store ? null : html`<button type="button" class="plain small" onClick=${() => expand(node.key)} aria-label=${W.expandNode(node.label, graph.broughtOnlyBy(node.key).length > 0)}>${graph.broughtOnlyBy(node.key).length ? "−" : "+"}</button>`}</td></tr>`)}
      </tbody></table>`}<//></div>`;
}

