// Geometry of edges and fans: borders of nodes, curves, arrowheads, loops and sectors, independent of the drawing context.

import { CORNERS } from "./shapes.js";

/** @typedef {import("./shapes.js").Path} Path */
/** @typedef {import("./shapes.js").Mark} Mark */

/** @typedef {import("./renderer.js").DrawnEdge} DrawnEdge */

/**
 * Return the bend of each edge, which separates edges between the same two nodes; for a loop, its index.
 * @param {DrawnEdge[]} edges @returns {Map<DrawnEdge, number>} those that are not straight
 */
export function bendsOf(edges) {
  /** @type {Map<string, DrawnEdge[]>} */
  const pairs = new Map();
  for (const edge of edges) {
    const [from, to] = [edge.from.node.key, edge.to.node.key];
    const name = from < to ? `${from}\n${to}` : `${to}\n${from}`;
    const alike = pairs.get(name);
    if (alike) alike.push(edge);
    else pairs.set(name, [edge]);
  }
  const bends = new Map();
  for (const alike of pairs.values()) {
    if (alike.length < 2) continue;
    for (const [i, edge] of alike.entries()) {
      const aside = i - (alike.length - 1) / 2;
      bends.set(edge, edge.from === edge.to ? i : edge.from.node.key < edge.to.node.key ? aside : -aside);
    }
  }
  return bends;
}

/** Return the distance from the centre of a shape of radius 1 to its border. @param {string} shape @param {number} dx @param {number} dy a direction of length 1 */
export function borderDistance(shape, dx, dy) {
  const corners = CORNERS[shape];
  if (!corners) return 1;
  let least = Number.POSITIVE_INFINITY;
  corners.forEach(([x, y], i) => {
    const [u, v] = corners[(i + 1) % corners.length];
    const [nx, ny] = [v - y, x - u];
    const along = nx * dx + ny * dy;
    if (along > 1e-9) least = Math.min(least, (nx * x + ny * y) / along);
  });
  return least;
}

/** Return the point at which a line from the centre of a mark crosses its border. @param {Mark} mark @param {number} x @param {number} y @param {number} gap @returns {[number, number]} */
function leave(mark, x, y, gap) {
  const length = Math.hypot(x - mark.x, y - mark.y) || 1;
  const [dx, dy] = [(x - mark.x) / length, (y - mark.y) / length];
  const away = mark.radius * borderDistance(mark.shape, dx, dy) + gap;
  return [mark.x + dx * away, mark.y + dy * away];
}

/** Add an arrowhead with its tip at a point, directed from another; return the end of its shaft. @param {Path} path @param {number} x @param {number} y @param {number} fromX @param {number} fromY @param {number} size @returns {[number, number]} */
function addArrow(path, x, y, fromX, fromY, size) {
  const length = Math.hypot(x - fromX, y - fromY) || 1;
  const [dx, dy] = [(x - fromX) / length, (y - fromY) / length];
  const [bx, by] = [x - dx * size * 1.7, y - dy * size * 1.7];
  path.moveTo(x, y);
  path.lineTo(bx - dy * size * 0.7, by + dx * size * 0.7);
  path.lineTo(bx + dy * size * 0.7, by - dx * size * 0.7);
  return [bx, by];
}

/** Width of the line around an edge that the pointer meets. */
const HIT_PIXELS = 10;

/** Candidate positions of a name along its edge, from 0 to 1. */
const NAME_PLACES = [0.5, 0.36, 0.64];

/**
 * Add an edge between two marks; return candidate positions of its name.
 * @param {Path} lines @param {Path | null} arrows null: without a head @param {Mark} from @param {Mark} to @param {number} bend 0: straight @param {number} size of the head @returns {[number, number][]}
 */
export function addEdge(lines, arrows, from, to, bend, size) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const aside = bend * (13 + 0.16 * Math.min(length, 400));
  const [cx, cy] = [(from.x + to.x) / 2 - (dy / length) * aside, (from.y + to.y) / 2 + (dx / length) * aside];
  let [x, y] = [to.x, to.y];
  const [tipX, tipY] = leave(to, bend ? cx : from.x, bend ? cy : from.y, 1);
  const room = length - from.radius - to.radius;
  if (arrows && room > 2.2 * size) [x, y] = addArrow(arrows, tipX, tipY, bend ? cx : from.x, bend ? cy : from.y, size);
  lines.moveTo(from.x, from.y);
  if (bend) lines.quadraticCurveTo(cx, cy, x, y);
  else lines.lineTo(x, y);
  return NAME_PLACES.map((t) => [
    (1 - t) ** 2 * from.x + 2 * t * (1 - t) * cx + t ** 2 * to.x,
    (1 - t) ** 2 * from.y + 2 * t * (1 - t) * cy + t ** 2 * to.y,
  ]);
}

/** Add an edge from a mark to itself; return candidate positions of its name. @param {Path} lines @param {Path | null} arrows @param {Mark} mark @param {number} middle its direction @param {number} size @returns {[number, number][]} */
export function addLoop(lines, arrows, mark, middle, size) {
  const reach = mark.radius + 10 + 2.6 * size;
  const point = (/** @type {number} */ angle, /** @type {number} */ distance) => /** @type {[number, number]} */ ([mark.x + Math.cos(angle) * distance, mark.y + Math.sin(angle) * distance]);
  const [controlX, controlY] = point(middle - 0.55, reach * 1.5);
  const [otherX, otherY] = point(middle + 0.55, reach * 1.5);
  const begin = leave(mark, ...point(middle - 0.4, reach), 0);
  let end = leave(mark, ...point(middle + 0.4, reach), 1);
  if (arrows) end = addArrow(arrows, ...end, otherX, otherY, size);
  lines.moveTo(...begin);
  lines.bezierCurveTo(controlX, controlY, otherX, otherY, ...end);
  return [point(middle, reach * 1.28 + 12)];
}

/** Add an edge or a loop; return candidate positions of its name. @param {Path} lines @param {Path | null} arrows @param {DrawnEdge} edge @param {Mark} from @param {Mark} to @param {number} bend @param {number} size */
export const addCurve = (lines, arrows, edge, from, to, bend, size) => (edge.from === edge.to ? addLoop(lines, arrows, from, awayFrom(edge.from) - (bend * Math.PI) / 3, size) : addEdge(lines, arrows, from, to, bend, size));

/** Return the edge whose line passes a point of the picture. @param {import("./renderer.js").Renderer} renderer @param {DrawnEdge[]} edges @param {number} x pixels @param {number} y @param {number} size of arrowheads */
export function findEdgeAt({ context, density, at }, edges, x, y, size) {
  const bends = bendsOf(edges);
  context.setTransform(density, 0, 0, density, 0, 0);
  context.lineWidth = HIT_PIXELS;
  return edges.findLast((edge) => {
    if (edge.from.node.store) return false;
    const [from, to, bend] = [at(edge.from), at(edge.to), bends.get(edge) ?? 0];
    const aside = bend || edge.from === edge.to ? Number.POSITIVE_INFINITY : HIT_PIXELS;
    if (Math.min(from.x, to.x) - aside > x || Math.max(from.x, to.x) + aside < x || Math.min(from.y, to.y) - aside > y || Math.max(from.y, to.y) + aside < y) return false;
    const path = new Path2D();
    addCurve(path, null, edge, from, to, bend, size);
    return context.isPointInStroke(path, x * density, y * density);
  });
}

/** Add a ring segment. @param {Path} path @param {number} x @param {number} y @param {number} inner @param {number} outer @param {number} start @param {number} end */
function addSector(path, x, y, inner, outer, start, end) {
  path.moveTo(x + Math.cos(start) * inner, y + Math.sin(start) * inner);
  path.arc(x, y, outer, start, end);
  path.arc(x, y, inner, end, start, true);
  path.closePath();
}

/** Draw the sectors of fans, which replace the edges to their leaves. @param {import("./renderer.js").Renderer} renderer @param {import("./renderer.js").Scene} scene @param {import("./renderer.js").View} view */
export function drawSectors(renderer, { sectors }, view) {
  const { context, palette, width, height } = renderer;
  for (const { lit, colour, sector: { hub, start, end, inner, outer } } of sectors) {
    const [x, y] = [(hub.x - view.x) * view.scale + width / 2, (hub.y - view.y) * view.scale + height / 2];
    const path = renderer.newPath();
    addSector(path, x, y, Math.max(1, inner * 0.3) * view.scale, (outer + 9) * view.scale, start, end);
    context.globalAlpha = lit ? 0.3 : 0.13;
    context.fillStyle = palette.types[colour];
    context.fill(path);
    context.globalAlpha = 1;
  }
}

/** Return the area of a loop that labels must avoid. @param {Mark} mark @param {[number, number]} name where its name may stand @returns {import("./placement.js").Disc} */
export function loopDisc(mark, [x, y]) {
  const share = 0.42;
  return { x: mark.x + (x - mark.x) * share, y: mark.y + (y - mark.y) * share, radius: Math.hypot(x - mark.x, y - mark.y) * share * 0.7, round: true };
}

/** Return the angle opposite to a node's neighbours, in radians. @param {import("./renderer.js").DrawnNode} drawn */
export function awayFrom({ node, towards }) {
  let [x, y] = [0, 0];
  for (const other of towards) {
    const distance = Math.hypot(other.x - node.x, other.y - node.y) || 1;
    x -= (other.x - node.x) / distance;
    y -= (other.y - node.y) / distance;
  }
  return x || y ? Math.atan2(y, x) : -Math.PI / 4;
}
