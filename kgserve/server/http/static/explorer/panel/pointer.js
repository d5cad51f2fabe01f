// Touch and mouse input on the canvas.

import { signal } from "../vendor/preact.js";
import { expand } from "../load.js";
import { findEdgeAt } from "../graph/curves.js";
import { growth, headOf } from "../graph/renderer.js";
import { choose, connecting, entry, look, mayWrite, openEdge, selected, showPanel, visible, way } from "../state.js";
import { W } from "../words.js";

/** Edge being drawn, with its ends in pixels. */
export const drafted = signal(/** @type {{from: any, start: [number, number], x: number, y: number, to: any} | null} */ (null));

/** Finish the drawn edge. @param {boolean} done false: cancel */
function join(done) {
  const edge = drafted.value;
  drafted.value = null;
  if (done && edge?.to) entry.value = { kind: "edge", from: edge.from.id, to: edge.to.id };
}

/** Attach pointer handlers; return their removal. @param {any} on the canvas @returns {() => void} */
export function handle(on) {
  const { element } = on;
  /** @type {Map<number, [number, number]>} */
  const down = new Map();
  /** @type {{node: any, from: [number, number], moved: boolean, box: boolean, joins: boolean} | null} */
  let drag = null;
  let apart = 0;

  const edgeAt = (/** @type {[number, number]} */ [x, y]) => findEdgeAt(on.renderer, on.scene.edges, x, y, headOf(growth(on.view.scale)));
  const press = (/** @type {PointerEvent} */ event) => {
    if (event.button > 0) return;
    element.setPointerCapture(event.pointerId);
    const at = on.point(event);
    down.set(event.pointerId, at);
    const node = down.size === 1 ? on.at(...at) : null;
    const joins = Boolean(node && !node.store && mayWrite.value && (connecting.value || event.altKey));
    drag = { node, from: at, moved: false, box: event.shiftKey && !node, joins };
    if (down.size === 2) apart = between(down);
  };
  const move = (/** @type {PointerEvent} */ event) => {
    const before = down.get(event.pointerId);
    const at = on.point(event);
    if (!before || !drag) {
      const node = on.at(...at);
      const met = node ?? edgeAt(at);
      element.classList.toggle("over", Boolean(met));
      element.title = node ? W.nodeTitle(node.label, node.type) : (met?.type ?? "");
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
    else if (drag.joins) {
      const over = on.at(...at);
      drafted.value = { from: drag.node, x: at[0], y: at[1], start: on.screen(drag.node), to: over && over !== drag.node && !over.store ? over : null };
      return;
    } else if (drag.node) {
      on.drag(drag.node, ...on.world(...at));
    } else {
      on.view.x -= (at[0] - before[0]) / on.view.scale;
      on.view.y -= (at[1] - before[1]) / on.view.scale;
      on.glide();
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
    if (drag?.joins) join(event.type === "pointerup" && drag.moved);
    else if (drag?.moved && drag.node) on.drop(drag.node);
    if (!down.size) drag = null;
  };
  const click = (/** @type {any} */ node, /** @type {PointerEvent} */ event) => {
    if (!node) {
      selected.value = new Set();
      way.value = [];
      const edge = edgeAt(on.point(event));
      openEdge.value = edge?.key ?? "";
      if (edge) showPanel("details", false);
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

/** Return the pixel boxes of tools over a canvas. @param {HTMLCanvasElement} element */
export function coveredBoxes(element) {
  const { left, top } = element.getBoundingClientRect();
  const parts = element.closest(".stage")?.querySelectorAll(".tools, .over-canvas > *, .legend, .pill, .card") ?? [];
  return [...parts].map((part) => {
    const box = part.getBoundingClientRect();
    return { left: box.left - left, top: box.top - top, right: box.right - left, bottom: box.bottom - top };
  });
}
