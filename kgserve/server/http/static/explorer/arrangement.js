// Arrangement of the canvas (pins, hidden nodes, colours): apply it from a link, and write it to a link.

import { graph, looks } from "./state.js";

/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./graph/model.js").Graph} Graph */

/** Arrangement of the opened link, until its nodes are loaded. @type {Pick<Link, "ids" | "places" | "pins" | "hidden"> | null} */
let pending = null;
/** Camera of the opened link, until a canvas uses it. @type {Link["camera"]} */
let camera = null;

/** Where this browser keeps the looks of a store. */
export const keptLooks = (/** @type {string} */ name) => `kgserve-looks ${name}`;

/** Prepare what a link says. Its colours go before those that this browser keeps. @param {Link} link */
export function openArrangement(link) {
  pending = link.places.length || link.pins.size || link.hidden.length ? link : null;
  camera = link.camera;
  looks.parse(link.looks || localStorage.getItem(keptLooks(link.store)) || "");
}

/** Apply it to nodes that have come. @param {Graph} graph */
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

/** Where the link looked from; null: it did not say, or a canvas took it over. */
export function takeCamera() {
  const taken = camera;
  camera = null;
  return taken;
}

/** What the address says of it. @returns {Partial<Link>} */
export function arrangement() {
  const own = [...graph.nodes.values()].filter((node) => !node.store);
  return {
    pins: new Map(own.filter((node) => node.pinned).map((node) => [node.id, [node.x, node.y]])),
    hidden: own.filter((node) => node.hidden).map((node) => node.id),
    looks: looks.format(),
  };
}
