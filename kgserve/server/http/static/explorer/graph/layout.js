// Interface of the layout worker: sends nodes and receives positions.

const SPREAD = 24;
const GOLDEN = Math.PI * (3 - Math.sqrt(5));

/** @typedef {import("./model.js").Graph} Graph */
/** @typedef {import("./model.js").Node} Node */

/** Nodes in breadth-first order from the one with most edges. @param {Graph} graph @returns {Node[]} */
function inOrder(graph) {
  const ordered = [];
  const seen = new Set();
  for (const start of [...graph.nodes.values()].sort((one, other) => other.degree - one.degree)) {
    const waiting = seen.has(start.key) ? [] : [start.key];
    for (const key of waiting) {
      if (seen.has(key)) continue;
      seen.add(key);
      ordered.push(/** @type {Node} */ (graph.nodes.get(key)));
      waiting.push(...graph.neighbours(key).filter((other) => !seen.has(other)));
    }
  }
  return ordered;
}

/** Give nodes without a place one to begin with: on a spiral, or beside what brought them. @param {Graph} graph */
export function begin(graph) {
  const fresh = [...graph.nodes.values()].filter((node) => !node.placed);
  const anew = fresh.length === graph.nodes.size;
  (anew ? inOrder(graph) : fresh).forEach((node, i) => {
    const beside = anew ? undefined : graph.neighbours(node.key).map((key) => graph.nodes.get(key)).find((one) => one?.placed);
    const distance = beside ? 40 + 4 * Math.sqrt(i) : SPREAD * Math.sqrt(i + 0.5);
    node.x = (beside?.x ?? 0) + distance * Math.cos(i * GOLDEN);
    node.y = (beside?.y ?? 0) + distance * Math.sin(i * GOLDEN);
  });
  for (const node of fresh) node.placed = true;
  return fresh;
}

const made = () => new Worker(new URL("./layout.worker.js", import.meta.url), { type: "module" });
/** One that is ready when the first canvas comes. @type {Worker | null} */
let spare = made();

export class Layout {
  /** @param {(settled: boolean) => void} onPlaces called each time that nodes have moved */
  constructor(onPlaces) {
    this.worker = spare ?? made();
    spare = null;
    this.round = 0;
    /** @type {Node[]} */
    this.nodes = [];
    this.worker.onmessage = ({ data }) => {
      if (data.id !== this.round) return;
      this.nodes.forEach((node, i) => {
        if (node.held) return;
        node.x = data.places[2 * i];
        node.y = data.places[2 * i + 1];
      });
      onPlaces(data.settled);
    };
  }

  /** Place what has no place yet, and let all settle; nodes that had one stay where something was added. @param {Graph} graph @param {(node: Node) => number} radius */
  run(graph, radius, { anew = false } = {}) {
    if (anew) for (const node of graph.nodes.values()) node.placed = node.pinned;
    const fresh = new Set(begin(graph));
    if (!fresh.size) return false;
    this.nodes = [...graph.nodes.values()];
    const index = new Map(this.nodes.map((node, i) => [node.key, i]));
    const added = fresh.size < this.nodes.length;
    const places = Float32Array.from(this.nodes.flatMap((node) => [node.x, node.y]));
    const fixed = Uint8Array.from(this.nodes, (node) => Number(node.pinned || (added && !fresh.has(node))));
    const links = Uint32Array.from([...graph.edges.values()].flatMap((edge) => [index.get(edge.from) ?? 0, index.get(edge.to) ?? 0]));
    const radii = Float32Array.from(this.nodes, radius);
    this.worker.postMessage({ id: ++this.round, places, fixed, radii, links, warmth: added ? 0.5 : 1 });
    return true;
  }

  /** Discard results that are still pending. */
  stop() {
    this.round++;
  }
}
