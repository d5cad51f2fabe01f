// Conversion of the model to a scene: visible nodes with size, colour and style.

import { radiusOf } from "./graph/renderer.js";
import { difference } from "./graph/time.js";
import { compared, focus, graph, looks, openEdge, selected, visible, way } from "./state.js";
import { W } from "./words.js";

/** @typedef {import("./graph/renderer.js").Scene} Scene */
/** @typedef {import("./graph/renderer.js").Manner} Manner */
/** @typedef {import("./graph/renderer.js").DrawnNode} DrawnNode */

const HEAVY = 2;
const LIGHT = 0.5;
/** Number of nodes above which most lines are thin. */
const CROWD = 1500;
/** Maximum number of neighbours that labels and loops avoid. */
const MAX_TOWARDS = 12;
/** Minimum number of leaves of a sector with a count. */
const MIN_COUNTED = 5;

/** Return the visible sectors of fans, and the hub of each leaf. @param {Map<string, DrawnNode>} drawn */
function fansOf(drawn) {
  const sectors = [];
  /** @type {Map<string, string>} */
  const hubOf = new Map();
  for (const [key, all] of graph.fans) {
    if (!drawn.has(key)) continue;
    for (const sector of all) {
      const seen = sector.leaves.filter((leaf) => drawn.get(leaf.key)?.node === leaf && !leaf.pinned);
      for (const leaf of seen) hubOf.set(leaf.key, key);
      const lit = selected.value.has(key) && !compared.value;
      if (seen.length) sectors.push({ sector, colour: looks.of(sector.type).colour, lit, text: seen.length < MIN_COUNTED ? "" : W.fanCount(seen.length, sector.type) });
    }
  }
  return { sectors, hubOf };
}

/** @param {Map<string, number>} pulses @returns {Scene} */
export function sceneOf(pulses) {
  const { nodes, edges } = visible.value;
  const two = compared.value;
  const path = way.value;
  const onPath = new Set(path);
  /** @type {(row: any) => Manner} */
  const becomes = (row) => {
    const what = two ? difference(row, two.before, two.after) : "same";
    return what === "same" || what === "never" ? (two ? "dim" : "plain") : what;
  };
  const now = Date.now();
  /** @type {(row: any) => Manner} */
  const manner = (row) => (two ? becomes(row) : row.validTo !== null && row.validTo <= now ? "dashed" : "plain");
  /** @type {Map<string, DrawnNode>} */
  const drawn = new Map([...nodes].filter(([, node]) => node.placed).map(([key, node]) => [key, {
    node,
    radius: radiusOf(node.degree),
    ...looks.of(node.type),
    manner: path.length && !onPath.has(key) ? /** @type {Manner} */ ("dim") : manner(node),
    badge: node.leftOut ? `+${node.leftOut.toLocaleString("en")}` : "",
    towards: [],
  }]));
  const { sectors, hubOf } = fansOf(drawn);
  const next = new Set(path.slice(1).map((key, i) => `${path[i]}\n${key}`));
  const chosen = selected.value.size > 0 && selected.value.size < 50 && !two && !path.length;
  const strokes = [];
  for (const edge of edges) {
    const [from, to] = [drawn.get(edge.from), drawn.get(edge.to)];
    if (!from || !to) continue;
    if (nodes.size <= CROWD && from !== to) {
      from.towards.push(to.node);
      to.towards.push(from.node);
    }
    const leaf = hubOf.get(edge.from) === edge.to ? edge.from : hubOf.get(edge.to) === edge.from ? edge.to : "";
    const ends = chosen && (leaf ? selected.value.has(leaf) : selected.value.has(edge.from) || selected.value.has(edge.to));
    const lit = ends || edge.key === openEdge.value || (path.length > 0 && (next.has(`${edge.from}\n${edge.to}`) || next.has(`${edge.to}\n${edge.from}`)));
    const plain = path.length ? /** @type {Manner} */ ("dim") : manner(edge);
    if (leaf && !lit && (plain === "plain" || plain === "dim")) continue;
    const width = edge.weight >= HEAVY ? 2 : edge.weight <= LIGHT || nodes.size > CROWD ? 0 : 1;
    strokes.push({ key: edge.key, from, to, manner: lit ? /** @type {Manner} */ ("lit") : plain, width, type: edge.type });
  }
  for (const one of drawn.values()) if (one.towards.length > MAX_TOWARDS) one.towards = [];
  const all = [...drawn.values()];
  const first = (/** @type {DrawnNode} */ { node }) => (node.key === focus.value ? 3 : selected.value.has(node.key) ? 2 : onPath.has(node.key) ? 1 : 0);
  const labelled = [...all].sort((one, other) => first(other) - first(one) || other.node.degree - one.node.degree);
  const fade = all.some((one) => one.node.confidence !== null);
  return { nodes: all, edges: strokes, sectors, selected: selected.value, focus: focus.value, labelled, pulses, fade };
}
