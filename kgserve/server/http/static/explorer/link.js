// Conversion of the view to and from the URL fragment. It never contains the API key, except the one passed at the start.

/**
 * @typedef {object} Link
 * @property {string} store the empty text is the list of stores
 * @property {string[]} ids what is on the canvas; empty: the overview
 * @property {string} start @property {number} depth
 * @property {number | null} asOf @property {string} validAt `now`, `any`, or a time
 * @property {string} query @property {string} node @property {string} view
 * @property {[number, number][]} places of `ids`, in their order; empty: the layout finds them
 * @property {Map<string, [number, number]>} pins @property {string[]} hidden ids
 * @property {[number, number, number] | null} camera the middle, and pixels a unit @property {string} looks chosen colours and shapes
 */

/** @type {Link} */
const EMPTY = { store: "", ids: [], start: "", depth: 1, asOf: null, validAt: "now", query: "", node: "", view: "graph", places: [], pins: new Map(), hidden: [], camera: null, looks: "" };
const DEEPEST = 5;

/** @param {string} fragment with or without `#` @returns {Link} */
export function parse(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const given = new URLSearchParams(query);
  const asOf = Number.parseInt(given.get("as_of") ?? "", 10);
  return {
    store: decoded(path),
    ids: list(given.getAll("ids").join(",")).map(decoded),
    start: given.get("start") ?? "",
    depth: Math.min(DEEPEST, Math.max(1, Number.parseInt(given.get("depth") ?? "", 10) || EMPTY.depth)),
    asOf: asOf >= 0 ? asOf : null,
    validAt: given.get("valid_at") || EMPTY.validAt,
    query: given.get("q") ?? "",
    node: given.get("node") ?? "",
    view: given.get("view") || EMPTY.view,
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

/** Return the parts of a text between commas. @param {string | null} text */
const list = (text) => (text ?? "").split(",").filter(Boolean);

/** Return exactly `count` finite numbers, or null. @param {string} text @param {string} between @param {number} count */
function numbers(text, between, count) {
  const found = text.split(between).map(Number);
  return text && found.length === count && found.every((one) => Number.isFinite(one) && Math.abs(one) < 1e6) ? found : null;
}

/** @param {Partial<Link>} link @returns {string} */
export function format(link) {
  const { store, ids, start, depth, asOf, validAt, query, node, view, places, pins, hidden, camera, looks } = { ...EMPTY, ...link };
  const place = (/** @type {[number, number]} */ at) => at.map(Math.round).join("_");
  const words = new URLSearchParams();
  if (ids.length) words.set("ids", ids.map(encodeURIComponent).join(","));
  if (start) words.set("start", start);
  if (start && depth !== EMPTY.depth) words.set("depth", String(depth));
  if (asOf !== null) words.set("as_of", String(asOf));
  if (validAt !== EMPTY.validAt) words.set("valid_at", validAt);
  if (query) words.set("q", query);
  if (node) words.set("node", node);
  if (view !== EMPTY.view) words.set("view", view);
  if (places.length) words.set("places", places.map(place).join(","));
  if (pins.size) words.set("pins", [...pins].map(([id, at]) => `${encodeURIComponent(id)}.${place(at)}`).join(","));
  if (hidden.length) words.set("hidden", hidden.map(encodeURIComponent).join(","));
  if (camera) words.set("camera", camera.map((one) => Math.round(one * 1000) / 1000).join("_"));
  if (looks) words.set("looks", looks);
  return `#/${encodeURIComponent(store)}${words.size ? `?${words}` : ""}`;
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
