// Draws nodes and edges into a canvas. Paths are batched by style, because each stroke and fill is expensive.

import { DARK, LIGHT } from "./colours.js";

/** @typedef {import("./model.js").Node} Node */
/** @typedef {import("./model.js").Edge} Edge */
/** @typedef {"plain" | "dim" | "dashed" | "gone" | "come" | "changed" | "lit"} Manner how something is drawn */
/** @typedef {{node: Node, radius: number, colour: number, shape: string, manner: Manner, badge: string}} DrawnNode */
/** @typedef {{from: Node, to: Node, manner: Manner, width: number, type: string}} DrawnEdge */
/** @typedef {{nodes: DrawnNode[], edges: DrawnEdge[], selected: Set<string>, focus: string, labelled: DrawnNode[], pulses: Map<string, number>, fade: boolean}} Scene */
/** @typedef {{x: number, y: number, scale: number}} View the place in the middle, and pixels a unit */

const WIDTHS = [0.8, 1.6, 3];
const TURN = 2 * Math.PI;
const MANY_LABELS = 90;
/** Limit of labels, which are expensive to draw. */
const CROWD = 1500;
const LABELS_OF_CROWD = 25;
const ARROWS = 600;
/** @type {Record<string, number[]>} */
const DASHES = { dashed: [6, 4], gone: [2, 4] };

/** How big a node is, by how many edges it has. @param {number} degree */
export const radiusOf = (degree) => 4 + Math.min(14, 1.6 * Math.log2(1 + degree));

/** Colours of the page, so that both grounds work. @param {boolean} dark */
const paletteOf = (dark) => ({
  types: dark ? DARK : LIGHT,
  ground: dark ? "#14171a" : "#ffffff",
  text: dark ? "#e6e9ed" : "#1c2024",
  line: dark ? "#77818c" : "#8c96a1",
  dim: dark ? "#3a424a" : "#d5dae0",
  lit: dark ? "#ffffff" : "#000000",
  gone: dark ? "#ff8080" : "#c81e1e",
  come: dark ? "#5fd38d" : "#0b7a3b",
  changed: dark ? "#ffc04d" : "#a85d00",
});

export class Renderer {
  /** @param {HTMLCanvasElement | OffscreenCanvas} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
    this.dark = false;
    this.density = 1;
    this.palette = paletteOf(false);
    /** Where a node is on the canvas. @type {(node: Node) => [number, number]} */
    this.at = () => [0, 0];
  }

  /** @param {number} width @param {number} height @param {number} density pixels of the screen for one of the page @param {boolean} dark */
  fit(width, height, density, dark) {
    this.density = density;
    this.palette = paletteOf(dark);
    const [w, h] = [Math.max(1, Math.round(width * density)), Math.max(1, Math.round(height * density))];
    if (this.canvas.width !== w) this.canvas.width = w;
    if (this.canvas.height !== h) this.canvas.height = h;
  }

  /** @param {Scene} scene @param {View} view */
  draw(scene, view) {
    const { context, canvas, density, palette } = this;
    const scale = view.scale * density;
    this.at = (node) => [(node.x - view.x) * scale + canvas.width / 2, (node.y - view.y) * scale + canvas.height / 2];
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = palette.ground;
    context.fillRect(0, 0, canvas.width, canvas.height);
    this.edges(scene, scale);
    this.nodes(scene, scale);
    this.marks(scene, scale);
    this.labels(scene, scale);
  }

  /** @param {Scene} scene @param {number} scale */
  edges(scene, scale) {
    const { context, canvas, palette, density } = this;
    /** @type {Map<string, [DrawnEdge, Path2D]>} */
    const groups = new Map();
    const arrows = scale / density > 0.5 && scene.edges.length < ARROWS ? new Path2D() : null;
    for (const edge of scene.edges) {
      const [x, y] = this.at(edge.from);
      const [u, v] = this.at(edge.to);
      if ((x < 0 && u < 0) || (y < 0 && v < 0) || (x > canvas.width && u > canvas.width) || (y > canvas.height && v > canvas.height)) continue;
      const name = `${edge.manner} ${edge.width}`;
      let group = groups.get(name);
      if (!group) {
        group = [edge, new Path2D()];
        groups.set(name, group);
      }
      if (edge.from === edge.to) {
        const r = 10 * scale;
        group[1].moveTo(x + r, y - r);
        group[1].arc(x, y - r, r, 0, TURN);
        continue;
      }
      group[1].moveTo(x, y);
      group[1].lineTo(u, v);
      if (arrows) arrow(arrows, x, y, u, v, (radiusOf(edge.to.degree) + 1) * scale, 5 * density);
    }
    for (const [edge, path] of groups.values()) {
      context.lineWidth = WIDTHS[edge.width] * density;
      context.strokeStyle = palette[edge.manner] ?? palette.line;
      context.setLineDash((DASHES[edge.manner] ?? []).map((each) => each * density));
      context.stroke(path);
    }
    context.setLineDash([]);
    if (!arrows) return;
    context.fillStyle = palette.line;
    context.fill(arrows);
  }

  /** @param {Scene} scene @param {number} scale */
  nodes(scene, scale) {
    const { context, canvas, palette } = this;
    /** @type {Map<string, [DrawnNode, Path2D]>} */
    const groups = new Map();
    for (const drawn of scene.nodes) {
      const [x, y] = this.at(drawn.node);
      const r = drawn.radius * scale;
      if (x < -r || y < -r || x > canvas.width + r || y > canvas.height + r) continue;
      const faint = scene.fade && drawn.node.confidence !== null ? Math.ceil(drawn.node.confidence * 4) : 4;
      const name = `${drawn.colour} ${drawn.manner} ${faint} ${drawn.node.store ? "elsewhere" : ""}`;
      let group = groups.get(name);
      if (!group) {
        group = [drawn, new Path2D()];
        groups.set(name, group);
      }
      outline(group[1], drawn.node.store ? "diamond" : drawn.shape, x, y, r);
    }
    for (const [drawn, path] of groups.values()) {
      const ended = drawn.manner === "dashed" || drawn.manner === "gone";
      const colour = drawn.manner === "plain" || drawn.manner === "dashed" || drawn.manner === "lit" ? palette.types[drawn.colour] : palette[drawn.manner];
      const hollow = ended || drawn.node.store;
      context.fillStyle = hollow ? palette.ground : colour;
      context.globalAlpha = scene.fade && drawn.node.confidence !== null ? 0.25 + 0.75 * Math.ceil(drawn.node.confidence * 4) / 4 : 1;
      context.fill(path);
      context.globalAlpha = 1;
      context.strokeStyle = hollow ? colour : palette.ground;
      context.lineWidth = (hollow ? 2 : 1) * this.density;
      context.setLineDash(ended ? [3 * this.density, 3 * this.density] : []);
      if (hollow || scene.nodes.length < CROWD) context.stroke(path);
    }
    context.setLineDash([]);
  }

  /** Rings of what is selected, in focus, in conflict, or has just changed. @param {Scene} scene @param {number} scale */
  marks(scene, scale) {
    const { context, palette, density } = this;
    const ring = (/** @type {DrawnNode} */ drawn, /** @type {number} */ gap, /** @type {string} */ colour, /** @type {number} */ width) => {
      const [x, y] = this.at(drawn.node);
      context.beginPath();
      context.arc(x, y, drawn.radius * scale + gap * density, 0, TURN);
      context.lineWidth = width * density;
      context.strokeStyle = colour;
      context.stroke();
    };
    for (const drawn of scene.nodes) {
      const { node } = drawn;
      if (node.conflict) ring(drawn, 2, palette.gone, 2);
      if (node.pinned) ring(drawn, 1, palette.text, 1);
      if (scene.selected.has(node.key)) ring(drawn, 4, palette.lit, 2.5);
      if (scene.focus === node.key) ring(drawn, 8, palette.lit, 1.2);
      const pulse = scene.pulses.get(node.key);
      if (pulse !== undefined) ring(drawn, 6 + 14 * pulse, palette.changed, 3 * (1 - pulse) + 0.5);
    }
  }

  /** Names of the biggest that are in sight and do not lie upon each other. @param {Scene} scene @param {number} scale */
  labels(scene, scale) {
    const { context, canvas, palette, density } = this;
    const size = 12 * density;
    context.font = `${size}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 3 * density;
    const taken = new Set();
    let shown = 0;
    for (const drawn of scene.labelled) {
      if (shown >= (scene.nodes.length > CROWD ? LABELS_OF_CROWD : MANY_LABELS)) break;
      const [x, y] = this.at(drawn.node);
      if (x < 0 || y < 0 || x > canvas.width || y > canvas.height) continue;
      const row = Math.floor((2 * y) / (size * 1.3));
      const column = Math.floor(x / (size * 3.2));
      const columns = Array.from({ length: 3 * (Math.ceil(drawn.node.label.length / 6) + 2) }, (_, i) => `${row + (i % 3)} ${column + Math.floor(i / 3)}`);
      const chosen = scene.selected.has(drawn.node.key) || scene.focus === drawn.node.key;
      if (!chosen && columns.some((cell) => taken.has(cell))) continue;
      for (const cell of columns) taken.add(cell);
      const left = x + drawn.radius * scale + 4 * density;
      context.strokeStyle = palette.ground;
      context.strokeText(drawn.node.label, left, y);
      context.fillStyle = drawn.manner === "dim" ? palette.line : palette.text;
      context.fillText(drawn.node.label, left, y);
      shown++;
      if (drawn.badge) {
        context.fillStyle = palette.changed;
        context.fillText(drawn.badge, left, y + size * 1.1);
      }
    }
  }
}

/** @param {Path2D} path @param {string} shape @param {number} x @param {number} y @param {number} r */
function outline(path, shape, x, y, r) {
  if (r < 2.2 || shape === "square") {
    const side = r < 2.2 ? r : r * 0.9;
    path.rect(x - side, y - side, 2 * side, 2 * side);
  } else if (shape === "triangle" || shape === "diamond") {
    const big = r * 1.2;
    path.moveTo(x, y - big);
    path.lineTo(x + big, shape === "diamond" ? y : y + r * 0.8);
    path.lineTo(shape === "diamond" ? x : x - big, shape === "diamond" ? y + big : y + r * 0.8);
    if (shape === "diamond") path.lineTo(x - big, y);
    path.closePath();
  } else {
    path.moveTo(x + r, y);
    path.arc(x, y, r, 0, TURN);
  }
}

/** @param {Path2D} path @param {number} x @param {number} y @param {number} u @param {number} v @param {number} back @param {number} size */
function arrow(path, x, y, u, v, back, size) {
  const length = Math.hypot(u - x, v - y);
  if (length <= back + size) return;
  const [dx, dy] = [(u - x) / length, (v - y) / length];
  const [tx, ty] = [u - dx * back, v - dy * back];
  path.moveTo(tx, ty);
  path.lineTo(tx - dx * size * 1.6 - dy * size * 0.7, ty - dy * size * 1.6 + dx * size * 0.7);
  path.lineTo(tx - dx * size * 1.6 + dy * size * 0.7, ty - dy * size * 1.6 - dx * size * 0.7);
  path.closePath();
}
