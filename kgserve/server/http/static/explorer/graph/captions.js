// Selection, placement and drawing of labels for nodes, edges and fans.

import { short } from "./labels.js";
import { LabelArea } from "./placement.js";
import { discOf } from "./renderer.js";

/** @typedef {import("./renderer.js").DrawnNode} DrawnNode */
/** @typedef {import("./renderer.js").DrawnSector} DrawnSector */
/** @typedef {import("./renderer.js").Scene} Scene */

const LABEL_LENGTH = 24;
const NARROW_LENGTH = 11;
const LABEL_HEIGHT = 15;
/** Canvas area per label in square pixels, and maximum number of visible nodes to try. */
const LABEL_AREA = 8000;
const MAX_TRIED = 350;
/** Number of important nodes that get a label with a leader line if there is no room next to them. */
const CALLED = 8;
const CALL_DISTANCES = Array.from({ length: 11 }, (_, i) => 26 + 20 * i);
const CALL_ANGLES = [0, 0.35, -0.35, 0.7, -0.7, 1.05, -1.05];
/** Distances of a count label from the rim of a fan, in pixels. */
const COUNT_DISTANCES = [4, 20, 36, 52, 68];
const FONT = "system-ui, sans-serif";
/** Cache of text widths in pixels. @type {Map<string, number>} */
const widths = new Map();

/** Labels of one picture. */
export class Captions {
  /** @param {import("./renderer.js").Renderer} renderer @param {import("./renderer.js").View} view */
  constructor(renderer, view) {
    this.renderer = renderer;
    this.view = view;
    this.area = new LabelArea(renderer.width, renderer.height);
    for (const box of renderer.covered) this.area.take(box);
    /** @type {import("./renderer.js").PlacedLabel[]} */
    this.placed = [];
  }

  /** Return the width of a text in pixels, cached. @param {string} text @param {boolean} bold */
  widthOf(text, bold) {
    const name = `${bold ? "b" : "n"}${text}`;
    let width = widths.get(name);
    if (width === undefined) {
      this.renderer.context.font = `${bold ? "600 " : ""}12px ${FONT}`;
      width = this.renderer.context.measureText(text).width;
      if (widths.size > 20_000) widths.clear();
      widths.set(name, width);
    }
    return width;
  }

  /** Place and draw labels of nodes, most important first, then names of edges. @param {Scene} scene @param {import("./renderer.js").EdgeName[]} edges */
  write(scene, edges) {
    const most = Math.max(30, (this.renderer.width * this.renderer.height) / LABEL_AREA);
    const chosen = (/** @type {DrawnNode} */ { node }) => scene.selected.has(node.key) || scene.focus === node.key;
    const first = scene.labelled.findIndex((drawn) => !chosen(drawn));
    const begin = first < 0 ? scene.labelled.length : first;
    for (const drawn of scene.labelled.slice(0, begin)) this.label(drawn, true);
    for (const sector of scene.sectors) if (sector.text) this.count(sector);
    let tried = 0;
    for (let i = begin; i < scene.labelled.length && tried < MAX_TRIED && this.placed.length < most; i++) tried += Number(this.label(scene.labelled[i], false, tried < CALLED));
    for (const { text, places, room, manner } of edges) {
      const width = this.widthOf(text, false) * 0.88 + 6;
      const box = width < room ? this.area.placeAt(places, width, LABEL_HEIGHT - 1) : null;
      if (box) this.placed.push({ ...box, key: "", text, badge: "", manner: manner === "lit" ? "lit" : "soft" });
    }
    this.draw();
    return this.placed;
  }

  /** Label a node if there is room; return whether it is in sight. @param {DrawnNode} drawn @param {boolean} bold */
  label(drawn, bold, important = bold) {
    const mark = this.renderer.at(drawn);
    if (mark.x < 0 || mark.y < 0 || mark.x > this.renderer.width || mark.y > this.renderer.height) return false;
    const lines = drawn.towards.map((other) => {
      const [dx, dy] = [other.x - drawn.node.x, other.y - drawn.node.y];
      const length = Math.hypot(dx, dy) || 1;
      return /** @type {[number, number]} */ ([dx / length, dy / length]);
    });
    const name = drawn.node.label;
    /** @type {[number, string][]} */
    const forms = [[LABEL_LENGTH, drawn.badge], ...(drawn.badge ? [/** @type {[number, string]} */ ([LABEL_LENGTH, ""])] : []), ...(name.length > NARROW_LENGTH ? [/** @type {[number, string]} */ ([NARROW_LENGTH, ""])] : [])];
    for (const [most, badge] of forms) {
      const text = short(name, most);
      const width = this.widthOf(text, bold) + (badge ? this.widthOf(` ${badge}`, bold) : 0) + 4;
      const box = this.area.placeBeside(discOf(mark, bold ? 7 : 1), width, LABEL_HEIGHT, lines);
      if (!box) continue;
      this.placed.push({ ...box, key: drawn.node.key, text, badge, manner: bold ? "lit" : drawn.manner });
      return true;
    }
    if (important && drawn.manner !== "dim") this.call(drawn, bold);
    return true;
  }

  /** Label an important node at a distance, with a leader line. @param {DrawnNode} drawn @param {boolean} bold */
  call(drawn, bold) {
    const { x, y, radius } = this.renderer.at(drawn);
    const text = short(drawn.node.label, LABEL_LENGTH);
    const width = this.widthOf(text, bold) + 4;
    const away = Math.atan2(y - this.renderer.height / 2, x - this.renderer.width / 2);
    const places = CALL_DISTANCES.flatMap((distance) => CALL_ANGLES.map((angle) => {
      const [dx, dy] = [Math.cos(away + angle), Math.sin(away + angle)];
      return /** @type {[number, number]} */ ([x + dx * (radius + distance + width / 2), y + dy * (radius + distance)]);
    }));
    const box = this.area.placeAt(places, width, LABEL_HEIGHT);
    if (!box) return;
    const end = [Math.min(Math.max(x, box.left), box.right), Math.min(Math.max(y, box.top), box.bottom)];
    const length = Math.hypot(end[0] - x, end[1] - y) || 1;
    const { context } = this.renderer;
    context.beginPath();
    context.moveTo(x + ((end[0] - x) / length) * radius, y + ((end[1] - y) / length) * radius);
    context.lineTo(end[0], end[1]);
    context.strokeStyle = this.renderer.palette.text;
    context.lineWidth = 0.8;
    context.stroke();
    this.placed.push({ ...box, key: drawn.node.key, text, badge: "", manner: bold ? "lit" : drawn.manner });
  }

  /** Label a sector of a fan with its number of leaves. @param {DrawnSector} sector */
  count({ text, sector: { hub, start, end, outer } }) {
    const width = this.widthOf(text, true) + 6;
    const [x, y] = [(hub.x - this.view.x) * this.view.scale + this.renderer.width / 2, (hub.y - this.view.y) * this.view.scale + this.renderer.height / 2];
    const places = COUNT_DISTANCES.flatMap((away) => [0.5, 0.3, 0.7, 0.12, 0.88].map((share) => {
      const angle = start + (end - start) * share;
      const [dx, dy] = [Math.cos(angle), Math.sin(angle)];
      const distance = (outer + 14) * this.view.scale + away + (Math.abs(dx) * width + Math.abs(dy) * LABEL_HEIGHT) / 2;
      return /** @type {[number, number]} */ ([x + dx * distance, y + dy * distance]);
    }));
    const box = this.area.placeAt(places, width, LABEL_HEIGHT);
    if (box) this.placed.push({ ...box, key: "", text, badge: "", manner: "lit" });
  }

  /** Draw the placed labels. */
  draw() {
    const { context, palette } = this.renderer;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.lineJoin = "round";
    for (const { left, top, bottom, text, badge, manner, key } of this.placed) {
      const bold = manner === "lit" && (key !== "" || /^\d/.test(text));
      const [x, y] = [left + 2, (top + bottom) / 2 + 0.5];
      context.font = `${bold ? "600 " : ""}${key || bold ? 12 : 10.5}px ${FONT}`;
      context.strokeStyle = palette.ground;
      context.lineWidth = 3.5;
      context.strokeText(text, x, y);
      context.fillStyle = manner === "dim" || manner === "soft" ? palette.soft : palette.text;
      context.fillText(text, x, y);
      if (!badge) continue;
      const after = x + this.widthOf(`${text} `, bold);
      context.font = `${bold ? "600 " : ""}12px ${FONT}`;
      context.strokeText(badge, after, y);
      context.fillStyle = palette.changed;
      context.fillText(badge, after, y);
    }
  }
}
