// Memories of a store: their list, their numbers, and proposals of reflection with buttons to accept or refuse.

import { html, signal, useEffect, useState } from "../vendor/preact.js";
import { put } from "../load.js";
import { short } from "../graph/labels.js";
import { ask, memory } from "../server.js";
import { attempt, graph, mayWrite, say, selected, store, view } from "../state.js";
import { W } from "../view_words.js";
import { MemoryList } from "./memory_list.js";
import { Bar, number } from "./parts.js";
import { showNode } from "./search.js";

/** Runs with open proposals, newest first. */
const runs = signal(/** @type {{run: string, proposals: any[], linked: any[]}[]} */ ([]));
const RUNS = 20;
/** Visible part: `list`, `numbers`, `reflection`. */
const shown = signal("list");

/** Load the stored runs with their open proposals. */
async function readRuns() {
  const page = await ask("GET", memory(store.value, "nodes"), { query: { type: "reflection", limit: RUNS, valid_at: "any" } });
  const found = page.nodes.map((/** @type {any} */ node) => ({ run: node.id, proposals: node.attributes.proposals ?? [], linked: [], begun: node.created_at }));
  found.sort((/** @type {any} */ one, /** @type {any} */ other) => other.begun.localeCompare(one.begun));
  runs.value = found;
}

/** @param {any} body */
const reflect = (body) => ask("POST", "/api/v1/reflect", { query: { store: store.value }, body });

export function Memories() {
  const [numbers, setNumbers] = useState(/** @type {any} */ (null));
  const [types, setTypes] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    void attempt(async () => {
      const query = { store: store.value };
      const [all, byType] = await Promise.all([ask("GET", "/api/analytics/overview", { query }), ask("GET", "/api/analytics/types", { query }), readRuns()]);
      setNumbers(all);
      setTypes(byType.types);
    });
  }, [store.value]);
  const tabs = { list: () => html`<${MemoryList} types=${types.map((one) => one.memory_type)} />`, numbers: () => html`<${Numbers} numbers=${numbers} types=${types} />`, reflection: () => html`<${Reflection} />` };
  return html`<div class="scroll fill pad" tabindex="0" role="region" aria-label=${W.memories}>
    <header class="row"><h2>${W.memories}</h2> <div role="tablist" aria-label=${W.memories}>${Object.keys(tabs).map((name) => html`<button key=${name} type="button" role="tab" id=${`memories-${name}`} aria-selected=${shown.value === name} aria-controls="memories-part" onClick=${() => { shown.value = name; }}>${W.memoryTabs[name]}</button>`)}</div></header>
    <div role="tabpanel" id="memories-part" aria-labelledby=${`memories-${shown.value}`}>${tabs[shown.value]()}</div>
  </div>`;
}

/** @param {{numbers: any, types: any[]}} props */
function Numbers({ numbers, types }) {
  const most = Math.max(1, ...types.map((one) => one.count));
  return html`${numbers ? html`<dl class="wide">${Object.entries(numbers).filter(([, value]) => typeof value === "number").map(([name, value]) => html`<dt key=${name}>${name.replaceAll("_", " ")}</dt><dd>${number(Math.round(Number(value) * 100) / 100)}</dd>`)}</dl>` : null}
    ${types.length ? html`<table><caption>${W.memoryTypes}</caption><tbody>${types.map((one) => html`<tr key=${one.memory_type}><th scope="row">${one.memory_type}</th><td class="number">${number(one.count)}</td><td class="share"><${Bar} share=${one.count / most} label=${String(one.count)} /></td></tr>`)}</tbody></table>` : null}`;
}

const Reflection = () => html`<p>${W.reflectingText}</p>
  ${mayWrite.value ? html`<button type="button" onClick=${run}>${W.reflectNow}</button>` : null}
  ${runs.value.map((one) => html`<${Run} key=${one.run} one=${one} />`)}`;

const run = () =>
  attempt(async () => {
    const answer = await reflect({});
    say(W.reflected(answer.linked_count, answer.proposals_count));
    await readRuns();
    const mine = runs.value.find((one) => one.run === answer.run);
    if (mine) mine.linked = answer.linked;
    runs.value = [...runs.value];
  });

/** Accept or refuse a proposal of a run. @param {string} id @param {number} proposal @param {"accept" | "refuse"} what */
const settle = (id, proposal, what) =>
  attempt(async () => {
    await reflect({ run: id, [what]: [proposal] });
    say(what === "accept" ? W.accepted : W.wasRefused);
    await readRuns();
  });

const undo = (/** @type {string} */ id) =>
  attempt(async () => {
    const answer = await reflect({ run: id, undo: true });
    say(W.undone(answer.undone));
    await readRuns();
  });

/** @param {{one: {run: string, proposals: any[], linked: any[]}}} props */
function Run({ one }) {
  const show = (/** @type {string[]} */ ids) => {
    void put(ids).then(() => {
      selected.value = new Set(ids.filter((id) => graph.nodes.has(id)));
      view.value = "graph";
    });
  };
  return html`<section class="run" aria-label=${one.run}><h3 class="mono">${one.run}</h3>
    ${one.linked.length ? html`<ul>${one.linked.map((each) => html`<li key=${each.id}>${W.linkedBelow} <button type="button" class="link" onClick=${() => showNode(each.id)}>${each.id}</button> → <button type="button" class="link" onClick=${() => showNode(each.parent_id)}>${each.parent_id}</button> <span class="soft">${each.score.toFixed(2)}</span></li>`)}</ul>` : null}
    <ul class="proposals">${one.proposals.map((each) => html`<li key=${each.number}>
      <strong>${W.proposals[each.kind] ?? each.kind}</strong> ${each.name ? `“${each.name}” ` : ""}
      ${each.candidates?.length ? html`${W.belowOf} ${each.candidates.map((/** @type {any} */ id) => short(typeof id === "string" ? id : id.id)).join(", ")} ` : null}${each.differs ? html`<span class="soft">${each.differs}</span> ` : null}
      <button type="button" class="link" onClick=${() => show(each.ids)}>${W.theseMemories(each.ids.length)}</button>
      ${each.state === "open" && mayWrite.value
        ? html` <button type="button" onClick=${() => settle(one.run, each.number, "accept")}>${W.accept}</button> <button type="button" class="plain" onClick=${() => settle(one.run, each.number, "refuse")}>${W.refuse}</button>`
        : html` <em>${W.states[each.state] ?? each.state}</em>`}</li>`)}</ul>
    ${mayWrite.value ? html`<button type="button" class="plain small" onClick=${() => undo(one.run)}>${W.undoRun}</button>` : null}
  </section>`;
}
