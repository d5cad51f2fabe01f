// Renderer of nodes and edges on a canvas, with paths batched by style, because each stroke and fill is expensive.

import { DARK, LIGHT } from "./colours.js";
import { addOutline, extentOf } from "./shapes.js";

/** @typedef {import("./model.js").Node} Node */
/** @typedef {import("./shapes.js").Mark} Mark */
/** @typedef {import("./placement.js").LabelArea} LabelArea */
/** @typedef {"plain" | "dim" | "dashed" | "gone" | "come" | "changed" | "lit"} Manner how something is drawn */
/** @typedef {{node: Node, radius: number, colour: number, shape: string, manner: Manner, badge: string, towards: Node[]}} DrawnNode `towards`: its neighbours, of few */
/** @typedef {{key: string, from: DrawnNode, to: DrawnNode, manner: Manner, width: number, type: string}} DrawnEdge */
/** @typedef {{colour: number, text: string, lit: boolean, sector: import("./model.js").Sector}} DrawnSector */
/** @typedef {{nodes: DrawnNode[], edges: DrawnEdge[], sectors: DrawnSector[], selected: Set<string>, focus: string, labelled: DrawnNode[], pulses: Map<string, number>, fade: boolean}} Scene */
/** @typedef {{x: number, y: number, scale: number}} View the place in the middle, and pixels a unit */
/** @typedef {{text: string, places: [number, number][], room: number, manner: Manner}} EdgeName where it may stand, and how long it may be */
/** @typedef {import("./placement.js").Box & {key: string, text: string, badge: string, manner: Manner | "soft"}} PlacedLabel `key`: of a node; empty: of an edge or a fan */

const WIDTHS = [0.7, 1.3, 2.6];
const TURN = 2 * Math.PI;
/** Number of nodes from which they have no rim. */
const MANY_NODES = 1500;
/** Number of nodes and edges from which a moving view is not redrawn. */
const CROWD = 500;
const ARROWS = 1200;
/** Number of edges above which they get paler with edges per node. */
const MANY_EDGES = 150;
const NAMED_EDGES = 40;
/** @type {Record<string, number[]>} */
const DASHES = { dashed: [6, 4], gone: [2, 4] };

/** Modules loaded after the first picture: labels, curves and arrowheads, and fast drawing of moving views. @type {(typeof import("./captions.js") & typeof import("./curves.js") & typeof import("./glide.js")) | null} */
let detail = null;
export const loadDetail = async () => {
  detail ??= Object.assign({}, ...(await Promise.all([import("./captions.js"), import("./curves.js"), import("./glide.js")])));
};

/** Return the radius of a node by its number of edges. @param {number} degree */
export const radiusOf = (degree) => 4 + Math.min(14, 1.6 * Math.log2(1 + degree));

/** Return the scale of marks and lines, which grows less than distances. @param {number} scale pixels a unit */
export const growth = (scale) => Math.min(2.2, scale ** 0.7);

/** Return the size of arrowheads. @param {number} grown */
export const headOf = (grown) => 3 + 2.2 * Math.min(1.4, grown);

/** Return the area of a mark that labels must avoid. @param {Mark} mark @param {number} [gap] */
export const discOf = ({ x, y, radius, shape }, gap = 1) => ({ x, y, radius: radius * extentOf(shape) + gap, round: shape === "circle" });

/** Return the colours of the light or dark theme. @param {boolean} dark */
const paletteOf = (dark) => ({
  types: dark ? DARK : LIGHT,
  ground: dark ? "#14171a" : "#ffffff",
  text: dark ? "#e6e9ed" : "#1c2024",
  soft: dark ? "#a3adb8" : "#5a636d",
  line: dark ? "#66717b" : "#98a2ad",
  dim: dark ? "#3a424a" : "#d5dae0",
  lit: dark ? "#ffffff" : "#000000",
  gone: dark ? "#ff8080" : "#c81e1e",
  come: dark ? "#5fd38d" : "#0b7a3b",
  changed: dark ? "#ffc04d" : "#a85d00",
});

export class Renderer {
  /** @param {HTMLCanvasElement | OffscreenCanvas | {width: number, height: number}} canvas @param {any} [context] what is drawn with, if not the canvas's own */
  constructor(canvas, context) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (context ?? /** @type {HTMLCanvasElement} */ (canvas).getContext("2d", { alpha: false }));
    this.newPath = () => context?.newPath() ?? new Path2D();
    this.density = 1;
    this.dark = false;
    this.width = 1;
    this.height = 1;
    this.palette = paletteOf(false);
    /** Return the mark of a node, in pixels. @type {(drawn: DrawnNode) => Mark} */
    this.at = () => ({ x: 0, y: 0, radius: 0, shape: "" });
    /** True while nodes move: large scenes get no labels. */
    this.hasty = false;
    /** Boxes of elements over the canvas, kept free of labels. @type {import("./placement.js").Box[]} */
    this.covered = [];
    /** Labels of the last picture. @type {PlacedLabel[]} */
    this.placed = [];
    /** Picture for moving views, with its scene and view. @type {{renderer: Renderer, scene: Scene, view: View} | null} */
    this.moving = null;
  }

  /** @param {number} width @param {number} height @param {number} density pixels of the screen for one of the page @param {boolean} dark */
  fit(width, height, density, dark) {
    Object.assign(this, { width, height, density, dark, palette: paletteOf(dark), moving: null });
    const [w, h] = [Math.max(1, Math.round(width * density)), Math.max(1, Math.round(height * density))];
    if (this.canvas.width !== w) this.canvas.width = w;
    if (this.canvas.height !== h) this.canvas.height = h;
  }

  /** @param {Scene} scene @param {View} view */
  draw(scene, view) {
    const { context, density, width, height } = this;
    const grown = growth(view.scale);
    this.moving = null;
    this.at = ({ node, radius, shape }) => ({
      x: (node.x - view.x) * view.scale + width / 2, y: (node.y - view.y) * view.scale + height / 2, radius: radius * grown, shape: node.store ? "diamond" : shape,
    });
    context.setTransform(density, 0, 0, density, 0, 0);
    context.fillStyle = this.palette.ground;
    context.fillRect(0, 0, width, height);
    const captions = detail && !(this.hasty && scene.nodes.length > CROWD) ? new detail.Captions(this, view) : null;
    const area = captions?.area ?? null;
    detail?.drawSectors(this, scene, view);
    const edges = this.edges(scene, grown, area);
    this.nodes(scene, grown, area);
    this.marks(scene);
    this.placed = captions?.write(scene, edges) ?? [];
  }

  /** Draw a moving view. @param {Scene} scene @param {View} view */
  glide(scene, view) {
    if (detail && scene.nodes.length + scene.edges.length >= CROWD) detail.glide(this, scene, view);
    else this.draw(scene, view);
  }

  /** @param {Scene} scene @param {number} grown @param {LabelArea | null} area @returns {EdgeName[]} names to be written onto edges */
  edges(scene, grown, area) {
    const { context, palette, width, height } = this;
    /** @type {Map<string, {edge: DrawnEdge, lines: Path2D, heads: Path2D}>} */
    const groups = new Map();
    const curves = scene.edges.length < ARROWS ? detail : null;
    const bends = curves?.bendsOf(scene.edges);
    const arrows = grown > 0.35;
    const size = headOf(grown);
    const named = [];
    for (const edge of scene.edges) {
      const [from, to] = [this.at(edge.from), this.at(edge.to)];
      if ((from.x < 0 && to.x < 0) || (from.y < 0 && to.y < 0) || (from.x > width && to.x > width) || (from.y > height && to.y > height)) continue;
      const name = `${edge.manner} ${edge.width}`;
      let group = groups.get(name);
      if (!group) {
        group = { edge, lines: this.newPath(), heads: this.newPath() };
        groups.set(name, group);
      }
      if (!curves) {
        group.lines.moveTo(from.x, from.y);
        group.lines.lineTo(to.x, to.y);
        continue;
      }
      const heads = arrows ? group.heads : null;
      const loop = edge.from === edge.to;
      const places = curves.addCurve(group.lines, heads, edge, from, to, bends?.get(edge) ?? 0, size);
      if (loop) area?.takeDisc(curves.loopDisc(from, places[0]));
      named.push({ text: edge.type, places, room: loop ? 90 : Math.hypot(from.x - to.x, from.y - to.y) - from.radius - to.radius, manner: edge.manner });
    }
    for (const { edge, lines, heads } of groups.values()) {
      context.lineWidth = WIDTHS[edge.width];
      context.strokeStyle = palette[edge.manner] ?? palette.line;
      context.globalAlpha = edge.manner === "plain" ? Math.min(1, Math.max(0.35, scene.edges.length > MANY_EDGES ? (1.6 * scene.nodes.length) / scene.edges.length : 1) * (curves ? 1 : 0.6)) : 1;
      context.setLineDash(DASHES[edge.manner] ?? []);
      context.stroke(lines);
      context.fillStyle = context.strokeStyle;
      context.fill(heads);
    }
    context.globalAlpha = 1;
    context.setLineDash([]);
    return named.length <= NAMED_EDGES ? named : named.filter(({ manner }) => manner === "lit").slice(0, NAMED_EDGES);
  }

  /** @param {Scene} scene @param {number} grown @param {LabelArea | null} area */
  nodes(scene, grown, area) {
    const { context, palette, width, height } = this;
    /** @type {Map<string, [DrawnNode, Path2D]>} */
    const groups = new Map();
    for (const drawn of scene.nodes) {
      const mark = this.at(drawn);
      const { x, y, radius } = mark;
      if (x < -radius || y < -radius || x > width + radius || y > height + radius) continue;
      area?.takeDisc(discOf(mark));
      const faint = scene.fade && drawn.node.confidence !== null ? Math.ceil(drawn.node.confidence * 4) : 4;
      const name = `${drawn.colour} ${drawn.manner} ${faint} ${drawn.node.store ? "elsewhere" : ""}`;
      let group = groups.get(name);
      if (!group) {
        group = [drawn, this.newPath()];
        groups.set(name, group);
      }
      addOutline(group[1], mark);
    }
    for (const [drawn, path] of groups.values()) {
      const ended = drawn.manner === "dashed" || drawn.manner === "gone";
      const colour = drawn.manner === "plain" || drawn.manner === "dashed" || drawn.manner === "lit" ? palette.types[drawn.colour] : palette[drawn.manner];
      const hollow = ended || drawn.node.store;
      const faint = scene.fade && drawn.node.confidence !== null;
      context.fillStyle = palette.ground;
      if (hollow || faint) context.fill(path);
      context.globalAlpha = faint ? 0.25 + (0.75 * Math.ceil(Number(drawn.node.confidence) * 4)) / 4 : 1;
      context.fillStyle = colour;
      if (!hollow) context.fill(path);
      context.globalAlpha = 1;
      context.strokeStyle = hollow ? colour : palette.ground;
      context.lineWidth = hollow ? 2 : Math.min(1.5, 1.5 * grown);
      context.setLineDash(ended ? [3, 3] : []);
      if (hollow || scene.nodes.length < MANY_NODES) context.stroke(path);
    }
    context.setLineDash([]);
  }

  /** Draw rings on nodes that are selected, in focus, pinned, in conflict or just changed. @param {Scene} scene */
  marks(scene) {
    const { context, palette } = this;
    const ring = (/** @type {DrawnNode} */ drawn, /** @type {number} */ gap, /** @type {string} */ colour, /** @type {number} */ width) => {
      const { x, y, radius } = this.at(drawn);
      context.beginPath();
      context.arc(x, y, radius + gap, 0, TURN);
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.stroke();
    };
    for (const drawn of scene.nodes) {
      const { node } = drawn;
      if (node.conflict) ring(drawn, 2, palette.gone, 2);
      if (node.pinned) ring(drawn, -0.7 * this.at(drawn).radius, palette.ground, 2);
      if (scene.selected.has(node.key)) ring(drawn, 3.5, palette.lit, 2);
      if (scene.focus === node.key) ring(drawn, 6.5, palette.lit, 1);
      const pulse = scene.pulses.get(node.key);
      if (pulse !== undefined) ring(drawn, 6 + 14 * pulse, palette.changed, 3 * (1 - pulse) + 0.5);
    }
  }
}
