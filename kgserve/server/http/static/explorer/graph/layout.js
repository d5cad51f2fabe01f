// Client of the layout worker: sends nodes, receives positions and fans.

/** @typedef {import("./model.js").Graph} Graph */
/** @typedef {import("./model.js").Node} Node */

/** Return the bounding box of nodes. @param {Iterable<Node>} nodes */
export function bounds(nodes) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const { x, y } of nodes) {
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  return left <= right ? { left, right, top, bottom } : { left: 0, right: 1, top: 0, bottom: 1 };
}

const made = () => new Worker(new URL("./layout.worker.js", import.meta.url), { type: "module" });
/** Worker started in advance for the first canvas. @type {Worker | null} */
let spare = made();

export class Layout {
  /** @param {(settled: boolean, first: boolean) => void} onPlaces called each time that nodes have moved; `first`: some have their first places */
  constructor(onPlaces) {
    this.worker = spare ?? made();
    spare = null;
    this.round = 0;
    this.first = false;
    this.edges = 0;
    /** @type {Graph | null} */
    this.graph = null;
    /** @type {Node[]} */
    this.nodes = [];
    this.worker.onmessage = ({ data }) => {
      if (data.id !== this.round) return;
      this.take(data);
      onPlaces(data.settled, this.first);
      this.first = false;
    };
  }

  /** @param {{places: Float32Array, fans: {hub: number, sectors: any[]}[]}} answer */
  take({ places, fans }) {
    const { nodes, graph } = this;
    nodes.forEach((node, i) => {
      node.placed = true;
      if (node.held || node.pinned) return;
      node.x = places[2 * i];
      node.y = places[2 * i + 1];
    });
    if (!graph) return;
    if (this.first) graph.fans.clear();
    for (const { hub, sectors } of fans) {
      const known = graph.fans.get(nodes[hub].key);
      if (known) for (const [i, sector] of known.entries()) Object.assign(sector, { start: sectors[i].start, end: sectors[i].end });
      else graph.fans.set(nodes[hub].key, sectors.map(({ leaves, ...sector }) => ({ ...sector, hub: nodes[hub], type: nodes[leaves[0]].type, leaves: leaves.map((/** @type {number} */ i) => nodes[i]) })));
    }
  }

  /** Start a layout if a node has no position, and return whether one runs; nodes that have one stay. @param {Graph} graph @param {(node: Node) => number} radius */
  run(graph, radius, { restart = false } = {}) {
    const nodes = [...graph.nodes.values()];
    if (restart) for (const node of nodes) node.placed = node.pinned;
    if (!nodes.some((node) => !node.placed)) return false;
    // The same layout is already running.
    if (this.first && !restart && nodes.length === this.nodes.length && this.edges === graph.edges.size && nodes.every((node, i) => node === this.nodes[i])) return true;
    this.send(graph, radius);
    return true;
  }

  /** Request positions; if all nodes have one, only those of leaves in fans. @param {Graph} graph @param {(node: Node) => number} radius */
  send(graph, radius) {
    const nodes = [...graph.nodes.values()];
    const index = new Map(nodes.map((node, i) => [node.key, i]));
    const types = new Map([...new Set(nodes.map(({ type }) => type))].map((type, i) => [type, i]));
    Object.assign(this, { graph, nodes, edges: graph.edges.size, first: true });
    this.worker.postMessage({
      id: ++this.round,
      places: Float32Array.from(nodes.flatMap((node) => [node.x, node.y])),
      flags: Uint8Array.from(nodes, (node) => (node.pinned ? 3 : Number(node.placed))),
      radii: Float32Array.from(nodes, radius),
      types: Uint32Array.from(nodes, (node) => types.get(node.type) ?? 0),
      links: Uint32Array.from([...graph.edges.values()].flatMap((edge) => [index.get(edge.from) ?? 0, index.get(edge.to) ?? 0])),
    });
  }
}
