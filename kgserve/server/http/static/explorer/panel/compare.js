// Comparison of two commits, with a table of differences.

import { html } from "../vendor/preact.js";
import { difference } from "../graph/time.js";
import { compared, look, looks, visible } from "../state.js";
import { W } from "../words.js";
import { useCommitTime } from "./past.js";
import { Mark } from "./legend.js";
import { LongTable } from "./rows.js";
import { first, last } from "./time.js";

/** @typedef {{node: import("../graph/model.js").Node, what: import("../graph/time.js").Difference}} Row */

/** Slider for one of the two commits. @param {{name: "before" | "after", two: {before: number, after: number}}} props */
function Side({ name, two }) {
  const when = useCommitTime(two[name]);
  return html`<label>${W[name]} <input type="range" min=${first.value} max=${last.value} step="1" value=${two[name]}
    aria-valuetext=${`${W.commit(two[name])}, ${when}`} onInput=${(/** @type {any} */ event) => { compared.value = { ...two, [name]: event.currentTarget.valueAsNumber }; }} />
    <output>${W.commit(two[name])} <span class="soft">${when}</span></output></label>`;
}

export function Compared() {
  const two = compared.value;
  if (!two) return null;
  const rows = [...visible.value.nodes.values()].map((node) => ({ node, what: difference(node, two.before, two.after) })).filter((row) => row.what !== "same");
  const edges = visible.value.edges.map((edge) => difference(edge, two.before, two.after));
  const count = (/** @type {string} */ what) => rows.filter((row) => row.what === what).length;
  const countEdges = (/** @type {string} */ what) => edges.filter((one) => one === what).length;
  return html`<section class="compared" aria-label=${W.compare}>
    ${["before", "after"].map((name) => html`<${Side} key=${name} name=${name} two=${two} />`)}
    <p>${["come", "gone", "changed"].map((what) => html`<span key=${what} class=${what}>${W.counted(what, count(what), countEdges(what))}</span> `)}</p>
    ${rows.length
      ? html`<${LongTable} label=${W.whatDiffers} columns=${2} rows=${rows} keyOf=${(/** @type {Row} */ { node }) => node.key} head=${W.differenceColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}>
          ${(/** @type {Row} */ { node, what }) => html`<td class=${what}>${W.differences[what]}</td><th scope="row"><${Mark} ...${looks.of(node.type)} /> <button type="button" class="link" onClick=${() => look(node.key)}>${node.label}</button> <span class="soft">${node.type}</span></th>`}<//>`
      : html`<p class="soft">${W.noDifference}</p>`}
    <button type="button" onClick=${() => { compared.value = null; }}>${W.stopComparing}</button>
  </section>`;
}
