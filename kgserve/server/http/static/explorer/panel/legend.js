// Legend of types and relations, with counts, visibility toggles and colours.

import { html, signal } from "../vendor/preact.js";
import { more, overview } from "../load.js";
import { about, graph, hiddenRelations, hiddenTypes, looks, revision, truncated, view, visible } from "../state.js";
import { MOST_NODES } from "../graph/model.js";
import { W } from "../words.js";
import { LookChoice } from "./lazy.js";
import { number } from "./parts.js";

/** Maximum number of types in the closed legend. */
const KEYS = 8;
const opened = signal(false);

/** Count rows by type. @param {Iterable<{type: string}>} rows @returns {Map<string, number>} */
function counted(rows) {
  const counts = new Map();
  for (const { type } of rows) counts.set(type, (counts.get(type) ?? 0) + 1);
  return counts;
}

/** @param {import("../vendor/preact.js").Signal<Set<string>>} hidden @param {string} type */
function toggleType(hidden, type) {
  const next = new Set(hidden.value);
  if (!next.delete(type)) next.add(type);
  hidden.value = next;
}

const FORMS = { circle: "M5 0.7a4.3 4.3 0 1 1 0 8.6a4.3 4.3 0 1 1 0-8.6Z", square: "M1 1h8v8H1Z", triangle: "M5 .5L9.5 9h-9Z", hexagon: "M9.8 5L7.4 9.2H2.6L.2 5L2.6.8h4.8Z" };
/** Type whose colour and shape are being chosen. */
export const dressed = signal(/** @type {string | null} */ (null));

/** @param {{colour: number, shape: string}} props */
export const Mark = ({ colour, shape }) => html`<svg class="dot" data-colour=${colour} viewBox="0 0 10 10" aria-hidden="true"><path d=${FORMS[shape]} /></svg>`;

export function Legend() {
  revision.value;
  const stats = about.value?.stats;
  const [types, relations] = [counted(graph.nodes.values()), counted(graph.edges.values())];
  const byCount = (/** @type {Map<string, number>} */ counts) => [...counts].sort((one, other) => other[1] - one[1]);
  const hidden = graph.nodes.size - visible.value.nodes.size;
  const open = opened.value || view.value === "table";
  const toggle = (/** @type {Event} */ event) => {
    event.preventDefault();
    opened.value = !opened.value;
  };
  return html`<section class="legend" aria-label=${W.types}><details open=${open}>
    <summary onClick=${toggle}><h2>${W.types}</h2>${open ? null : byCount(types).slice(0, KEYS).map(([type]) => html`<span key=${type} class="key"><${Mark} ...${looks.of(type)} /> ${type || W.untyped}</span>`)}</summary>
    <ul>${byCount(types).map(([type, count]) => html`<li key=${type}>
      <label><input type="checkbox" checked=${!hiddenTypes.value.has(type)} onChange=${() => toggleType(hiddenTypes, type)} /> <span class="type">${type || W.untyped}</span></label>
      <span class="count" title=${W.ofAll(count, stats?.types[type])}>${number(count)}</span>
      <button type="button" class="plain small" aria-label=${W.recolour(type || W.untyped)} aria-expanded=${dressed.value === type} onClick=${() => { dressed.value = dressed.value === type ? null : type; }}><${Mark} ...${looks.of(type)} /></button>
      ${dressed.value === type ? html`<${LookChoice} />` : null}</li>`)}</ul>
    <h2>${W.relations}</h2>
    <ul>${byCount(relations).map(([type, count]) => html`<li key=${type}>
      <label><input type="checkbox" checked=${!hiddenRelations.value.has(type)} onChange=${() => toggleType(hiddenRelations, type)} /> <span class="type">${type}</span></label>
      <span class="count">${number(count)}</span></li>`)}</ul>
    <p class="soft">${W.onCanvas(visible.value.nodes.size, visible.value.edges.length)}${hidden ? ` ${W.notSeen(hidden)}` : ""}</p>
    ${stats ? html`<p class="soft">${W.inStore(stats.nodes, stats.edges)}</p>` : null}
    ${truncated.value && graph.nodes.size < MOST_NODES ? html`<button type="button" onClick=${more}>${W.showMore}</button>` : null}
    ${stats && stats.nodes > MOST_NODES ? html`<p class="note">${W.tooMany(stats.nodes, MOST_NODES)}</p>` : null}
    ${hiddenTypes.value.size && truncated.value ? html`<button type="button" onClick=${() => overview()}>${W.onlyThese}</button>` : null}
    <button type="button" class="plain" onClick=${() => overview()}>${W.beginAgain}</button>
  </details></section>`;
}
