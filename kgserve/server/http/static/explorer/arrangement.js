// Arrangement of the canvas (pins, hidden nodes, colours), read from and written to links.

import { graph, looks } from "./state.js";

/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./graph/model.js").Graph} Graph */

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

/** Apply the pending arrangement to loaded nodes. @param {Graph} graph */
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

/** Return the current arrangement for the URL. @returns {Partial<Link>} */
export function arrangement() {
  const own = [...graph.nodes.values()].filter((node) => !node.store);
  return {
    pins: new Map(own.filter((node) => node.pinned).map((node) => [node.id, [node.x, node.y]])),
    hidden: own.filter((node) => node.hidden).map((node) => node.id),
    looks: looks.format(),
  };
}
