// Storage of a store by part, largest first.

import { html } from "../vendor/preact.js";
import { W } from "../view_words.js";
import { Bar, bytes } from "./parts.js";

/** Return the sizes in bytes by part. @param {any} stats @returns {[string, number][]} */
function partsOf(stats) {
  const parts = /** @type {[string, number | undefined][]} */ ([
    [W.journal, stats.journal_bytes], [W.engine, stats.engine_bytes], [W.engineLog, stats.engine_log_bytes], [W.pastStates, stats.history?.bytes],
    ...stats.indexes.map((/** @type {any} */ one) => [W.indexNamed(one.name), one.bytes]),
  ]);
  return parts.flatMap(([name, size]) => (size ? [/** @type {[string, number]} */ ([name, size])] : [])).sort((one, other) => other[1] - one[1]);
}

/** @param {{stats: any}} props */
export function StorageParts({ stats }) {
  const parts = partsOf(stats);
  const all = parts.reduce((sum, [, size]) => sum + size, 0);
  if (!all) return null;
  return html`<table><caption>${W.storageOf(bytes(all))}</caption><tbody>${parts.map(([name, size]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${bytes(size)}</td>
    <td class="share"><${Bar} share=${size / all} label=${W.ofStorage(Math.round((100 * size) / all))} /></td></tr>`)}</tbody></table>`;
}
