// Fast drawing of a moving view: a picture of the scene, larger than the canvas, that is moved and scaled.

import { Renderer } from "./renderer.js";

/** Size of the picture relative to the canvas. */
const MARGIN = 1.6;

/** @param {Renderer} renderer @param {import("./renderer.js").Scene} scene @param {import("./renderer.js").View} view */
export function glide(renderer, scene, view) {
  const { width, height, density, context, palette } = renderer;
  const covers = renderer.moving?.scene === scene && renderer.moving.view.scale / view.scale < 2 && view.scale / renderer.moving.view.scale < 2;
  const moving = covers && renderer.moving ? renderer.moving : { renderer: new Renderer(new OffscreenCanvas(1, 1)), scene, view: { ...view } };
  const picture = moving.renderer;
  const at = () => {
    const ratio = view.scale / moving.view.scale;
    const [w, h] = [picture.width * ratio, picture.height * ratio];
    return [(moving.view.x - view.x) * view.scale + (width - w) / 2, (moving.view.y - view.y) * view.scale + (height - h) / 2, w, h];
  };
  let [x, y, w, h] = at();
  if (!covers || (view.scale >= moving.view.scale && (x > 0 || y > 0 || x + w < width || y + h < height))) {
    moving.view = { ...view };
    picture.fit(width * MARGIN, height * MARGIN, density, renderer.dark);
    picture.draw(scene, view);
    [x, y, w, h] = at();
  }
  renderer.moving = moving;
  context.setTransform(density, 0, 0, density, 0, 0);
  context.fillStyle = palette.ground;
  context.fillRect(0, 0, width, height);
  context.drawImage(/** @type {OffscreenCanvas} */ (picture.canvas), x, y, w, h);
}
