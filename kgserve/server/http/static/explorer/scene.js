// From the model to the drawing: visible nodes with size, colour and style.

import { radiusOf } from "./graph/renderer.js";
import { difference } from "./graph/time.js";
import { compared, focus, looks, selected, visible, way } from "./state.js";

/** @typedef {import("./graph/renderer.js").Scene} Scene */
/** @typedef {import("./graph/renderer.js").Manner} Manner */

const HEAVY = 2;
const LIGHT = 0.5;

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
  const drawn = [...nodes.values()].map((node) => ({
    node,
    radius: radiusOf(node.degree),
    ...looks.of(node.type),
    manner: path.length && !onPath.has(node.key) ? /** @type {Manner} */ ("dim") : manner(node),
    badge: node.leftOut ? `+${node.leftOut.toLocaleString("en")}` : "",
  }));
  const next = new Set(path.slice(1).map((key, i) => `${path[i]}\n${key}`));
  const chosen = selected.value.size > 0 && selected.value.size < 50;
  const strokes = edges.map((edge) => {
    const lit = next.has(`${edge.from}\n${edge.to}`) || next.has(`${edge.to}\n${edge.from}`) || (chosen && !two && (selected.value.has(edge.from) || selected.value.has(edge.to)));
    return {
      from: /** @type {any} */ (nodes.get(edge.from)),
      to: /** @type {any} */ (nodes.get(edge.to)),
      manner: lit ? /** @type {Manner} */ ("lit") : path.length ? /** @type {Manner} */ ("dim") : manner(edge),
      width: edge.weight >= HEAVY ? 2 : edge.weight <= LIGHT ? 0 : 1,
      type: edge.type,
    };
  });
  if (nodes.size > 1500) for (const stroke of strokes) stroke.width = 0;
  const first = (/** @type {any} */ one) => (one.node.key === focus.value ? 2 : selected.value.has(one.node.key) ? 1 : 0);
  const labelled = [...drawn].sort((one, other) => first(other) - first(one) || other.node.degree - one.node.degree).slice(0, 400);
  const fade = drawn.some((one) => one.node.confidence !== null);
  return { nodes: drawn, edges: strokes, selected: selected.value, focus: focus.value, labelled, pulses, fade };
}
