// View of the memories of a store: list, entities, proposals and statistics.

import { html, useEffect, useState } from "../vendor/preact.js";
import { ask } from "../server.js";
import { attempt, store } from "../state.js";
import { W } from "../view_words.js";
import { Entities } from "./entities.js";
import { MemoryList } from "./memory_list.js";
import { memoryPart, written } from "./memory_state.js";
import { Bar, number } from "./parts.js";
import { Proposals } from "./proposals.js";

export function Memories() {
  const [numbers, setNumbers] = useState(/** @type {any} */ (null));
  const [types, setTypes] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    void attempt(async () => {
      const query = { store: store.value };
      const [all, byType] = await Promise.all([ask("GET", "/api/analytics/overview", { query }), ask("GET", "/api/analytics/types", { query })]);
      setNumbers(all);
      setTypes(byType.types);
    });
  }, [store.value, written.value]);
  const tabs = { list: () => html`<${MemoryList} types=${types.map((one) => one.memory_type)} />`, entities: () => html`<${Entities} />`, proposals: () => html`<${Proposals} />`, numbers: () => html`<${Numbers} numbers=${numbers} types=${types} />` };
  return html`<div class="scroll fill pad" tabindex="0" role="region" aria-label=${W.memories}>
    <header class="row"><h2>${W.memories}</h2> <div role="tablist" aria-label=${W.memories}>${Object.keys(tabs).map((name) => html`<button key=${name} type="button" role="tab" id=${`memories-${name}`} aria-selected=${memoryPart.value === name} aria-controls="memories-part" onClick=${() => { memoryPart.value = name; }}>${W.memoryTabs[name]}</button>`)}</div></header>
    <div role="tabpanel" id="memories-part" aria-labelledby=${`memories-${memoryPart.value}`}>${tabs[memoryPart.value]()}</div>
  </div>`;
}

/** @param {{numbers: any, types: any[]}} props */
function Numbers({ numbers, types }) {
  const most = Math.max(1, ...types.map((one) => one.count));
  return html`${numbers ? html`<dl class="wide">${Object.entries(numbers).filter(([, value]) => typeof value === "number").map(([name, value]) => html`<dt key=${name}>${name.replaceAll("_", " ")}</dt><dd>${number(Math.round(Number(value) * 100) / 100)}</dd>`)}</dl>` : null}
    ${types.length ? html`<table><caption>${W.memoryTypes}</caption><tbody>${types.map((one) => html`<tr key=${one.memory_type}><th scope="row">${one.memory_type}</th><td class="number">${number(one.count)}</td><td class="share"><${Bar} share=${one.count / most} label=${String(one.count)} /></td></tr>`)}</tbody></table>` : null}`;
}
