// Reading of links: the view in the URL fragment, with the arrangement of the canvas (pins, hidden nodes, colours).
// It never contains the API key, except the one passed at the start.

import { looks } from "./state.js";

/**
 * @typedef {object} Link
 * @property {string} store the empty text is the list of stores
 * @property {string[]} ids what is on the canvas; empty: the overview
 * @property {string} start @property {number} depth @property {number} more how often the overview was enlarged
 * @property {number | null} asOf @property {string} validAt `now`, `any`, or a time @property {string} compare two commits, such as `3-8`
 * @property {string} query @property {string} node @property {string} edge its key on the canvas @property {string} view
 * @property {string} part tab of the memories @property {string} entity @property {string} filter of the memories, as in a query
 * @property {string[]} types hidden ones @property {string[]} relations hidden ones
 * @property {[number, number][]} places of `ids`, in their order; empty: the layout finds them
 * @property {Map<string, [number, number]>} pins @property {string[]} hidden ids
 * @property {[number, number, number] | null} camera the middle, and pixels a unit @property {string} looks chosen colours and shapes
 */

/** Texts of a link, by their names in it. */
export const TEXTS = { start: "start", valid_at: "validAt", compare: "compare", q: "query", node: "node", edge: "edge", view: "view", tab: "part", entity: "entity", filter: "filter" };
/** @type {Link} */
export const EMPTY = { store: "", ids: [], start: "", depth: 1, more: 0, asOf: null, validAt: "now", compare: "", query: "", node: "", edge: "", view: "graph", part: "list", entity: "", filter: "", types: [], relations: [], places: [], pins: new Map(), hidden: [], camera: null, looks: "" };
const DEEPEST = 5;

/** @param {string} fragment with or without `#` @returns {Link} */
export function parse(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const given = new URLSearchParams(query);
  const whole = (/** @type {string} */ name) => Number.parseInt(given.get(name) ?? "", 10);
  const asOf = whole("as_of");
  return {
    ...EMPTY,
    ...Object.fromEntries(Object.entries(TEXTS).map(([name, property]) => [property, given.get(name) || EMPTY[property]])),
    edge: edgeIn(given.get("edge") ?? ""),
    store: decoded(path),
    ids: list(given.getAll("ids").join(",")).map(decoded),
    depth: Math.min(DEEPEST, Math.max(1, whole("depth") || 1)),
    more: Math.max(0, whole("more") || 0),
    asOf: asOf >= 0 ? asOf : null,
    types: given.getAll("hide_type"),
    relations: given.getAll("hide_relation"),
    places: list(given.get("places")).map((one) => /** @type {[number, number]} */ (numbers(one, "_", 2) ?? [0, 0])),
    pins: new Map(list(given.get("pins")).flatMap((one) => {
      const [, id, place] = one.match(/^(.*)\.(-?\d+_-?\d+)$/) ?? [];
      const at = numbers(place ?? "", "_", 2);
      return at ? [/** @type {[string, [number, number]]} */ ([decoded(id), at])] : [];
    })),
    hidden: list(given.get("hidden")).map(decoded),
    camera: /** @type {[number, number, number] | null} */ (numbers(given.get("camera") ?? "", "_", 3)),
    looks: given.get("looks") ?? "",
  };
}

/** Return the key of an edge, or the empty text. @param {string} text */
function edgeIn(text) {
  try {
    const [from, type, to] = JSON.parse(text);
    return JSON.stringify([from, type, to].map(String));
  } catch {
    return "";
  }
}

/** Return the parts of a text between commas. @param {string | null} text */
const list = (text) => (text ?? "").split(",").filter(Boolean);

/** Return exactly `count` finite numbers, or null. @param {string} text @param {string} between @param {number} count */
function numbers(text, between, count) {
  const found = text.split(between).map(Number);
  return text && found.length === count && found.every((one) => Number.isFinite(one) && Math.abs(one) < 1e6) ? found : null;
}

/** Return the API key that `kgserve open` passes. @param {string} fragment @returns {string} */
export const keyIn = (fragment) => new URLSearchParams(fragment.split(/\?(.*)/s)[1] ?? "").get("key") ?? "";

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Arrangement of the opened link, until its nodes are loaded. @type {Pick<Link, "ids" | "places" | "pins" | "hidden"> | null} */
let pending = null;
/** Camera of the opened link, until a canvas uses it. @type {Link["camera"]} */
let camera = null;

/** Return the key of a store's looks in local storage. */
export const keptLooks = (/** @type {string} */ name) => `kgserve-looks ${name}`;

/** Read the arrangement of a link. Its colours override those saved in this browser. @param {Link} link */
export function openArrangement(link) {
  pending = link.places.length || link.pins.size || link.hidden.length ? link : null;
  camera = link.camera;
  looks.parse(link.looks || localStorage.getItem(keptLooks(link.store)) || "");
}

/** Apply the pending arrangement to loaded nodes. @param {import("./graph/model.js").Graph} graph */
export function applyArrangement({ nodes }) {
  const link = pending;
  pending = null;
  link?.ids.forEach((id, i) => {
    const node = nodes.get(id);
    if (node && link.places[i]) Object.assign(node, { x: link.places[i][0], y: link.places[i][1], placed: true });
  });
  for (const [id, [x, y]] of link?.pins ?? []) {
    const node = nodes.get(id);
    if (node) Object.assign(node, { x, y, placed: true, pinned: true });
  }
  for (const id of link?.hidden ?? []) {
    const node = nodes.get(id);
    if (node) node.hidden = true;
  }
}

/** Return the camera of the link, once; null: none, or already taken. */
export function takeCamera() {
  const taken = camera;
  camera = null;
  return taken;
}
