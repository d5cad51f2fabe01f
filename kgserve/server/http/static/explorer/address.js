// Writing of links: the view is kept in the URL, and its steps in the browser's history. Loaded after the first picture.

import { effect } from "./vendor/preact.js";
import { EMPTY, parse, TEXTS } from "./link.js";
import { chosenIds, own, rounds } from "./load.js";
import { go, opening } from "./session.js";
import { about, asOf, compared, focus, graph, hiddenRelations, hiddenTypes, looks, lost, memoryFilter, memoryPart, openEdge, openEntity, revision, searchText, store, validAt, view } from "./state.js";

/** @typedef {import("./link.js").Link} Link */

/** Properties of a link whose changes are steps of the browser's history. */
const STEPS = ["asOf", "compare", "node", "edge", "view", "part", "entity"];
/** Minimum milliseconds between two steps, and between two writes of the URL, which browsers limit. */
const STEP_MS = 500;
const WRITE_MS = 300;

/** @param {Partial<Link>} link @returns {string} */
export function format(link) {
  const all = { ...EMPTY, ...link };
  const { store, ids, depth, more, asOf, types, relations, places, pins, hidden, camera, looks } = all;
  const place = (/** @type {[number, number]} */ at) => at.map(Math.round).join("_");
  const words = new URLSearchParams();
  if (ids.length) words.set("ids", ids.map(encodeURIComponent).join(","));
  if (all.start && depth !== EMPTY.depth) words.set("depth", String(depth));
  if (more) words.set("more", String(more));
  if (asOf !== null) words.set("as_of", String(asOf));
  for (const [name, property] of Object.entries(TEXTS)) if (all[property] !== EMPTY[property]) words.set(name, all[property]);
  for (const type of types) words.append("hide_type", type);
  for (const type of relations) words.append("hide_relation", type);
  if (places.length) words.set("places", places.map(place).join(","));
  if (pins.size) words.set("pins", [...pins].map(([id, at]) => `${encodeURIComponent(id)}.${place(at)}`).join(","));
  if (hidden.length) words.set("hidden", hidden.map(encodeURIComponent).join(","));
  if (camera) words.set("camera", camera.map((one) => Math.round(one * 1000) / 1000).join("_"));
  if (looks) words.set("looks", looks);
  return `#/${encodeURIComponent(store)}${words.size ? `?${words}` : ""}`;
}

/** Return the current arrangement for the URL. @returns {Partial<Link>} */
export function arrangement() {
  const own = [...graph.nodes.values()].filter((node) => !node.store);
  return {
    pins: new Map(own.filter((node) => node.pinned).map((node) => [node.id, [node.x, node.y]])),
    hidden: own.filter((node) => node.hidden).map((node) => node.id),
    looks: looks.format(),
  };
}

/** Return what a link says about the canvas. @param {Link} link */
const canvasOf = ({ ids, start, depth, more, places, pins, hidden, camera }) => format({ ids, start, depth, more, places, pins, hidden, camera });

/** Return the URL fragment of the current view. @returns {string} */
export function here() {
  if (!store.value) return "#/";
  const [two, ids] = [compared.value, chosenIds.value ? own() : []];
  return format({
    store: store.value, ids, more: ids.length ? 0 : rounds, asOf: asOf.value, validAt: validAt.value, compare: two ? `${two.before}-${two.after}` : "",
    query: searchText.value, node: graph.nodes.get(focus.value)?.store ? "" : focus.value, edge: openEdge.value, view: view.value,
    part: memoryPart.value, entity: openEntity.value, filter: memoryFilter.value, types: [...hiddenTypes.value], relations: [...hiddenRelations.value], ...arrangement(),
  });
}

/** Fragment that was opened or written; another one is about to be opened. */
let known = location.hash;
/** When the URL was written, and when the view last took a step, in milliseconds. */
let [written, stepped] = [0, 0];

/** Write the view to the URL: as a new entry of the browser's history, if it is a step. @param {string} [opened] URL that was just opened, so that nothing is a step; another one may be in the meantime */
export function write(opened) {
  if (opened === location.hash) known = opened;
  const now = here();
  if (opening || !store.value || known !== location.hash || now === known) return;
  const [before, after] = [parse(known), parse(now)];
  written = Date.now();
  // A node that was deleted is no step: there is no way back.
  const isStep = STEPS.some((name) => after[name] !== before[name] && (name !== "node" || after.node));
  history[opened === undefined && isStep && written - stepped > STEP_MS ? "pushState" : "replaceState"](null, "", now);
  known = location.hash;
  if (isStep) stepped = written;
}

/** Show what the URL says, unless it is shown. */
export function reopenAddress() {
  known = location.hash;
  const link = parse(location.hash);
  if (location.hash !== here()) void go(link, link.store === store.value && Boolean(about.value) && !lost.value && canvasOf(link) === canvasOf(parse(here())));
}

/** Timer until the URL is written; 0: none. */
let waiting = 0;

/** Write a link to the URL, instead of the view. @param {string} link */
export function replaceAddress(link) {
  clearTimeout(waiting);
  waiting = 0;
  history.replaceState(null, "", link);
  known = location.hash;
}

effect(() => {
  revision.value, store.value, asOf.value, validAt.value, searchText.value, focus.value, view.value, compared.value, openEdge.value;
  memoryPart.value, openEntity.value, memoryFilter.value, hiddenTypes.value, hiddenRelations.value;
  if (!waiting) waiting = setTimeout(() => {
    waiting = 0;
    write();
  }, Math.max(0, written + WRITE_MS - Date.now()));
});
