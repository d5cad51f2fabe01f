// Memory fields of a node: confidence, parents, children and former validity.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { ask } from "../server.js";
import { asOf, attempt, store } from "../state.js";
import { W } from "../view_words.js";
import { Fading } from "./fading.js";
import { MemoryActions } from "./memory_actions.js";
import { written } from "./memory_state.js";
import { time } from "./parts.js";
import { showNode } from "./search.js";

const SHOWN = 50;

/** @param {{answer: any}} props details of a node that is a memory */
export function MemoryFacts({ answer }) {
  const row = answer.node;
  const [known, setKnown] = useState(/** @type {{memory: any, above: any[], below: any[]} | null} */ (null));
  const then = asOf.value;
  useEffect(() => {
    const id = encodeURIComponent(row.id);
    const query = { store: store.value, as_of: then };
    void attempt(async () => {
      // Viewing is not an access, so `touch` is false.
      // A withdrawn memory has no place in the hierarchy; a forgotten one is only a node.
      const [one, above, below] = await Promise.all([
        then === null && row.ended !== "forgotten" ? ask("GET", `/api/memories/${id}`, { query: { store: store.value, touch: false } }).catch(() => null) : null,
        row.ended ? [] : ask("GET", `/api/v1/memories/${id}/ancestors`, { query }).catch(() => []),
        row.ended ? [] : ask("GET", `/api/v1/memories/${id}/children`, { query: { ...query, limit: SHOWN } }).catch(() => []),
      ]);
      setKnown({ memory: one, above, below });
    });
  }, [answer, then, written.value]);
  const sure = known?.memory?.effective_confidence;
  const name = (/** @type {any} */ one) => html`<button type="button" class="link" onClick=${() => showNode(one.id)}>${labelOf(one)}</button>`;
  return html`<h3>${W.memory}</h3><dl>
    ${row.ended ? html`<dt>${W.endedAs}</dt><dd>${W.endings[row.ended] ?? row.ended}</dd>` : null}
    ${sure === undefined ? null : html`<dt>${W.confidence}</dt><dd>${sure.toFixed(2)} <${Fading} memory=${known?.memory} /></dd>`}
    ${row.layer === undefined ? null : html`<dt>${W.layer}</dt><dd>${row.layer} ${W.layers[row.layer] ?? ""}</dd>`}
    ${row.former_from || row.former_to ? html`<dt>${W.wasTrue}</dt><dd>${W.fromTo(row.former_from ? time(row.former_from) : W.always, row.former_to ? time(row.former_to) : W.open)}</dd>` : null}
    ${known?.memory?.access_count ? html`<dt>${W.uses}</dt><dd>${W.usedTimes(known.memory.access_count, time(known.memory.last_accessed_at))}</dd>` : null}
    ${known?.above.length ? html`<dt>${W.parents}</dt><dd><ol class="chain">${known.above.map((one) => html`<li key=${one.id}>${name(one)}</li>`)}</ol></dd>` : null}
    ${known?.below.length ? html`<dt>${W.children}</dt><dd><ul class="edges">${known.below.map((one) => html`<li key=${one.id}>${name(one)}</li>`)}</ul></dd>` : null}
  </dl>
  ${known?.memory && !then ? html`<${MemoryActions} row=${known.memory} />` : null}`;
}
