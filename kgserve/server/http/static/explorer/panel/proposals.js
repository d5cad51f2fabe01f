// Proposals to accept one by one: merges of duplicate memories, and results of reflection.

import { html, signal, useEffect } from "../vendor/preact.js";
import { put } from "../load.js";
import { short } from "../graph/labels.js";
import { ask, memory } from "../server.js";
import { attempt, graph, mayWrite, say, selected, store, view } from "../state.js";
import { W } from "../view_words.js";
import { acceptCluster, titlesOf, written } from "./memory_state.js";
import { time } from "./parts.js";
import { showNode } from "./search.js";

/** Reflection runs with their proposals, newest first. */
const runs = signal(/** @type {{run: string, begun: string, proposals: any[], linked: any[]}[]} */ ([]));
/** Past merge runs, newest first. */
const merges = signal(/** @type {any[]} */ ([]));
/** Clusters of duplicate memories, with their rows; null: no search yet. */
const clusters = signal(/** @type {any[] | null} */ (null));
/** Titles of the nodes that runs name. */
const titles = signal(/** @type {Map<string, string>} */ (new Map()));
const RUNS = 20;

/** Load the reflection and merge runs. */
async function readRuns() {
  const query = { store: store.value, limit: RUNS };
  const [page, merged] = await Promise.all([
    ask("GET", memory(store.value, "nodes"), { query: { type: "reflection", limit: RUNS, valid_at: "any" } }),
    ask("GET", "/api/memories/consolidations", { query }),
  ]);
  const found = page.nodes.map((/** @type {any} */ node) => ({ run: node.id, proposals: node.attributes.proposals ?? [], linked: [], begun: node.created_at }));
  found.sort((/** @type {any} */ one, /** @type {any} */ other) => other.begun.localeCompare(one.begun));
  runs.value = found;
  merges.value = merged.runs;
  await nameAll();
}

const idOf = (/** @type {any} */ one) => (typeof one === "string" ? one : one.id);
const titleOf = (/** @type {any} */ one) => titles.value.get(idOf(one)) ?? short(idOf(one));

/** Load the titles of the nodes that runs name. */
async function nameAll() {
  titles.value = await titlesOf(runs.value.flatMap(({ linked, proposals }) => [...linked.flatMap((each) => [each.id, each.parent_id]), ...proposals.flatMap((each) => (each.candidates ?? []).map(idOf))]));
}

export function Proposals() {
  useEffect(() => {
    clusters.value = null;
    void attempt(readRuns);
  }, [store.value]);
  return html`<section aria-label=${W.sameMemories}><h3>${W.sameMemories}</h3><p>${W.sameMemoriesText}</p>
      ${mayWrite.value ? html`<button type="button" onClick=${findClusters}>${W.findSame}</button>` : html`<p class="soft">${W.onlyWriters}</p>`}
      ${clusters.value === null ? null : clusters.value.length ? html`<ul class="proposals">${clusters.value.map((one) => html`<${Cluster} key=${one.primary.id} one=${one} />`)}</ul>` : html`<p role="status">${W.noneSame}</p>`}
      ${merges.value.length ? html`<h3>${W.mergeRuns}</h3><ul class="proposals">${merges.value.map((one) => html`<${MergeRun} key=${one.id} one=${one} />`)}</ul>` : null}</section>
    <section aria-label=${W.reflecting}><h3>${W.reflecting}</h3><p>${W.reflectingText}</p>
      ${mayWrite.value ? html`<button type="button" onClick=${run}>${W.reflectNow}</button>` : null}
      ${runs.value.map((one) => html`<${Run} key=${one.run} one=${one} />`)}</section>`;
}

const findClusters = () =>
  attempt(async () => {
    const plan = await ask("POST", "/api/memories/consolidate", { query: { store: store.value }, body: { dry_run: true } });
    const ids = plan.clusters.flatMap((/** @type {any} */ one) => [one.primary, ...one.absorbed]);
    const rows = new Map((ids.length ? (await ask("POST", memory(store.value, "get"), { body: { ids } })).nodes : []).map((/** @type {any} */ row) => [row.id, row]));
    clusters.value = plan.clusters
      .map((/** @type {any} */ one) => ({ ...one, primary: rows.get(one.primary), absorbed: one.absorbed.map((/** @type {string} */ id) => rows.get(id)).filter(Boolean) }))
      .filter((/** @type {any} */ one) => one.primary && one.absorbed.length);
  });

/** @param {{one: any}} props */
function Cluster({ one }) {
  const leave = () => {
    clusters.value = (clusters.value ?? []).filter((each) => each !== one);
  };
  const accept = () => attempt(async () => {
    await acceptCluster(one);
    leave();
  });
  return html`<li><strong>${W.becomeOne(one.absorbed.length + 1)}</strong> <span class="soft">${W.similarBy(one.similarity)}</span>
    <ul>${one.absorbed.map((/** @type {any} */ row) => html`<li key=${row.id}><del><button type="button" class="link" onClick=${() => showNode(row.id)}>${row.content}</button></del></li>`)}
      <li><ins>${one.content}</ins></li></ul>
    <button type="button" onClick=${accept}>${W.accept}</button> <button type="button" class="plain" onClick=${leave}>${W.leave}</button></li>`;
}

/** @param {{one: any}} props */
function MergeRun({ one }) {
  const undo = () => attempt(async () => {
    const answer = await ask("POST", `/api/memories/consolidations/${encodeURIComponent(one.id)}/undo`, { query: { store: store.value }, body: {} });
    written.value++;
    say(W.restoredMemories(answer.restored_count));
    await readRuns();
  });
  return html`<li>${time(one.started_at)} <span class="soft">${W.mergeTriggers[one.trigger]}</span> ${W.mergedCount(one.merged)}
    ${one.state === "done" && mayWrite.value ? html` <button type="button" class="plain small" onClick=${undo}>${W.undoRun}</button>` : html` <em>${W.mergeStates[one.state]}</em>`}
    ${one.suggestions.length ? html`<ul>${one.suggestions.map((/** @type {any} */ each) => html`<li key=${each.ids.join(" ")}><${Together} ids=${each.ids} /> <span class="soft">${W.similarBy(each.similarity)}</span></li>`)}</ul>` : null}</li>`;
}

/** Button that selects memories in the graph. @param {{ids: string[]}} props */
const Together = ({ ids }) => html`<button type="button" class="link" onClick=${() => show(ids)}>${W.theseMemories(ids.length)}</button>`;

const show = (/** @type {string[]} */ ids) => {
  void put(ids).then(() => {
    selected.value = new Set(ids.filter((id) => graph.nodes.has(id)));
    view.value = "graph";
  });
};

/** @param {any} body */
const reflect = async (body) => {
  const answer = await ask("POST", "/api/v1/reflect", { query: { store: store.value }, body });
  written.value++;
  return answer;
};

const run = () =>
  attempt(async () => {
    const answer = await reflect({});
    say(W.reflected(answer.linked_count, answer.proposals_count));
    await readRuns();
    const mine = runs.value.find((one) => one.run === answer.run);
    if (mine) mine.linked = answer.linked;
    runs.value = [...runs.value];
    await nameAll();
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

/** @param {{one: {run: string, begun: string, proposals: any[], linked: any[]}}} props */
const Run = ({ one }) => html`<section class="run" aria-label=${W.reflectionOf(time(one.begun))}><h3 title=${one.run}>${W.reflectionOf(time(one.begun))}</h3>
  ${one.linked.length ? html`<ul>${one.linked.map((each) => html`<li key=${each.id}>${W.linkedBelow} <button type="button" class="link" onClick=${() => showNode(each.id)}>${titleOf(each)}</button> → <button type="button" class="link" onClick=${() => showNode(each.parent_id)}>${titleOf(each.parent_id)}</button> <span class="soft">${each.score.toFixed(2)}</span></li>`)}</ul>` : null}
  <ul class="proposals">${one.proposals.map((each) => html`<li key=${each.number}>
    <strong>${W.proposals[each.kind] ?? each.kind}</strong> ${each.name ? `“${each.name}” ` : ""}
    ${each.candidates?.length ? html`${W.belowOf} ${each.candidates.map(titleOf).join(", ")} ` : null}${each.differs ? html`<span class="soft">${each.differs}</span> ` : null}
    <${Together} ids=${each.ids} />
    ${each.state === "open" && mayWrite.value
      ? html` <button type="button" onClick=${() => settle(one.run, each.number, "accept")}>${W.accept}</button> <button type="button" class="plain" onClick=${() => settle(one.run, each.number, "refuse")}>${W.refuse}</button>`
      : html` <em>${W.states[each.state] ?? each.state}</em>`}</li>`)}</ul>
  ${mayWrite.value ? html`<button type="button" class="plain small" onClick=${() => undo(one.run)}>${W.undoRun}</button>` : null}
</section>`;
