// Graph canvas: viewport, node positions, and redrawing on changes.

import { effect, html, useEffect, useRef } from "../vendor/preact.js";
import { takeCamera } from "../link.js";
import { listen } from "../events.js";
import { bounds, Layout } from "../graph/layout.js";
import { Places } from "../graph/pick.js";
import { growth, loadDetail, radiusOf, Renderer } from "../graph/renderer.js";
import { sceneOf } from "../scene.js";
import { busy, changed, clock, compared, focus, graph, moved, revision, selected, settled, store, visible, way } from "../state.js";
import { W } from "../words.js";
import { CanvasTools } from "./lazy.js";

const PULSE = 1200;
const REACH = 10;
const MARGIN = 64;
/** Milliseconds without movement until the view is drawn sharp. */
const REST = 140;
/** Maximum scale when fitting all nodes. */
const CLOSEST = 2.2;
const NEAREST = 6;
const FARTHEST = 0.02;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const DARK = matchMedia("(prefers-color-scheme: dark)");

const radius = (/** @type {import("../graph/model.js").Node} */ node) => radiusOf(node.degree);

/** @type {Canvas | null} */
let current = null;
/** Canvas commands for keyboard and buttons. */
export const canvas = {
  fit: () => current?.fit(),
  zoom: (/** @type {number} */ by) => current?.zoom(by),
  relayout: () => current?.place(true),
  /** @returns {Canvas | null} */
  get shown() {
    return current;
  },
};
/** Viewport by store, kept while another view is shown. */
const views = new Map();

class Canvas {
  /** @param {HTMLCanvasElement} element */
  constructor(element) {
    this.element = element;
    this.renderer = new Renderer(element);
    const [x, y, scale] = takeCamera() ?? [];
    if (scale) views.set(store.value, { x, y, scale: Math.min(NEAREST, Math.max(FARTHEST, scale)), chosen: true });
    /** `chosen`: the user moved the viewport; otherwise all nodes stay visible. */
    this.view = views.get(store.value) ?? { x: 0, y: 0, scale: 1, chosen: false };
    this.fitted = views.has(store.value);
    /** True if a link sets the viewport. */
    this.linked = Boolean(scale);
    /** @type {Map<string, number>} */
    this.pulses = new Map();
    /** Start time of each pulse, in milliseconds. @type {Map<string, number>} */
    this.begun = new Map();
    this.frame = 0;
    this.scene = sceneOf(this.pulses);
    /** @type {Places | null} */
    this.places = null;
    this.layout = new Layout((done, first) => this.settle(done, first));
    this.frames = 0;
    /** True once the layout has settled; `ready`: once lazy modules are loaded. */
    this.done = true;
    this.ready = false;
    /** Boxes that cover the element; labels avoid them. @type {typeof import("./pointer.js").coveredBoxes} */
    this.covered = () => [];
    /** True if nodes have first positions that the scene lacks. */
    this.fresh = false;
    /** Timer until a moving view rests; 0: none. */
    this.gliding = 0;
  }

  /** Mark the lazy modules as loaded. */
  begin() {
    this.ready = true;
    if (this.done) settled.value = true;
    this.ask();
  }

  /** @param {boolean} done @param {boolean} first whether some nodes have their first positions */
  settle(done, first) {
    this.done = done;
    if (done && this.ready) settled.value = true;
    this.fresh ||= first;
    if (STILL.matches && !done) return;
    if (this.fresh) this.scene = sceneOf(this.pulses);
    this.fresh = false;
    this.places = null;
    if (!this.fitted) this.fit(false);
    if (done) {
      this.refit();
      this.fitted = true;
      this.linked = false;
      this.remember();
    }
    moved.value++;
  }

  /** @param {boolean} [restart] */
  place(restart = false) {
    if (restart) this.fitted = false;
    else this.recall();
    const nodes = [...graph.nodes.values()];
    const most = !this.linked && 2 * nodes.filter((node) => !node.placed).length >= nodes.length;
    if (this.layout.run(graph, radius, { restart })) {
      if (most) this.fitted = this.view.chosen = false;
    } else if (!nodes.length || this.layout.nodes[0] === nodes[0]) return;
    else this.layout.send(graph, radius);
    settled.value = this.done = false;
  }

  /** Fit a viewport that the user did not move to nodes that lie outside. */
  refit() {
    if (this.fitted && !this.view.chosen && [...visible.value.nodes.values()].some((node) => node.placed && !this.shows(node, 0))) this.fit();
  }

  /** @param {import("../graph/model.js").Node} node @param {number} margin pixels within the border of the element */
  shows(node, margin) {
    const [x, y] = this.screen(node);
    return x >= margin && y >= margin && x <= this.element.clientWidth - margin && y <= this.element.clientHeight - margin;
  }

  /** Store the positions of nodes for this tab. */
  remember() {
    const places = [...graph.nodes.values()].map((node) => [node.key, Math.round(node.x), Math.round(node.y)]);
    try {
      sessionStorage.setItem(`kgserve-places ${store.value}`, JSON.stringify(places));
    } catch {
      // Storage is full: the layout is computed again.
    }
  }

  /** Restore positions if all nodes have stored ones. */
  recall() {
    if ([...graph.nodes.values()].some((node) => node.placed && !node.pinned)) {
      return;
    }
    const kept = new Map(JSON.parse(sessionStorage.getItem(`kgserve-places ${store.value}`) ?? "[]").map((/** @type {any[]} */ [key, x, y]) => [key, [x, y]]));
    if (!graph.nodes.size || ![...graph.nodes.keys()].every((key) => kept.has(key))) return;
    for (const node of graph.nodes.values()) {
      if (!node.pinned) [node.x, node.y] = kept.get(node.key);
      node.placed = true;
    }
    if (!this.view.chosen) this.fit(false);
    this.fitted = true;
  }

  resize() {
    const { clientWidth, clientHeight } = this.element;
    if (!clientWidth) return; // The canvas was removed.
    this.renderer.fit(clientWidth, clientHeight, Math.min(2, devicePixelRatio), DARK.matches);
    if (this.fitted && !this.view.chosen) this.fit(false);
    this.ask();
  }

  /** Schedule a drawing for the next frame. */
  ask() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    for (const [key, begun] of this.begun) {
      const age = (performance.now() - begun) / PULSE;
      if (age >= 1) {
        this.begun.delete(key);
        this.pulses.delete(key);
      } else this.pulses.set(key, age);
    }
    this.renderer.hasty = !this.done;
    if (!this.gliding) this.renderer.covered = this.covered(this.element);
    if (this.gliding) this.renderer.glide(this.scene, this.view);
    else this.renderer.draw(this.scene, this.view);
    this.frames++;
    this.element.dataset.drawn = String(this.scene.nodes.length);
    if (this.pulses.size) this.ask();
  }

  /** Draw quickly until the view rests. */
  glide() {
    this.view.chosen = true;
    clearTimeout(this.gliding);
    this.gliding = setTimeout(() => {
      this.gliding = 0;
      this.ask();
    }, REST);
    this.ask();
  }

  /** @param {string} key */
  pulse(key) {
    if (STILL.matches) return;
    this.begun.set(key, performance.now());
    this.pulses.set(key, 0);
    this.ask();
  }

  /** Fit the viewport to all nodes. @param {boolean} [draw] */
  fit(draw = true) {
    this.view.chosen = false;
    const nodes = [...visible.value.nodes.values()].filter((node) => node.placed);
    if (nodes.length) {
      const { left, top, right, bottom } = bounds(nodes);
      const { clientWidth: w, clientHeight: h } = this.element;
      // The open time control covers the lower part.
      const covered = document.getElementById("clocks")?.offsetHeight ?? 0;
      const scale = Math.max(FARTHEST, Math.min((w - 2 * MARGIN) / (right - left || 1), (h - covered - 2 * MARGIN) / (bottom - top || 1), CLOSEST));
      this.view = { x: (left + right) / 2, y: (top + bottom) / 2 + covered / 2 / scale, scale, chosen: false };
      views.set(store.value, this.view);
    }
    if (draw) this.ask();
  }

  /** @param {number} by @param {[number, number]} [at] the point of the element that stays fixed */
  zoom(by, at) {
    const [x, y] = at ?? [this.element.clientWidth / 2, this.element.clientHeight / 2];
    const [u, v] = this.world(x, y);
    this.view.scale = Math.min(NEAREST, Math.max(FARTHEST, this.view.scale * by));
    const [s, t] = this.world(x, y);
    this.view.x += u - s;
    this.view.y += v - t;
    this.glide();
  }

  /** Convert a point of the element to the graph. @param {number} x @param {number} y @returns {[number, number]} */
  world(x, y) {
    const { clientWidth: w, clientHeight: h } = this.element;
    return [(x - w / 2) / this.view.scale + this.view.x, (y - h / 2) / this.view.scale + this.view.y];
  }

  /** Return the position of a node on the element. @param {import("../graph/model.js").Node} node @returns {[number, number]} */
  screen(node) {
    const { clientWidth: w, clientHeight: h } = this.element;
    return [(node.x - this.view.x) * this.view.scale + w / 2, (node.y - this.view.y) * this.view.scale + h / 2];
  }

  /** @param {PointerEvent | MouseEvent} event @returns {[number, number]} */
  point(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** Return the node at a point of the element. @param {number} x @param {number} y */
  at(x, y) {
    this.places ??= new Places(visible.value.nodes.values());
    const [u, v] = this.world(x, y);
    return this.places.at(u, v, (18 * growth(this.view.scale) + REACH) / this.view.scale);
  }

  /** Move a node and the leaves of its fan. @param {import("../graph/model.js").Node} node @param {number} x @param {number} y */
  drag(node, x, y) {
    for (const { leaves } of graph.fans.get(node.key) ?? []) {
      for (const leaf of leaves) {
        if (leaf.pinned) continue;
        leaf.x += x - node.x;
        leaf.y += y - node.y;
      }
    }
    Object.assign(node, { x, y, held: true });
    this.places = null;
  }

  /** Pin a node that was dragged. @param {import("../graph/model.js").Node} node */
  drop(node) {
    node.held = false;
    node.pinned = true;
    this.remember();
    changed();
  }

  /** Center a node outside the viewport. @param {string} key */
  reveal(key) {
    const node = graph.nodes.get(key);
    if (!node || this.shows(node, MARGIN)) return;
    this.view.x = node.x;
    this.view.y = node.y;
    this.view.chosen = true;
    this.ask();
  }
}

/** Start drawing an element; return a function that stops it. @param {HTMLCanvasElement} element */
function begin(element) {
  const on = new Canvas(element);
  current = on;
  settled.value = false;
  const watched = new ResizeObserver(() => on.resize());
  watched.observe(element);
  for (const control of document.querySelectorAll(".time")) watched.observe(control);
  const redress = () => on.resize();
  DARK.addEventListener("change", redress);
  const ends = [
    effect(() => {
      revision.value;
      on.place();
    }),
    effect(() => {
      visible.value, compared.value, clock.value, selected.value, focus.value, way.value;
      on.scene = sceneOf(on.pulses);
      on.places = null;
      on.refit();
      on.ask();
    }),
    effect(() => {
      moved.value;
      on.ask();
    }),
    effect(() => {
      on.reveal(focus.value);
    }),
  ];
  void Promise.all([import("./pointer.js"), loadDetail()]).then(([{ handle, coveredBoxes }]) => {
    if (current !== on) return;
    on.covered = coveredBoxes;
    ends.push(handle(on));
    on.begin();
  });
  const pulse = (/** @type {any} */ notice) => {
    for (const key of [notice.data.id, notice.data.from, notice.data.to]) if (graph.nodes.has(key)) on.pulse(key);
  };
  const forget = listen(pulse);
  on.resize();
  return () => {
    for (const stop of ends) stop();
    forget();
    watched.disconnect();
    DARK.removeEventListener("change", redress);
    cancelAnimationFrame(on.frame);
    clearTimeout(on.gliding);
    on.layout.worker.terminate();
    settled.value = true;
    current = null;
  };
}

export function CanvasView() {
  const element = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  useEffect(() => (element.current ? begin(element.current) : undefined), []);
  const { nodes } = visible.value;
  const node = nodes.get(focus.value) ?? nodes.values().next().value;
  return html`<div class="canvas" data-settled=${settled.value && !busy.value}>
    <div class="graph" role="listbox" tabindex="0" id="graph" aria-label=${W.canvasLabel(nodes.size)} aria-describedby="graph-keys"
      aria-activedescendant=${node ? "graph-focus" : undefined} aria-multiselectable="true">
      <canvas ref=${element} aria-hidden="true"></canvas>
      <div class="hidden" role="option" id="graph-focus" aria-selected=${Boolean(node && selected.value.has(node.key))}>
        ${node ? W.nodeLabel(node.label, node.type, graph.around.get(node.key)?.size ?? 0) : W.emptyCanvas}</div>
    </div>
    <p class="hidden" id="graph-keys">${W.canvasKeys}</p>
    ${nodes.size ? null : html`<p class="empty">${graph.nodes.size ? W.nothingThen : W.emptyStore}</p>`}
    <${CanvasTools} />
  </div>`;
}

