// Export of the canvas: PNG by the renderer, SVG as text.

import { LIGHT } from "./colours.js";
import { Renderer } from "./renderer.js";

const SIDE = 1600;
const MARGIN = 80;

/** @typedef {import("./renderer.js").Scene} Scene */

/** The rectangle that holds all nodes. @param {Scene} scene */
function bounds({ nodes }) {
  const [xs, ys] = [nodes.map((one) => one.node.x), nodes.map((one) => one.node.y)];
  const least = (/** @type {number[]} */ all) => all.reduce((one, other) => Math.min(one, other), Number.POSITIVE_INFINITY);
  const most = (/** @type {number[]} */ all) => all.reduce((one, other) => Math.max(one, other), Number.NEGATIVE_INFINITY);
  return nodes.length ? { left: least(xs), right: most(xs), top: least(ys), bottom: most(ys) } : { left: 0, right: 1, top: 0, bottom: 1 };
}

/** @param {Scene} scene @returns {Promise<Blob>} */
export function pictureOf(scene) {
  const { left, right, top, bottom } = bounds(scene);
  const scale = Math.min(3, (SIDE - 2 * MARGIN) / Math.max(right - left, bottom - top, 1));
  const canvas = new OffscreenCanvas(1, 1);
  const renderer = new Renderer(canvas);
  renderer.fit((right - left) * scale + 2 * MARGIN, (bottom - top) * scale + 2 * MARGIN, 1, false);
  renderer.draw(scene, { x: (left + right) / 2, y: (top + bottom) / 2, scale });
  return canvas.convertToBlob({ type: "image/png" });
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// biome-ignore lint/suspicious/noControlCharactersInRegex: XML has no way to write them
const UNWRITABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ud800-\udfff\ufffe\uffff]/gu;
const escaped = (/** @type {string} */ text) => text.replace(UNWRITABLE, "\ufffd").replace(/[&<>"]/g, (sign) => ESCAPES[sign]);

/** @param {Scene} scene @returns {string} */
export function svgOf(scene) {
  const { left, right, top, bottom } = bounds(scene);
  const [w, h] = [right - left + 2 * MARGIN, bottom - top + 2 * MARGIN];
  const r = (/** @type {number} */ value) => Math.round(value * 10) / 10;
  const lines = scene.edges.map(({ from, to, manner }) => `<line x1="${r(from.x)}" y1="${r(from.y)}" x2="${r(to.x)}" y2="${r(to.y)}"${manner === "dashed" ? ' stroke-dasharray="6 4"' : ""}/>`);
  const marks = scene.nodes.map(({ node, radius, colour, shape }) => {
    const fill = `fill="${LIGHT[colour]}"`;
    const [x, y] = [r(node.x), r(node.y)];
    const mark = shape === "square" ? `<rect x="${r(x - radius)}" y="${r(y - radius)}" width="${r(2 * radius)}" height="${r(2 * radius)}" ${fill}/>`
      : shape === "triangle" ? `<path d="M${x} ${r(y - radius * 1.2)}L${r(x + radius * 1.2)} ${r(y + radius)}L${r(x - radius * 1.2)} ${r(y + radius)}Z" ${fill}/>`
        : `<circle cx="${x}" cy="${y}" r="${r(radius)}" ${fill}/>`;
    return `${mark}<text x="${r(x + radius + 4)}" y="${r(y + 4)}">${escaped(node.label)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${r(left - MARGIN)} ${r(top - MARGIN)} ${r(w)} ${r(h)}" font-family="sans-serif" font-size="12">
<g stroke="#8c96a1">${lines.join("")}</g>
<g>${marks.join("\n")}</g></svg>
`;
}
