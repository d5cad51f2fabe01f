// Placement of labels next to nodes, within the canvas and without overlaps.

/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */
/** @typedef {{x: number, y: number, radius: number, round: boolean}} Disc in pixels; if it is not round, a square with sides of twice the radius */

const CELL = 40;
/** Distances of a label from its node in pixels, the larger ones for large nodes only. */
const GAPS = [3, 12, 22];
/** Sides of a node, most readable first: direction, and relative cost. @type {[number, number, number][]} */
const SIDES = [[1, 0, 0], [0, 1, 0.5], [-1, 0, 0.7], [0, -1, 0.8], [0.75, 0.75, 1], [0.75, -0.75, 1.1], [-0.75, 0.75, 1.3], [-0.75, -0.75, 1.4]];

/** @param {Box & {disc?: Disc}} taken @param {Box} box */
function overlaps({ left, top, right, bottom, disc }, box) {
  if (left >= box.right || right <= box.left || top >= box.bottom || bottom <= box.top) return false;
  if (!disc?.round) return true;
  const [dx, dy] = [Math.max(box.left - disc.x, 0, disc.x - box.right), Math.max(box.top - disc.y, 0, disc.y - box.bottom)];
  return dx * dx + dy * dy < disc.radius * disc.radius;
}

/** Occupied parts of the canvas, in a grid of cells. */
export class LabelArea {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.columns = Math.ceil(width / CELL) + 1;
    /** @type {Map<number, (Box & {disc?: Disc})[]>} */
    this.cells = new Map();
  }

  /** @param {Box} box @param {(number: number) => boolean | void} visit until it returns true @returns {boolean} whether it did */
  visit({ left, top, right, bottom }, visit) {
    const [first, last] = [Math.max(0, Math.floor(left / CELL)), Math.min(this.columns - 1, Math.floor(right / CELL))];
    const [high, low] = [Math.max(0, Math.floor(top / CELL)), Math.min(Math.floor(this.height / CELL), Math.floor(bottom / CELL))];
    for (let row = high; row <= low; row++) {
      for (let column = first; column <= last; column++) if (visit(row * this.columns + column)) return true;
    }
    return false;
  }

  /** @param {Box & {disc?: Disc}} box */
  take(box) {
    this.visit(box, (number) => {
      const there = this.cells.get(number);
      if (there) there.push(box);
      else this.cells.set(number, [box]);
    });
  }

  /** @param {Disc} disc */
  takeDisc(disc) {
    const { x, y, radius } = disc;
    this.take({ left: x - radius, top: y - radius, right: x + radius, bottom: y + radius, disc });
  }

  /** Return whether a box is within the canvas and free. @param {Box} box */
  isFree(box) {
    if (box.left < 2 || box.top < 2 || box.right > this.width - 2 || box.bottom > this.height - 2) return false;
    return !this.visit(box, (number) =>
      (this.cells.get(number) ?? []).some((taken) => overlaps(taken, box)));
  }

  /**
   * Reserve a place for a label next to a disc.
   * @param {Disc} disc @param {number} width @param {number} height @param {[number, number][]} lines directions of edges, of length 1, better left alone @returns {Box | null} null: there is none
   */
  placeBeside(disc, width, height, lines) {
    const costs = SIDES.map(([dx, dy, cost]) => lines.reduce((sum, [x, y]) => sum + Math.max(0, x * dx + y * dy - 0.4) * 2, cost));
    const order = SIDES.map((_, i) => i).sort((one, other) => costs[one] - costs[other]);
    for (const [gap, side] of GAPS.filter((gap) => gap <= Math.max(GAPS[0], disc.radius)).flatMap((gap) => order.map((one) => [gap, one]))) {
      const corner = !disc.round && side > 3 ? 4 / 3 : 1;
      const [dx, dy] = [SIDES[side][0] * corner, SIDES[side][1] * corner];
      const [x, y] = [disc.x + dx * (disc.radius + gap), disc.y + dy * (disc.radius + gap)];
      const left = x - (dx > 0.1 ? 0 : dx < -0.1 ? width : width / 2);
      const top = y - (dy > 0.1 ? 0 : dy < -0.1 ? height : height / 2);
      const box = { left, top, right: left + width, bottom: top + height };
      if (!this.isFree(box)) continue;
      this.take(box);
      return box;
    }
    return null;
  }

  /** Reserve the first free place centred on one of several points. @param {[number, number][]} points @param {number} width @param {number} height @returns {Box | null} */
  placeAt(points, width, height) {
    for (const [x, y] of points) {
      const box = { left: x - width / 2, top: y - height / 2, right: x + width / 2, bottom: y + height / 2 };
      if (!this.isFree(box)) continue;
      this.take(box);
      return box;
    }
    return null;
  }
}
