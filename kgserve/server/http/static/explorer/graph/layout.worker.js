// Layout in a worker thread. It reports positions every 120 ms, so that the layout is animated.

import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from "../vendor/d3-force.js";

const EVERY = 120;
const COOL = 0.02;
let round = 0;

/** @param {MessageEvent<{id: number, places: Float32Array, fixed: Uint8Array, radii: Float32Array, links: Uint32Array, warmth: number}>} event */
addEventListener("message", ({ data }) => {
  const mine = ++round;
  const { places, fixed, radii, links: pairs } = data;
  const nodes = Array.from(fixed, (held, i) => {
    const [x, y] = [places[2 * i], places[2 * i + 1]];
    return held ? { x, y, fx: x, fy: y } : { x, y };
  });
  const links = Array.from({ length: pairs.length / 2 }, (_, i) => ({ source: pairs[2 * i], target: pairs[2 * i + 1] }));
  const apart = forceManyBody().strength(-90).theta(nodes.length > 1000 ? 1.2 : 0.9).distanceMax(900);
  const simulation = forceSimulation(nodes)
    .force("charge", apart)
    .force("links", forceLink(links).distance(55))
    .force("x", forceX().strength(0.04))
    .force("y", forceY().strength(0.05))
    .alpha(data.warmth)
    .alphaMin(COOL)
    .alphaDecay(0.035)
    .stop();
  if (nodes.length <= 2000) simulation.force("collide", forceCollide((_, /** @type {number} */ i) => radii[i] + 3));

  function tell(/** @type {boolean} */ settled) {
    const found = new Float32Array(2 * nodes.length);
    nodes.forEach((node, i) => {
      found[2 * i] = node.x;
      found[2 * i + 1] = node.y;
    });
    postMessage({ id: data.id, places: found, settled }, { transfer: [found.buffer] });
  }

  function work() {
    if (mine !== round) return;
    const begun = performance.now();
    while (simulation.alpha() >= COOL && performance.now() - begun < EVERY) simulation.tick();
    const settled = simulation.alpha() < COOL;
    tell(settled);
    if (!settled) setTimeout(work);
  }
  work();
});
