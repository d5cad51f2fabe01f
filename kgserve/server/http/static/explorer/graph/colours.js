// Colour and shape of a type. Eight colours that survive the three colour blindnesses, 3:1 against either ground, and three shapes.

export const LIGHT = ["#0072b2", "#c24d00", "#00795c", "#a23b8f", "#7a6500", "#4f4fc4", "#5f6873", "#8a1f4d"];
export const DARK = ["#56b4e9", "#f5a142", "#3fc79a", "#f0a3d6", "#e6d84a", "#a9a9ff", "#c3c9d0", "#ff8d7a"];
export const SHAPES = /** @type {const} */ (["circle", "square", "triangle"]);

/** @typedef {{colour: number, shape: (typeof SHAPES)[number]}} Look */

/** Types get colours and shapes in the order of their appearance, and keep them. */
export class Looks {
  constructor() {
    /** @type {Map<string, Look>} */
    this.known = new Map();
  }

  /** @param {string} type @returns {Look} */
  of(type) {
    const known = this.known.get(type);
    if (known) return known;
    const number = this.known.size;
    const look = { colour: number % LIGHT.length, shape: SHAPES[number % SHAPES.length] };
    this.known.set(type, look);
    return look;
  }

  /** The next colour of eight, where somebody would rather have another one. @param {string} type */
  change(type) {
    const look = this.of(type);
    this.known.set(type, { ...look, colour: (look.colour + 1) % LIGHT.length });
  }
}
