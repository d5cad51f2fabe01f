// Outlines of nodes, independent of the drawing context.

/** @typedef {{moveTo(x: number, y: number): void, lineTo(x: number, y: number): void, quadraticCurveTo(a: number, b: number, x: number, y: number): void, bezierCurveTo(a: number, b: number, c: number, d: number, x: number, y: number): void, arc(x: number, y: number, r: number, from: number, to: number, back?: boolean): void, rect(x: number, y: number, w: number, h: number): void, closePath(): void}} Path */
/** @typedef {{x: number, y: number, radius: number, shape: string}} Mark where it is, in pixels */

const TURN = 2 * Math.PI;
const SMALLEST_SHAPE = 2.2;
/** Corners of shapes of radius 1, clockwise. @type {Record<string, [number, number][]>} */
export const CORNERS = {
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  triangle: [[0, -1.2], [1.2, 0.8], [-1.2, 0.8]],
  diamond: [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
  hexagon: [[1.08, 0], [0.54, 0.94], [-0.54, 0.94], [-1.08, 0], [-0.54, -0.94], [0.54, -0.94]],
};
/** Return half the side of a square that holds a shape of radius 1. @param {string} shape */
export const extentOf = (shape) => Math.max(1, ...(CORNERS[shape] ?? []).flat());

/** Add the outline of a node. `closePath` is avoided: in Chromium its time grows with the length of the path. @param {Path} path @param {Mark} mark */
export function addOutline(path, { x, y, radius, shape }) {
  const corners = CORNERS[shape];
  if (radius < SMALLEST_SHAPE) path.rect(x - radius, y - radius, 2 * radius, 2 * radius);
  else if (corners) {
    const [[first, top], [last, bottom]] = [corners[0], corners[corners.length - 1]];
    // The ends meet in the middle of a side, where a stroke needs no corner.
    const [startX, startY] = [x + ((first + last) / 2) * radius, y + ((top + bottom) / 2) * radius];
    path.moveTo(startX, startY);
    for (const [dx, dy] of corners) path.lineTo(x + dx * radius, y + dy * radius);
    path.lineTo(startX, startY);
  } else {
    path.moveTo(x + radius, y);
    path.arc(x, y, radius, 0, TURN);
  }
}
