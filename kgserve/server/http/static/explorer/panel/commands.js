// Commands of the command bar. Loaded when the bar is first used.

import { html } from "../vendor/preact.js";
import { ArrowLeft, CircleQuestionMark, Clock, Database, GitCompareArrows, KeyRound, Plus, Search, SquareTerminal, Waypoints } from "../vendor/icons.js";
import { labelOf } from "../graph/labels.js";
import { overview } from "../load.js";
import { asOf, cypherOpen, helpOpen, keyOpen, looks, mayWrite, searchText, sheet, store, stores, timeOpen, tourStep, visible } from "../state.js";
import { W } from "../words.js";
import { canvas } from "./canvas.js";
import { Mark } from "./legend.js";
import { ADDITIONS, add, hasDrawer, offeredViews, openView, VIEWS } from "./navigation.js";
import { Icon } from "./parts.js";
import { focusPanel, found, runSearch, showNode } from "./search.js";
import { compareAll } from "./time.js";

/** @typedef {{key: string, group: string, label: string, note?: string, icon: any, run: () => void}} Command */

const NODES = 6;
const STORES = 5;
const ADDITION_KEYS = { node: "N", edge: "E" };
export const CYPHER = /^\s*(optional\s+match|match|call|return|unwind|with|create|merge)\b/i;

/** Search and focus the hits. */
async function searchAll() {
  await runSearch();
  focusPanel();
}

function openCypher() {
  if (!hasDrawer()) openView("graph");
  sheet.value = "middle";
  cypherOpen.value = true;
}

/** @param {string} query */
async function runCypher(query) {
  openCypher();
  searchText.value = "";
  found.value = null;
  await (await import("./cypher.js")).runStatement(query);
}

/** Return the actions of a store. @returns {Command[]} */
function storeActions() {
  const action = (/** @type {string} */ key, /** @type {any} */ icon, /** @type {() => void} */ run, note = "") => ({ key, group: "actions", label: W.actionNames[key], icon, note, run });
  const views = offeredViews().map((name) => ({ key: name, group: "actions", label: W.goTo(W.viewNames[name]), icon: html`<${Icon} of=${VIEWS[name]} />`, run: () => openView(name) }));
  const look = (/** @type {() => void} */ then) => () => {
    if (!hasDrawer()) openView("graph");
    then();
  };
  return [
    action("cypher", html`<${Icon} of=${SquareTerminal} />`, openCypher, "C"),
    action("time", html`<${Icon} of=${Clock} />`, look(() => { timeOpen.value = true; }), "T"),
    action("compare", html`<${Icon} of=${GitCompareArrows} />`, look(compareAll)),
    ...(asOf.value === null ? [] : [action("now", html`<${Icon} of=${ArrowLeft} />`, () => { asOf.value = null; })]),
    action("fit", html`<${Icon} of=${Waypoints} />`, look(() => canvas.fit()), "0"),
    action("overview", html`<${Icon} of=${Waypoints} />`, look(() => void overview())),
    ...views,
    ...(mayWrite.value ? ADDITIONS.map((key) => ({ key, group: "actions", label: W.addNames[key], icon: html`<${Icon} of=${Plus} />`, note: ADDITION_KEYS[key], run: () => void add(key) })) : []),
    action("tour", html`<${Icon} of=${CircleQuestionMark} />`, () => { tourStep.value = 1; }),
  ];
}

/** Return nodes that match a text: those of the canvas by title at once, then the hits of the search. @param {string} text @returns {{id: string, label: string, type: string}[]} */
function nodesLike(text) {
  const like = text.toLowerCase();
  const near = [...visible.value.nodes.values()].filter((node) => !node.store && node.label.toLowerCase().includes(like)).slice(0, NODES);
  const hits = (found.value?.hits ?? []).map(({ node }) => ({ id: node.id, label: labelOf(node), type: node.type }));
  return [...new Map([...near, ...hits].map((node) => [node.id, node])).values()].slice(0, NODES);
}

/** Return the commands that match the typed text. @returns {Command[]} */
export function listCommands() {
  const text = searchText.value.trim();
  const fits = (/** @type {Command} */ one) => one.label.toLowerCase().includes(text.toLowerCase());
  const named = (stores.value ?? []).filter((one) => one.name !== store.value).map((one) => ({
    key: `store ${one.name}`, group: "stores", label: one.name, icon: html`<${Icon} of=${Database} />`, run: () => { location.hash = `#/${encodeURIComponent(one.name)}`; },
  }));
  const everywhere = [
    { key: "help", group: "actions", label: W.help, note: "?", icon: html`<${Icon} of=${CircleQuestionMark} />`, run: () => { helpOpen.value = true; } },
    { key: "key", group: "actions", label: W.whoAmI, icon: html`<${Icon} of=${KeyRound} />`, run: () => { keyOpen.value = true; } },
  ];
  const actions = [...(store.value ? storeActions() : []), ...everywhere].filter(fits);
  const places = named.filter(fits).slice(0, STORES);
  if (!store.value || !text) return [...(store.value ? actions : places), ...(store.value ? places : actions)];
  const hits = nodesLike(text).map(({ id, label, type }) => ({
    key: `node ${id}`, group: "nodes", label, note: type, icon: html`<${Mark} ...${looks.of(type)} />`, run: () => void showNode(id),
  }));
  const cypher = CYPHER.test(text) ? [{ key: "ask", group: "search", label: W.askCypher(text), icon: html`<${Icon} of=${SquareTerminal} />`, run: () => void runCypher(text) }] : [];
  const search = { key: "search", group: "search", label: W.searchFor(text), icon: html`<${Icon} of=${Search} />`, run: () => void searchAll() };
  return [...cypher, search, ...hits, ...actions, ...places];
}

/** Return the command for Enter without a choice: run a statement, otherwise search. @returns {(() => void) | undefined} */
export function defaultCommand() {
  const [top] = listCommands();
  const text = searchText.value;
  if (!text.trim() || !store.value || (top?.key === "ask" && text.includes("("))) return top?.run;
  return () => void searchAll();
}
