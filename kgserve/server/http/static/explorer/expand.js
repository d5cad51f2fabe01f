// Expansion and collapse of a node, including neighbours in other stores, and the shortest path between two nodes.

import { moment, MOST_NODES } from "./graph/model.js";
import { AN_EXPANSION, chosenIds, FIRST_NODES, fits, onlyShownTypes, own, piece, put, REFRESHED, show } from "./load.js";
import { ask, memory } from "./server.js";
import { announce, asOf, attempt, changed, focus, graph, say, selected, store, stores, way } from "./state.js";
import { W } from "./words.js";

const MAX_STEPS = 12;
const STATEMENT = `MATCH p = shortestPath((a {id: $from})-[*..${MAX_STEPS}]-(b {id: $to})) RETURN [n IN nodes(p) | n.id] AS ids`;

/** Load the neighbours of a node; if already loaded, remove those that only it brought. @param {string} key */
export const expand = (key) =>
  attempt(async () => {
    const node = graph.nodes.get(key);
    if (!node || node.store) return;
    if (graph.broughtOnlyBy(key).length) {
      const gone = graph.collapse(key);
      if (!graph.nodes.has(focus.value)) focus.value = key;
      selected.value = new Set([...selected.value].filter((one) => graph.nodes.has(one)));
      changed();
      announce(W.collapsed(node.label, gone));
      return;
    }
    if (!fits(1)) return;
    chosenIds.value = true;
    const types = onlyShownTypes();
    const room = Math.min(FIRST_NODES, MOST_NODES - graph.nodes.size);
    const answer = await piece({ around: [node.id], depth: 1, per_node: AN_EXPANSION, max_nodes: room, types });
    if (graph.nodes.get(key) !== node) return;
    const fresh = show(answer, key);
    const elsewhere = await links(node, answer);
    announce(W.expanded(node.label, fresh.length + elsewhere));
    // `freshen` does not restore nodes removed during the request.
    if (graph.nodes.size <= REFRESHED && fresh.length) graph.freshen(await piece({ ids: own() }));
    changed();
  });

/**
 * Add the nodes of other stores that are linked with a node in either direction; return the number of new ones.
 * @param {import("./graph/model.js").Node} node @param {any} answer the drawing around it, with the links that lead out @returns {Promise<number>}
 */
async function links(node, answer) {
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
    const key = JSON.stringify([name, id]);
    if (!graph.nodes.has(key)) count++;
    graph.addNode({ key, id, store: name, type: W.elsewhere, label: `${name} / ${id}`, broughtBy: new Set([node.key]) });
    const [from, to] = leads ? [node.key, key] : [key, node.key];
    graph.addEdge({ from, to, ...edge });
    livesAsLinks(key);
  }
  return count;
}

/** Set the lifespans of a node of another store to those of its links; its own are not loaded. @param {string} key */
function livesAsLinks(key) {
  const node = graph.nodes.get(key);
  const lives = [...(graph.around.get(key) ?? [])].map((edge) => edge.lives);
  if (node) node.lives = lives.includes(null) ? null : lives.flatMap((each) => each ?? []).sort((one, other) => other[0] - one[0]);
}

/** Return the ids of the shortest path in the store now; none if there is none, or the query fails. @param {string} from @param {string} to @returns {Promise<string[]>} */
async function pathInStore(from, to) {
  const body = { query: STATEMENT, params: { from, to }, max_rows: 1 };
  const answer = await ask("POST", memory(store.value, "cypher"), { body }).catch(() => null);
  return answer?.rows[0]?.[0] ?? [];
}

/** Show the shortest path between two nodes, and load its nodes that are not on the canvas. @param {string} from @param {string} to keys of nodes */
export const showPath = (from, to) =>
  attempt(async () => {
    const [here, name] = [graph.path(from, to), store.value];
    const [one, other] = [graph.nodes.get(from), graph.nodes.get(to)];
    const ask = asOf.value === null && one && other && !one.store && !other.store && here.length !== 2;
    const found = ask ? await pathInStore(one.id, other.id) : [];
    if (store.value !== name || !graph.nodes.has(from) || !graph.nodes.has(to)) return;
    const whole = found.length && (!here.length || found.length < here.length) && fits(found.length) ? found : here;
    if (!whole.length) {
      way.value = [];
      say(W.noPath, true);
      return;
    }
    if (whole === found) await put(found);
    for (const key of whole) {
      const node = graph.nodes.get(key);
      if (node) node.hidden = false;
    }
    selected.value = new Set([from, to]);
    way.value = whole;
  });
