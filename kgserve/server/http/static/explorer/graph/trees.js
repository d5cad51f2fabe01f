// Initial positions of a layout: each connected component as a tree in rings, or new nodes next to a placed neighbour.

/** @typedef {import("./fans.js").LayoutNode} LayoutNode */

const GOLDEN = Math.PI * (3 - Math.sqrt(5));
/** Distance of rings with few nodes and with many, arc length for a node on its ring, and step length of an unbranched chain. */
const [NARROW, WIDE, ROOM, STEP] = [8, 52, 22, 58];
/** Maximum radius of a tree of one node; that of others grows with the square root of their size. */
const CROWDED = 34;

/** Return the breadth-first tree from a node: levels of nodes, children by parent. @param {LayoutNode} start @param {Set<LayoutNode>} left nodes that no tree holds yet */
function treeOf(start, left) {
  const levels = [[start]];
  /** @type {Map<LayoutNode, LayoutNode[]>} */
  const children = new Map();
  left.delete(start);
  for (let level = levels[0]; level.length; levels.push(level)) {
    level = level.flatMap((parent) => {
      const found = parent.neighbours.filter((node) => left.delete(node));
      children.set(parent, found);
      return found;
    });
  }
  levels.pop();
  return { levels, children };
}

/** Place a tree in rings around its root, each branch in its own angle, unbranched chains in spirals. @param {ReturnType<typeof treeOf>} tree @returns {number} its radius */
function placeTree({ levels, children }) {
  /** @type {Map<LayoutNode, number>} */
  const weights = new Map();
  for (const level of [...levels].reverse()) {
    for (const node of level) weights.set(node, Math.max(1, (children.get(node) ?? []).reduce((sum, child) => sum + (weights.get(child) ?? 1), 0)));
  }
  /** @type {Map<LayoutNode, [number, number]>} */
  const angles = new Map([[levels[0][0], [0, 2 * Math.PI]]]);
  let [distance, twist] = [0, 0];
  for (const [depth, level] of levels.entries()) {
    if (depth) distance = Math.max(distance + (level.length < 3 ? NARROW : WIDE), (level.length * ROOM) / (2 * Math.PI));
    if (level.length < 3) twist += STEP / Math.max(STEP, distance);
    for (const node of level) {
      let [start, end] = angles.get(node) ?? [0, 0];
      const middle = (start + end) / 2 + twist;
      node.x = distance * Math.cos(middle);
      node.y = distance * Math.sin(middle);
      const share = (end - start) / (weights.get(node) ?? 1);
      for (const child of children.get(node) ?? []) {
        end = start + share * (weights.get(child) ?? 1);
        angles.set(child, [start, end]);
        start = end;
      }
    }
  }
  const squeeze = Math.min(1, (CROWDED * Math.sqrt(children.size)) / (distance || 1));
  for (const node of children.keys()) Object.assign(node, { x: node.x * squeeze, y: node.y * squeeze });
  return distance * squeeze + STEP / 2;
}

/** Place trees around the largest, on a spiral. @param {LayoutNode[]} nodes */
function placeTrees(nodes) {
  const left = new Set(nodes);
  const trees = [];
  for (const start of [...nodes].sort((one, other) => other.neighbours.length - one.neighbours.length)) if (left.has(start)) trees.push(treeOf(start, left));
  trees.sort((one, other) => other.children.size - one.children.size);
  let area = 0;
  trees.forEach((tree, i) => {
    const radius = placeTree(tree);
    const distance = i ? Math.sqrt(area) + radius : 0;
    area += (i ? 2.5 : 1) * radius * radius;
    for (const node of tree.children.keys()) {
      node.x += distance * Math.cos(i * GOLDEN);
      node.y += distance * Math.sin(i * GOLDEN);
    }
  });
}

/** Set initial positions of nodes that have none. @param {LayoutNode[]} nodes */
export function placeFirst(nodes) {
  const fresh = nodes.filter((node) => !node.placed);
  if (nodes.every((node) => !node.placed || node.pinned)) {
    placeTrees(fresh);
    return;
  }
  fresh.forEach((node, i) => {
    const beside = node.neighbours.find((one) => one.placed);
    const distance = beside ? 40 + 4 * Math.sqrt(i) : 24 * Math.sqrt(i + 0.5);
    node.x = (beside?.x ?? 0) + distance * Math.cos(i * GOLDEN);
    node.y = (beside?.y ?? 0) + distance * Math.sin(i * GOLDEN);
  });
}
