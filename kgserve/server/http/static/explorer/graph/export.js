// Export of the canvas as PNG and SVG.

import { bounds } from "./layout.js";
import { loadDetail, Renderer } from "./renderer.js";

const SIDE = 1600;
const MARGIN = 110;

/** @typedef {import("./renderer.js").Scene} Scene */

/** Return the size and view of a picture of the whole scene. @param {Scene} scene */
function frameOf(scene) {
  const { left, right, top, bottom } = bounds(scene.nodes.map(({ node }) => node));
  const scale = Math.min(1.6, (SIDE - 2 * MARGIN) / Math.max(right - left, bottom - top, 1));
  return {
    width: Math.round((right - left) * scale) + 2 * MARGIN, height: Math.round((bottom - top) * scale) + 2 * MARGIN,
    view: { x: (left + right) / 2, y: (top + bottom) / 2, scale },
  };
}

/** @param {Scene} scene @param {boolean} [dark] @returns {Promise<Blob>} */
export async function pictureOf(scene, dark = false) {
  await loadDetail();
  const { width, height, view } = frameOf(scene);
  const canvas = new OffscreenCanvas(1, 1);
  const renderer = new Renderer(canvas);
  renderer.fit(width, height, 2, dark);
  renderer.draw(scene, view);
  return canvas.convertToBlob({ type: "image/png" });
}

/** @param {Scene} scene @param {boolean} [dark] @returns {Promise<string>} */
export async function svgOf(scene, dark = false) {
  await loadDetail();
  const { width, height, view } = frameOf(scene);
  const context = new SvgContext();
  const renderer = new Renderer({ width, height }, context);
  renderer.fit(width, height, 1, dark);
  renderer.draw(scene, view);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif">\n${context.parts.join("\n")}\n</svg>\n`;
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// biome-ignore lint/suspicious/noControlCharactersInRegex: XML has no way to write them
const UNWRITABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ud800-\udfff\ufffe\uffff]/gu;
const escaped = (/** @type {string} */ text) => text.replace(UNWRITABLE, "\ufffd").replace(/[&<>"]/g, (sign) => ESCAPES[sign]);
const n = (/** @type {number} */ value) => String(Math.round(value * 10) / 10);

/** Path that builds SVG path data. */
class SvgPath {
  constructor() {
    this.text = "";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.text += `M${n(x)} ${n(y)}`;
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.text += `L${n(x)} ${n(y)}`;
  }

  /** @param {number[]} all */
  quadraticCurveTo(...all) {
    this.text += `Q${all.map(n).join(" ")}`;
  }

  /** @param {number[]} all */
  bezierCurveTo(...all) {
    this.text += `C${all.map(n).join(" ")}`;
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h */
  rect(x, y, w, h) {
    this.text += `M${n(x)} ${n(y)}h${n(w)}v${n(h)}h${n(-w)}Z`;
  }

  /** @param {number} x @param {number} y @param {number} r @param {number} from @param {number} to @param {boolean} [back] */
  arc(x, y, r, from, to, back = false) {
    const point = (/** @type {number} */ angle) => `${n(x + r * Math.cos(angle))} ${n(y + r * Math.sin(angle))}`;
    const middle = (from + to) / 2;
    const part = (/** @type {number} */ angle) => `A${n(r)} ${n(r)} 0 0 ${back ? 0 : 1} ${point(angle)}`;
    this.text += `${this.text && !this.text.endsWith("Z") ? "L" : "M"}${point(from)}${part(middle)}${part(to)}`;
  }

  closePath() {
    this.text += "Z";
  }
}

/** Subset of a canvas context that the renderer uses, writing SVG elements. */
class SvgContext extends SvgPath {
  constructor() {
    super();
    /** @type {string[]} */
    this.parts = [];
    this.fillStyle = "";
    this.strokeStyle = "";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "";
    this.dash = /** @type {number[]} */ ([]);
    this.measure = /** @type {OffscreenCanvasRenderingContext2D} */ (new OffscreenCanvas(1, 1).getContext("2d"));
  }

  newPath() {
    return new SvgPath();
  }

  setTransform() {}

  beginPath() {
    this.text = "";
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash;
  }

  /** @param {string} text */
  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }

  /** @param {SvgPath} [path] */
  fill(path = this) {
    if (path.text) this.parts.push(`<path d="${path.text}" fill="${this.fillStyle}"${this.faint()}/>`);
  }

  /** @param {SvgPath} [path] */
  stroke(path = this) {
    if (path.text) this.parts.push(`<path d="${path.text}" fill="none" ${this.line()}${this.faint()}/>`);
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h */
  fillRect(x, y, w, h) {
    this.parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${this.fillStyle}"/>`);
  }

  /** Do nothing: `fillText` draws the halo. */
  strokeText() {}

  /** @param {string} text @param {number} x @param {number} y */
  fillText(text, x, y) {
    const [, weight, size] = this.font.match(/^(600 )?([\d.]+)px/) ?? [];
    this.parts.push(`<text x="${n(x)}" y="${n(y)}" dominant-baseline="central" font-size="${size}"${weight ? ' font-weight="600"' : ""} fill="${this.fillStyle}" ${this.line()} stroke-linejoin="round" paint-order="stroke">${escaped(text)}</text>`);
  }

  line() {
    return `stroke="${this.strokeStyle}" stroke-width="${n(this.lineWidth)}"${this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : ""}`;
  }

  faint() {
    return this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : "";
  }
}
