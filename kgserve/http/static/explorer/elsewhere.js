// Links into other stores, and from others into this one: looked for when a node is expanded.

import { foreignKey, moment } from "./graph/model.js";
import { ask, memory } from "./server.js";
import { graph, store, stores } from "./state.js";
import { W } from "./words.js";

/**
 * Nodes of other stores that links lead to from a node, or from which they lead to it, drawn apart.
 * @param {import("./graph/model.js").Node} node @param {any} answer the drawing around it, with the links that lead out @returns {Promise<number>}
 */
export async function links(node, answer) {
  const out = answer.links;
  const found = (out?.from ?? []).flatMap((/** @type {number} */ place, /** @type {number} */ i) =>
    answer.nodes.id[place] === node.id ? [{
      name: out.to_graph[i], id: out.to[i], type: answer.relation_types[out.type[i]] ?? "", leads: true, weight: out.weight[i],
      validFrom: moment(out.valid_from?.[i]), validTo: moment(out.valid_to?.[i]), lives: out.lives?.[i] ?? null,
    }] : []);
  if (stores.value?.find((one) => one.name === store.value)?.links?.inbound) {
    const into = await ask("GET", `${memory(store.value, "nodes", node.id)}/incoming`, { query: { limit: 200, follow_symlinks: true } });
    for (const edge of into.edges) if (edge.store && edge.store !== store.value) found.push({
      name: edge.store, id: edge.from, type: edge.relation_type, leads: false, weight: edge.weight, validFrom: moment(edge.valid_from), validTo: moment(edge.valid_to), lives: null,
    });
  }
  if (graph.nodes.get(node.key) !== node) return 0;
  let count = 0;
  for (const { name, id, leads, ...edge } of found) {
    const key = foreignKey(name, id);
    if (!graph.nodes.has(key)) count++;
    graph.addNode({ key, id, store: name, type: W.elsewhere, label: `${name} / ${id}`, broughtBy: new Set([node.key]) });
    const [from, to] = leads ? [node.key, key] : [key, node.key];
    graph.addEdge({ from, to, ...edge });
    graph.livesAsLinks(key);
  }
  return count;
}
