// Shortest path between two nodes, in the store or on the canvas.

import { fits, put } from "./load.js";
import { ask, memory } from "./server.js";
import { asOf, attempt, graph, say, selected, store, way } from "./state.js";
import { W } from "./words.js";

const MAX_STEPS = 12;
const STATEMENT = `MATCH p = shortestPath((a {id: $from})-[*..${MAX_STEPS}]-(b {id: $to})) RETURN [n IN nodes(p) | n.id] AS ids`;

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
