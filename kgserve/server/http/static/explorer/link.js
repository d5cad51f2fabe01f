// The view as the fragment of the URL, and back. It never contains the API key, except the one passed at the start.

/**
 * @typedef {object} Link
 * @property {string} store the empty text is the list of stores
 * @property {string[]} ids what is on the canvas; empty: the overview
 * @property {string} start @property {number} depth
 * @property {number | null} asOf @property {string} validAt `now`, `any`, or a time
 * @property {string} query @property {string} node @property {string} view
 */

/** @type {Link} */
const EMPTY = { store: "", ids: [], start: "", depth: 1, asOf: null, validAt: "now", query: "", node: "", view: "graph" };
const DEEPEST = 5;

/** @param {string} fragment with or without `#` @returns {Link} */
export function parse(fragment) {
  const [path, query = ""] = fragment.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const given = new URLSearchParams(query);
  const asOf = Number.parseInt(given.get("as_of") ?? "", 10);
  return {
    store: decoded(path),
    ids: given.getAll("ids").flatMap((one) => one.split(",").map(decoded)).filter(Boolean),
    start: given.get("start") ?? "",
    depth: Math.min(DEEPEST, Math.max(1, Number.parseInt(given.get("depth") ?? "", 10) || EMPTY.depth)),
    asOf: asOf >= 0 ? asOf : null,
    validAt: given.get("valid_at") || EMPTY.validAt,
    query: given.get("q") ?? "",
    node: given.get("node") ?? "",
    view: given.get("view") || EMPTY.view,
  };
}

/** @param {Partial<Link>} link @returns {string} */
export function format(link) {
  const { store, ids, start, depth, asOf, validAt, query, node, view } = { ...EMPTY, ...link };
  const words = new URLSearchParams();
  if (ids.length) words.set("ids", ids.map(encodeURIComponent).join(","));
  if (start) words.set("start", start);
  if (start && depth !== EMPTY.depth) words.set("depth", String(depth));
  if (asOf !== null) words.set("as_of", String(asOf));
  if (validAt !== EMPTY.validAt) words.set("valid_at", validAt);
  if (query) words.set("q", query);
  if (node) words.set("node", node);
  if (view !== EMPTY.view) words.set("view", view);
  return `#/${encodeURIComponent(store)}${words.size ? `?${words}` : ""}`;
}

/** The key that `kgserve open` hands over. @param {string} fragment @returns {string} */
export const keyIn = (fragment) => new URLSearchParams(fragment.split(/\?(.*)/s)[1] ?? "").get("key") ?? "";

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
