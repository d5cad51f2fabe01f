// Layout in a worker thread, animated by positions reported every 120 ms.

import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from "../vendor/d3-force.js";
import { findFans, placeFan } from "./fans.js";
import { placeFirst } from "./trees.js";

/** @typedef {import("./fans.js").LayoutNode} LayoutNode */
/** @typedef {{id: number, places: Float32Array, flags: Uint8Array, radii: Float32Array, types: Uint32Array, links: Uint32Array}} LayoutRequest `flags`: 1 for a node that has a place, 2 for one that is pinned */

const EVERY = 120;
/** Milliseconds before the second positions, so that most layouts have settled. */
const SECOND = 350;
const COOL = 0.02;
const MANY = 1000;
/** Maximum number of nodes with collision avoidance. */
const MAX_COLLIDING = 2500;
/** Number of nodes below which edges are longer; their lengths with few nodes, and with many. */
const [FEW, LONG_LINK, LINK] = [40, 105, 58];
let round = 0;

/** @param {LayoutRequest} request @returns {{nodes: LayoutNode[], pairs: [LayoutNode, LayoutNode][]}} */
function readRequest({ places, flags, radii, types, links }) {
  /** @type {LayoutNode[]} */
  const nodes = Array.from(flags, (flag, i) => ({ index: i, x: places[2 * i], y: places[2 * i + 1], placed: flag > 0, pinned: flag > 1, radius: radii[i], type: types[i], neighbours: [] }));
  const around = nodes.map(() => new Set());
  /** @type {[LayoutNode, LayoutNode][]} */
  const pairs = [];
  for (let i = 0; i < links.length; i += 2) {
    const [from, to] = [nodes[links[i]], nodes[links[i + 1]]];
    if (from === to) continue;
    around[from.index].add(to);
    around[to.index].add(from);
    pairs.push([from, to]);
  }
  for (const node of nodes) node.neighbours = [...around[node.index]];
  return { nodes, pairs };
}

/** @param {LayoutNode[]} core nodes that stand in no fan @param {[LayoutNode, LayoutNode][]} pairs @param {ReturnType<typeof findFans>} fans */
function simulationOf(core, pairs, fans) {
  const added = core.some((node) => node.placed && !node.pinned);
  const reach = core.map((node) => fans.get(node)?.outer ?? node.radius);
  const index = new Map(core.map((node, i) => [node, i]));
  // Neighbours of a hub make room for a new fan.
  const fixed = (/** @type {LayoutNode} */ node) => node.pinned || (added && node.placed && !node.neighbours.some((other) => fans.has(other)));
  const bodies = core.map((node) => (fixed(node) ? { x: node.x, y: node.y, fx: node.x, fy: node.y } : { x: node.x, y: node.y }));
  const links = pairs.flatMap(([from, to]) => {
    const [source, target] = [index.get(from), index.get(to)];
    return source === undefined || target === undefined ? [] : [{ source, target }];
  });
  const link = core.length < FEW ? LONG_LINK + ((LINK - LONG_LINK) * core.length) / FEW : LINK;
  const lengths = links.map(({ source, target }) => link + Math.max(0, reach[source] - 12) + Math.max(0, reach[target] - 12));
  // More edges pull more, so nodes repel more.
  const push = -90 * Math.min(4, Math.max(1, links.length / core.length / 1.4));
  const simulation = forceSimulation(bodies)
    .force("charge", forceManyBody().strength((_, /** @type {number} */ i) => push - 2 * Math.max(0, reach[i] - 20)).theta(core.length > MAX_COLLIDING ? 1.5 : core.length > MANY ? 1.2 : 0.9))
    .force("links", forceLink(links).distance((_, /** @type {number} */ i) => lengths[i]))
    .force("x", forceX().strength(0.04))
    .force("y", forceY().strength(0.05))
    .alpha(added ? 0.5 : 1)
    .alphaMin(COOL)
    .alphaDecay(core.length > MANY ? 0.06 : 0.035)
    .stop();
  if (core.length <= MAX_COLLIDING) simulation.force("collide", forceCollide((_, /** @type {number} */ i) => reach[i] + 6));
  return { simulation, bodies };
}

addEventListener("message", (/** @type {MessageEvent<LayoutRequest>} */ { data }) => {
  const mine = ++round;
  const { nodes, pairs } = readRequest(data);
  const fans = findFans(nodes);
  const leaves = new Set([...fans.values()].flatMap(({ sectors }) => sectors.flatMap((sector) => sector.leaves)));
  const core = nodes.filter((node) => !leaves.has(node));
  const still = nodes.every((node) => node.placed);
  placeFirst(core);
  let every = SECOND;

  function report(/** @type {boolean} */ settled) {
    for (const fan of fans.values()) placeFan(fan);
    const places = Float32Array.from(nodes.flatMap(({ x, y }) => [x, y]));
    const drawn = [...fans.values()].map(({ hub, sectors }) => ({ hub: hub.index, sectors: sectors.map(({ leaves, ...sector }) => ({ ...sector, leaves: leaves.map(({ index }) => index) })) }));
    postMessage({ id: data.id, places, fans: drawn, settled }, { transfer: [places.buffer] });
  }

  report(still);
  if (still) return;
  const { simulation, bodies } = simulationOf(core, pairs, fans);
  function work() {
    if (mine !== round) return;
    const begun = performance.now();
    while (simulation.alpha() >= COOL && performance.now() - begun < every) simulation.tick();
    every = EVERY;
    for (const [i, node] of core.entries()) Object.assign(node, { x: bodies[i].x, y: bodies[i].y });
    const settled = simulation.alpha() < COOL;
    report(settled);
    if (!settled) setTimeout(work);
  }
  setTimeout(work);
});
