// The canvas: drawing on changes, and pointer input.

import { effect, html, useEffect, useRef } from "../vendor/preact.js";
import { listen } from "../events.js";
import { Layout } from "../graph/layout.js";
import { Places } from "../graph/pick.js";
import { radiusOf, Renderer } from "../graph/renderer.js";
import { expand, more } from "../load.js";
import { sceneOf } from "../scene.js";
import { busy, choose, clock, compared, focus, graph, look, moved, revision, selected, settled, store, truncated, visible, way } from "../state.js";
import { W } from "../words.js";

const PULSE = 1200;
const REACH = 10;
const ZOOM = 1.25;
const MARGIN = 60;
const NEAREST = 6;
const FARTHEST = 0.02;
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** @type {Canvas | null} */
let current = null;
/** Commands of the canvas for keyboard and buttons. */
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
    this.view = views.get(store.value) ?? { x: 0, y: 0, scale: 1 };
    this.fitted = views.has(store.value);
    /** True if the user moved the viewport; otherwise everything stays visible. */
    this.chosen = this.fitted;
    /** @type {Map<string, number>} */
    this.pulses = new Map();
    /** When each pulse began. @type {Map<string, number>} */
    this.begun = new Map();
    this.frame = 0;
    this.scene = sceneOf(this.pulses);
    /** @type {Places | null} */
    this.places = null;
    this.layout = new Layout((done) => this.settle(done));
    this.frames = 0;
  }

  settle(/** @type {boolean} */ done) {
    if (done) settled.value = true;
    if (STILL.matches && !done) return;
    this.places = null;
    if (!this.fitted) this.fit(false);
    if (done) {
      this.fitted = true;
      this.remember();
    }
    moved.value++;
  }

  /** @param {boolean} [anew] */
  place(anew = false) {
    if (anew) this.fitted = false;
    else this.recall();
    if (this.layout.run(graph, (node) => radiusOf(node.degree), { anew })) {
      settled.value = false;
      if (graph.nodes.size && !this.fitted) this.fit(false);
    }
  }

  /** Store the positions of nodes for this tab. */
  remember() {
    const places = [...graph.nodes.values()].map((node) => [node.key, Math.round(node.x), Math.round(node.y)]);
    try {
      sessionStorage.setItem(`kgserve-places ${store.value}`, JSON.stringify(places));
    } catch {
      // No room: they are found anew.
    }
  }

  /** Restore positions if all nodes were on the canvas before. */
  recall() {
    if ([...graph.nodes.values()].some((node) => node.placed)) return;
    const kept = new Map(JSON.parse(sessionStorage.getItem(`kgserve-places ${store.value}`) ?? "[]").map((/** @type {any[]} */ [key, x, y]) => [key, [x, y]]));
    if (!graph.nodes.size || ![...graph.nodes.keys()].every((key) => kept.has(key))) return;
    for (const node of graph.nodes.values()) {
      [node.x, node.y] = kept.get(node.key);
      node.placed = true;
    }
    this.fit(false);
    this.fitted = true;
  }

  resize() {
    const { clientWidth, clientHeight } = this.element;
    this.renderer.fit(clientWidth, clientHeight, Math.min(2, devicePixelRatio), DARK.matches);
    if (this.fitted && !this.chosen) this.fit(false);
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
    this.renderer.draw(this.scene, this.view);
    this.frames++;
    this.element.dataset.drawn = String(this.scene.nodes.length);
    if (this.pulses.size) this.ask();
  }

  /** @param {string} key */
  pulse(key) {
    if (STILL.matches) return;
    this.begun.set(key, performance.now());
    this.pulses.set(key, 0);
    this.ask();
  }

  /** See everything. @param {boolean} [draw] */
  fit(draw = true) {
    this.chosen = false;
    const nodes = [...visible.value.nodes.values()];
    if (nodes.length) {
      let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
      for (const { x, y } of nodes) {
        left = Math.min(left, x);
        right = Math.max(right, x);
        top = Math.min(top, y);
        bottom = Math.max(bottom, y);
      }
      const { clientWidth: w, clientHeight: h } = this.element;
      const scale = Math.min((w - 2 * MARGIN) / (right - left || 1), (h - 2 * MARGIN) / (bottom - top || 1), 1.6);
      this.view = { x: (left + right) / 2, y: (top + bottom) / 2, scale: Math.max(FARTHEST, scale) };
      views.set(store.value, this.view);
    }
    if (draw) this.ask();
  }

  /** @param {number} by @param {[number, number]} [at] the point of the screen that stays */
  zoom(by, at) {
    this.chosen = true;
    const [x, y] = at ?? [this.element.clientWidth / 2, this.element.clientHeight / 2];
    const [u, v] = this.world(x, y);
    this.view.scale = Math.min(NEAREST, Math.max(FARTHEST, this.view.scale * by));
    const [s, t] = this.world(x, y);
    this.view.x += u - s;
    this.view.y += v - t;
    this.ask();
  }

  /** From a point of the element to one of the graph. @param {number} x @param {number} y @returns {[number, number]} */
  world(x, y) {
    const { clientWidth: w, clientHeight: h } = this.element;
    return [(x - w / 2) / this.view.scale + this.view.x, (y - h / 2) / this.view.scale + this.view.y];
  }

  /** Where a node is on the element. @param {import("../graph/model.js").Node} node @returns {[number, number]} */
  screen(node) {
    const { clientWidth: w, clientHeight: h } = this.element;
    return [(node.x - this.view.x) * this.view.scale + w / 2, (node.y - this.view.y) * this.view.scale + h / 2];
  }

  /** @param {PointerEvent | MouseEvent} event @returns {[number, number]} */
  point(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** The node at a point of the element. @param {number} x @param {number} y */
  at(x, y) {
    this.places ??= new Places(visible.value.nodes.values());
    const [u, v] = this.world(x, y);
    return this.places.at(u, v, 18 + REACH / this.view.scale);
  }

  /** Show a node that lies out of sight. @param {string} key */
  reveal(key) {
    const node = graph.nodes.get(key);
    if (!node) return;
    const [x, y] = this.screen(node);
    if (x > MARGIN && y > MARGIN && x < this.element.clientWidth - MARGIN && y < this.element.clientHeight - MARGIN) return;
    this.view.x = node.x;
    this.view.y = node.y;
    this.chosen = true;
    this.ask();
  }
}

/** What fingers and mouse do. @param {Canvas} on @returns {() => void} */
function handle(on) {
  const { element } = on;
  /** @type {Map<number, [number, number]>} */
  const down = new Map();
  /** @type {{node: any, from: [number, number], moved: boolean, box: boolean} | null} */
  let drag = null;
  let apart = 0;

  const press = (/** @type {PointerEvent} */ event) => {
    if (event.button > 0) return;
    element.setPointerCapture(event.pointerId);
    const at = on.point(event);
    down.set(event.pointerId, at);
    const node = down.size === 1 ? on.at(...at) : null;
    drag = { node, from: at, moved: false, box: event.shiftKey && !node };
    if (down.size === 2) apart = between(down);
  };
  const move = (/** @type {PointerEvent} */ event) => {
    const before = down.get(event.pointerId);
    const at = on.point(event);
    if (!before || !drag) {
      element.classList.toggle("over", Boolean(on.at(...at)));
      return;
    }
    down.set(event.pointerId, at);
    if (down.size === 2) {
      const now = between(down);
      if (apart) on.zoom(now / apart, middle(down));
      apart = now;
      drag.moved = true;
      return;
    }
    if (Math.hypot(at[0] - drag.from[0], at[1] - drag.from[1]) > 4) drag.moved = true;
    if (!drag.moved) return;
    if (drag.box) box(drag.from, at);
    else if (drag.node) {
      [drag.node.x, drag.node.y] = on.world(...at);
      drag.node.held = true;
      on.places = null;
    } else {
      on.chosen = true;
      on.view.x -= (at[0] - before[0]) / on.view.scale;
      on.view.y -= (at[1] - before[1]) / on.view.scale;
    }
    on.ask();
  };
  /** @param {[number, number]} from @param {[number, number]} to */
  const box = (from, to) => {
    const [left, top] = on.world(Math.min(from[0], to[0]), Math.min(from[1], to[1]));
    const [right, bottom] = on.world(Math.max(from[0], to[0]), Math.max(from[1], to[1]));
    const inside = [...visible.value.nodes.values()].filter((node) => node.x >= left && node.x <= right && node.y >= top && node.y <= bottom);
    selected.value = new Set(inside.map((node) => node.key));
  };
  const release = (/** @type {PointerEvent} */ event) => {
    down.delete(event.pointerId);
    if (drag && !drag.moved && event.type === "pointerup") click(drag.node, event);
    if (drag?.moved && drag.node) drag.node.held = false;
    if (!down.size) drag = null;
  };
  const click = (/** @type {any} */ node, /** @type {PointerEvent} */ event) => {
    if (!node) {
      selected.value = new Set();
      way.value = [];
      return;
    }
    if (!event.shiftKey && !event.ctrlKey && !event.metaKey) {
      look(node.key);
      return;
    }
    choose(node.key);
  };
  const wheel = (/** @type {WheelEvent} */ event) => {
    event.preventDefault();
    on.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), on.point(event));
  };
  const double = (/** @type {MouseEvent} */ event) => {
    const node = on.at(...on.point(event));
    if (node) void expand(node.key);
  };
  const end = new AbortController();
  const { signal } = end;
  element.addEventListener("pointerdown", press, { signal });
  element.addEventListener("pointermove", move, { signal });
  element.addEventListener("pointerup", release, { signal });
  element.addEventListener("pointercancel", release, { signal });
  element.addEventListener("wheel", wheel, { signal, passive: false });
  element.addEventListener("dblclick", double, { signal });
  return () => end.abort();
}

/** @param {Map<number, [number, number]>} points */
function between(points) {
  const [[a, b], [c, d]] = [...points.values()];
  return Math.hypot(a - c, b - d);
}

/** @param {Map<number, [number, number]>} points @returns {[number, number]} */
function middle(points) {
  const [[a, b], [c, d]] = [...points.values()];
  return [(a + c) / 2, (b + d) / 2];
}

/** Keep an element drawn; what is returned ends that. @param {HTMLCanvasElement} element */
function begin(element) {
  const on = new Canvas(element);
  current = on;
  const watched = new ResizeObserver(() => on.resize());
  watched.observe(element);
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
      on.ask();
    }),
    effect(() => {
      moved.value;
      on.ask();
    }),
    effect(() => {
      on.reveal(focus.value);
    }),
    handle(on),
  ];
  const pulse = (/** @type {any} */ told) => {
    for (const key of [told.data.id, told.data.from, told.data.to]) if (graph.nodes.has(key)) on.pulse(key);
  };
  const forget = listen(pulse);
  on.resize();
  return () => {
    for (const stop of ends) stop();
    forget();
    watched.disconnect();
    DARK.removeEventListener("change", redress);
    cancelAnimationFrame(on.frame);
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
    <div class="tools" role="toolbar" aria-label=${W.tools}>
      <button type="button" onClick=${() => canvas.zoom(ZOOM)} aria-label=${W.zoomIn}>+</button>
      <button type="button" onClick=${() => canvas.zoom(1 / ZOOM)} aria-label=${W.zoomOut}>−</button>
      <button type="button" onClick=${() => canvas.fit()} aria-label=${W.fit}>⤢</button>
      <button type="button" onClick=${() => canvas.relayout()} aria-label=${W.relayout}>⟳</button>
    </div>
    ${nodes.size ? null : html`<p class="empty">${graph.nodes.size ? W.nothingThen : W.emptyStore}</p>`}
    ${truncated.value ? html`<p class="more"><button type="button" onClick=${more}>${W.showMore}</button></p>` : null}
    ${way.value.length ? html`<p class="more way">${W.pathOf(way.value.length - 1)} <button type="button" class="plain" onClick=${() => { way.value = []; }}>${W.close}</button></p>` : null}
  </div>`;
}

