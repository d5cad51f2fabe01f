// Layout of fans: many leaves of one hub, placed around it in rings, a sector for each type, instead of by the force layout.

/** @typedef {{index: number, x: number, y: number, placed: boolean, pinned: boolean, radius: number, type: number, neighbours: LayoutNode[]}} LayoutNode */
/** @typedef {{type: number, start: number, end: number, inner: number, outer: number, leaves: LayoutNode[]}} LayoutSector angles in radians, distances from the hub */
/** @typedef {{hub: LayoutNode, sectors: LayoutSector[], outer: number}} LayoutFan */

const MIN_LEAVES = 30;
const STEP = 15;
const INNER_GAP = 30;
const TURN = 2 * Math.PI;
/** Angle of a fan in radians if its hub has other neighbours, and if it has none. */
const [OPEN, ROUND] = [0.68 * TURN, 0.97 * TURN];
const SECTOR_GAP = 0.05;

/** Return hubs with their leaves by type, the largest type first. @param {LayoutNode[]} nodes @returns {[LayoutNode, LayoutNode[][]][]} */
function leavesByHub(nodes) {
  /** @type {Map<LayoutNode, LayoutNode[]>} */
  const hubs = new Map();
  for (const node of nodes) {
    if (node.pinned || node.neighbours.length !== 1) continue;
    const [hub] = node.neighbours;
    const leaves = hubs.get(hub);
    if (leaves) leaves.push(node);
    else hubs.set(hub, [node]);
  }
  return [...hubs].filter(([, leaves]) => leaves.length >= MIN_LEAVES).map(([hub, leaves]) => {
    const types = [...new Set(leaves.map(({ type }) => type))].map((type) => leaves.filter((leaf) => leaf.type === type));
    return [hub, types.sort((one, other) => other.length - one.length)];
  });
}

/** Return the number of rings from `inner` on that hold `count` leaves in an angle. @param {number} count @param {number} inner @param {number} angle */
function ringsFor(count, inner, angle) {
  let rings = 0;
  for (let room = 0; room < count; rings++) room += Math.max(1, Math.floor((angle * (inner + rings * STEP)) / STEP));
  return rings;
}

/** Return the fans of a graph, not yet rotated. @param {LayoutNode[]} nodes @returns {Map<LayoutNode, LayoutFan>} by the hub */
export function findFans(nodes) {
  const fans = new Map();
  for (const [hub, types] of leavesByHub(nodes)) {
    const count = types.reduce((sum, { length }) => sum + length, 0);
    const angle = hub.neighbours.length > count ? OPEN : ROUND;
    const inner = hub.radius + INNER_GAP;
    let start = -angle / 2;
    const sectors = types.map((leaves) => {
      const width = (angle * leaves.length) / count;
      const gap = Math.min(SECTOR_GAP, width / 4);
      const rings = ringsFor(leaves.length, inner, width - 2 * gap);
      const sector = { type: leaves[0].type, start: start + gap, end: start + width - gap, inner, outer: inner + (rings - 1) * STEP, leaves };
      start += width;
      return sector;
    });
    fans.set(hub, { hub, sectors, outer: Math.max(...sectors.map(({ outer }) => outer)) + STEP });
  }
  return fans;
}

/** Rotate a fan away from the other neighbours of its hub, and place its leaves. @param {LayoutFan} fan */
export function placeFan({ hub, sectors }) {
  const leaves = new Set(sectors.flatMap((sector) => sector.leaves));
  let [x, y] = [0, 0];
  for (const other of hub.neighbours) {
    if (leaves.has(other)) continue;
    const distance = Math.hypot(other.x - hub.x, other.y - hub.y) || 1;
    x += (hub.x - other.x) / distance;
    y += (hub.y - other.y) / distance;
  }
  const turn = (x || y ? Math.atan2(y, x) : 0) - (sectors[0].start + sectors[sectors.length - 1].end) / 2;
  for (const sector of sectors) {
    sector.start += turn;
    sector.end += turn;
    placeSector(hub, sector);
  }
}

/** Distribute leaves over the rings of a sector by their length. @param {LayoutNode} hub @param {LayoutSector} sector */
function placeSector(hub, { start, end, inner, outer, leaves }) {
  const rings = Math.round((outer - inner) / STEP) + 1;
  const lengths = Array.from({ length: rings }, (_, i) => inner + i * STEP);
  const whole = lengths.reduce((sum, length) => sum + length, 0);
  let [next, before] = [0, 0];
  lengths.forEach((distance, ring) => {
    before += distance;
    const until = ring === rings - 1 ? leaves.length : Math.round((leaves.length * before) / whole);
    const count = until - next;
    for (let i = 0; i < count; i++, next++) {
      const angle = start + ((end - start) * (i + 0.5)) / count;
      leaves[next].x = hub.x + distance * Math.cos(angle);
      leaves[next].y = hub.y + distance * Math.sin(angle);
    }
  });
}
