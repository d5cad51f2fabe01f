// Hit testing, and navigation to a neighbour in a direction.

const CELL = 60;

/** Spatial index of nodes: a grid of cells, rebuilt when nodes have moved. */
export class Places {
  /** @param {Iterable<import("./model.js").Node>} nodes those that can be met */
  constructor(nodes) {
    /** @type {Map<string, import("./model.js").Node[]>} */
    this.cells = new Map();
    for (const node of nodes) {
      const cell = `${Math.floor(node.x / CELL)},${Math.floor(node.y / CELL)}`;
      const there = this.cells.get(cell);
      if (there) there.push(node);
      else this.cells.set(cell, [node]);
    }
  }

  /** Return the nearest node within a distance. @param {number} x @param {number} y @param {number} within at most a few cells wide */
  at(x, y, within) {
    let [best, nearest] = [/** @type {import("./model.js").Node | null} */ (null), within * within];
    const reach = Math.min(20, Math.ceil(within / CELL));
    const [column, row] = [Math.floor(x / CELL), Math.floor(y / CELL)];
    for (let i = column - reach; i <= column + reach; i++) {
      for (let j = row - reach; j <= row + reach; j++) {
        for (const node of this.cells.get(`${i},${j}`) ?? []) {
          const distance = (node.x - x) ** 2 + (node.y - y) ** 2;
          if (distance <= nearest) [best, nearest] = [node, distance];
        }
      }
    }
    return best;
  }
}

/**
 * Return the one of `others` that is nearest in a direction; distance to the side counts double.
 * @template {{x: number, y: number}} T
 * @param {{x: number, y: number}} from @param {T[]} others @param {"up" | "down" | "left" | "right"} direction @returns {T | null}
 */
export function towards(from, others, direction) {
  const [ahead, aside] = direction === "left" || direction === "right" ? ["x", "y"] : ["y", "x"];
  const sign = direction === "left" || direction === "up" ? -1 : 1;
  let [best, least] = [/** @type {T | null} */ (null), Number.POSITIVE_INFINITY];
  for (const other of others) {
    const forward = sign * (other[ahead] - from[ahead]);
    const effort = forward + 2 * Math.abs(other[aside] - from[aside]);
    if (forward > 0 && effort < least) [best, least] = [other, effort];
  }
  return best;
}
