// Loading of nodes onto the canvas, and their removal.

import { batch, signal } from "./vendor/preact.js";
import { MOST_NODES } from "./graph/model.js";
import { labelOf } from "./graph/labels.js";
import { applyArrangement } from "./link.js";
import { ask, memory, Refused } from "./server.js";
import { about, asOf, attempt, changed, compared, connecting, focus, graph, hiddenTypes, noPast, say, selected, store, stores, timeline, truncated, way } from "./state.js";
import { W } from "./words.js";

const FIELDS = ["label", "degree", "version", "valid", "tags", "layer", "confidence"];
const FIRST = 12;
export const FIRST_NODES = 300;
export const AN_EXPANSION = 50;
const DETAILED = 1000;
/** Maximum number of nodes to refresh. */
export const REFRESHED = 2000;
/** Maximum number of times an overview can grow. */
const ROUNDS = 9;
const BUCKETS = 120;
/** Milliseconds that the first picture waits for lifespans, because the history may still be catching up. */
const PATIENCE = 400;
/** Milliseconds until the lifespans of a large piece are requested, so that they do not delay its picture. */
const AFTER_PICTURE = 1000;
/** Number of times the canvas was cleared; responses to earlier requests are discarded. */
let turn = 0;
/** Latest request for statistics and settings, parallel to that for the graph. @type {Promise<void>} */
let aboutAsked = Promise.resolve();
/** Ids that were put on the canvas explicitly instead of the overview. */
export const chosenIds = signal(false);

/** Return a response, or throw an AbortError if the canvas was cleared meanwhile. @template T @param {Promise<T>} coming */
async function stillWanted(coming) {
  const mine = turn;
  const here = await coming;
  if (turn !== mine) throw new DOMException("the canvas was cleared", "AbortError");
  return here;
}

/** Request a piece of the graph, with lifespans if there are any. @param {any} wanted @returns {Promise<any>} */
export async function piece(wanted) {
  if (noPast.value) return present(wanted);
  try {
    return await present({ ...wanted, lives: true });
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 409) throw error;
    noPast.value = error.message;
    return present(wanted);
  }
}

/** Request a piece of the graph without lifespans. @param {any} wanted @returns {Promise<any>} */
const present = (wanted) => stillWanted(ask("POST", memory(store.value, "graph"), { body: { ...wanted, fields: FIELDS, valid_at: "any" } }));

const pause = (/** @type {number} */ milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Add the lifespans of a piece that is on the canvas. @param {Promise<any>} whole */
const addLater = (whole) => void whole.then((later) => {
  graph.take(later);
  changed();
}).catch(() => undefined);

/** Request the first piece; if its lifespans are slow or it is large, return it without them and add them later. @param {any} wanted @returns {Promise<any>} */
async function firstPiece(wanted) {
  if (wanted.max_nodes > FIRST_NODES && asOf.value === null && !compared.value && !noPast.value) {
    const quick = await present(wanted);
    // The server needs four times as long for lifespans.
    addLater(stillWanted(pause(AFTER_PICTURE)).then(() => piece(wanted)));
    return quick;
  }
  const whole = piece(wanted);
  const quick = await Promise.race([whole, pause(PATIENCE)]);
  if (quick) return quick;
  addLater(whole);
  return present(wanted);
}

/** Clear the canvas and the selection. */
export function clear() {
  turn++;
  graph.nodes.clear();
  graph.edges.clear();
  graph.around.clear();
  graph.fans.clear();
  chosenIds.value = false;
  batch(() => {
    selected.value = new Set();
    focus.value = "";
    way.value = [];
    truncated.value = false;
    changed();
  });
}

/** Reset the state of the previous store. */
export function leave() {
  clear();
  batch(() => {
    about.value = null;
    timeline.value = [];
    noPast.value = "";
    asOf.value = null;
    connecting.value = false;
  });
}

/** Load statistics and settings of the store, unless none is open any more. */
export function refreshAbout() {
  const name = store.value;
  if (!name) return Promise.resolve();
  aboutAsked = Promise.all([ask("GET", memory(name, "stats")), ask("GET", memory(name))]).then(([stats, settings]) => {
    if (store.value === name) about.value = { stats, settings };
  });
  return aboutAsked;
}

export async function refreshTimeline() {
  const name = store.value;
  if (!name) return;
  const found = await ask("GET", memory(name, "timeline"), { query: { buckets: BUCKETS } }).catch((error) => {
    if (error.status === 409) noPast.value = error.message;
    return null;
  });
  if (found && store.value === name) timeline.value = Array.isArray(found) ? found : found.buckets;
}

/** Add a response to the canvas; return the new nodes. @param {any} answer @param {string} [start] */
export function show(answer, start) {
  const fresh = graph.take(answer, start);
  applyArrangement(graph);
  changed();
  void conflicts(fresh);
  return fresh;
}

/** Return whether `more` nodes fit; if not, show an error. @param {number} more */
export function fits(more) {
  if (graph.nodes.size + more <= MOST_NODES) return true;
  say(W.tooMany(graph.nodes.size + more, MOST_NODES), true);
  return false;
}

/** Load the overview: all of a small store, else the nodes of highest degree with neighbours; each `round` loads more. @param {number} [round] @param {boolean} [whole] also of hidden types */
export const overview = (round = 0, whole = false) =>
  attempt(async () => {
    const most = Math.min(MOST_NODES, FIRST_NODES * 4 ** round);
    clear();
    rounds = round;
    const types = whole ? undefined : onlyShownTypes();
    chosenIds.value = Boolean(types);
    const answer = await firstPiece({ overview: Math.min(100, FIRST * 4 ** round), depth: 1 + round, max_nodes: most, types });
    await stillWanted(aboutAsked);
    const nodes = about.value?.stats.nodes ?? 0;
    show(answer);
    truncated.value = graph.nodes.size < nodes && round < ROUNDS;
    if (nodes > MOST_NODES && round && most >= MOST_NODES) say(W.tooMany(nodes, MOST_NODES), true);
  });

/** Return the visible types, or undefined if none is hidden. */
export function onlyShownTypes() {
  if (!hiddenTypes.value.size) return undefined;
  return Object.keys(about.value?.stats.types ?? {}).filter((type) => !hiddenTypes.value.has(type));
}

/** Number of times that the overview was enlarged. */
export let rounds = 0;

/** Enlarge the overview fourfold, up to the limit of the canvas, and keep the node in focus. */
export async function more() {
  const key = focus.value;
  await overview(rounds + 1);
  if (key && !graph.nodes.has(key)) await put([key], false);
  focus.value = key;
}

/** Add nodes to the canvas, with all edges among them and existing nodes. @param {string[]} ids @param {boolean} [chosen] false: in addition to the overview */
export const put = (ids, chosen = true) =>
  attempt(async () => {
    const fresh = ids.filter((id) => !graph.nodes.has(id));
    if (!fits(fresh.length)) return;
    chosenIds.value ||= chosen;
    const answer = await piece({ ids: [...own(), ...fresh] });
    await stillWanted(aboutAsked);
    show(answer);
    if (answer.missing?.length) say(W.missing(answer.missing), true);
  });

/** Return the ids of this store's nodes on the canvas. */
export const own = () => [...graph.nodes.values()].filter((node) => !node.store).map((node) => node.id);

/** Replace the canvas with a node and its neighbourhood. @param {string} id @param {number} depth */
export const around = (id, depth) =>
  attempt(async () => {
    clear();
    chosenIds.value = true;
    const answer = await piece({ around: [id], depth, per_node: AN_EXPANSION, max_nodes: FIRST_NODES });
    await stillWanted(aboutAsked);
    show(answer);
    if (graph.nodes.has(id)) focus.value = id;
    if (answer.missing?.length) say(W.missing(answer.missing), true);
  });

/** Expand or collapse a node. @param {string} key */
export const expand = async (key) => (await import("./expand.js")).expand(key);

/** Add nodes of the overview as of a commit that are not on the canvas, such as deleted ones. @param {number} sequence */
export const bringThen = (sequence) =>
  attempt(async () => {
    if (chosenIds.value || noPast.value) return;
    const body = { overview: FIRST, max_nodes: FIRST_NODES, as_of: sequence, valid_at: "any", fields: [], types: onlyShownTypes() };
    const then = await stillWanted(ask("POST", memory(store.value, "graph"), { body }));
    const gone = then.nodes.id.filter((/** @type {string} */ id) => !graph.nodes.has(id));
    if (!gone.length || chosenIds.value || graph.nodes.size + gone.length > MOST_NODES) return;
    graph.take(await piece({ ids: [...own(), ...gone] }));
    changed();
  });

/** Load conflicts of nodes, if the store keeps conflicts. @param {import("./graph/model.js").Node[]} nodes */
async function conflicts(nodes) {
  const wanted = nodes.filter((node) => !node.store).map((node) => node.id);
  if (about.value?.settings.conflict_policy !== "manual" || wanted.length > DETAILED) return;
  const name = store.value;
  for (let i = 0; i < wanted.length; i += 100) {
    const answer = await ask("POST", memory(name, "get"), { body: { ids: wanted.slice(i, i + 100), valid_at: "any" } }).catch(() => null);
    if (!answer || store.value !== name) return;
    for (const node of answer.nodes) detail(node);
  }
  changed();
}

/** Update conflict, layer, end and confidence of a node on the canvas. @param {any} row */
export function detail(row) {
  const node = graph.nodes.get(row.id);
  if (!node) return;
  node.conflict = Boolean(row.conflicts?.length);
  node.layer = row.layer ?? null;
  node.ended = row.ended ?? "";
  node.confidence = row.confidence === undefined ? null : left(row);
}

/** Return the confidence of a row after decay. @param {any} row */
function left(row) {
  const memorySettings = about.value?.settings.memory ?? {};
  const own = memorySettings.half_life_by_type?.[row.type];
  const days = own === undefined ? memorySettings.half_life_days : own;
  if (!days) return row.confidence;
  const age = (Date.now() - Date.parse(row.confidence_at ?? row.created_at)) / 86_400_000;
  return row.confidence * 0.5 ** (Math.max(0, age) / days);
}

/** Counter, incremented for writes that no event reported. */
export const missed = signal(0);

/** Load writes between the first request and the first event, if the number of commits has changed. */
export const catchUp = () =>
  attempt(async () => {
    const seen = stores.value?.find((one) => one.name === store.value)?.sequence;
    if (!about.value || (await ask("GET", memory(store.value, "stats"))).sequence === seen) return;
    missed.value++;
    void refreshAbout().then(() => refreshTimeline()).catch(() => undefined);
    if (graph.nodes.size <= REFRESHED) graph.freshen(await piece({ ids: own() }));
    changed();
  });

/** Number of memories of a store, from its statistics. */
export const memoryCount = signal({ store: "", count: 0 });

/** Update a node on the canvas after a write. @param {any} row as the server gives it */
export function refreshNode(row) {
  const node = graph.nodes.get(row.id);
  if (!node) return;
  Object.assign(node, {
    type: row.type, label: labelOf(row), version: row.version, tags: row.tags ?? [],
    validFrom: row.valid_from ? Date.parse(row.valid_from) : null, validTo: row.valid_to ? Date.parse(row.valid_to) : null,
  });
  const last = node.lives?.findIndex(([, to]) => to === null) ?? -1;
  if (node.lives && row.sequence && (last < 0 || node.lives[last][0] < row.sequence)) {
    if (last >= 0) node.lives[last] = [node.lives[last][0], row.sequence];
    node.lives.unshift([row.sequence, null]);
  }
  detail(row);
  changed();
}
