// Colours and shapes of types: eight colours safe for colour blindness, contrast 3:1 in both themes, and four shapes.

export const LIGHT = ["#0072b2", "#c24d00", "#00795c", "#a23b8f", "#7a6500", "#4f4fc4", "#5f6873", "#8a1f4d"];
export const DARK = ["#56b4e9", "#f5a142", "#3fc79a", "#f0a3d6", "#e6d84a", "#a9a9ff", "#c3c9d0", "#ff8d7a"];
export const SHAPES = /** @type {const} */ (["circle", "square", "triangle", "hexagon"]);

/** @typedef {{colour: number, shape: (typeof SHAPES)[number]}} Look */

/** Return the colour and shape of a type's name: its FNV-1a hash in UTF-8, mixed. @param {string} type @returns {Look} */
export function lookOfType(type) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(type)) hash = Math.imul(hash ^ byte, 0x01000193);
  // This factor tells thirty frequent names of types apart.
  hash = Math.imul(hash ^ (hash >>> 16), 0x98dbf8d);
  hash = (hash ^ (hash >>> 16)) >>> 0;
  return { colour: hash % LIGHT.length, shape: SHAPES[(hash >>> 8) % SHAPES.length] };
}

/** Looks of names, as they were computed. @type {Map<string, Look>} */
const named = new Map();

/** Looks of types: those chosen by the user, else those of their names, whatever other types there are. */
export class Looks {
  constructor() {
    /** @type {Map<string, Look>} */
    this.chosen = new Map();
  }

  /** @param {string} type @returns {Look} */
  of(type) {
    const look = this.chosen.get(type) ?? named.get(type);
    if (look) return look;
    named.set(type, lookOfType(type));
    return this.of(type);
  }

  /** @param {string} type @param {Partial<Look> | null} look null: that of its name */
  choose(type, look) {
    if (look) this.chosen.set(type, { ...this.of(type), ...look });
    else this.chosen.delete(type);
  }

  /** Return the chosen looks as text for links. */
  format() {
    return [...this.chosen].map(([type, { colour, shape }]) => `${encodeURIComponent(type)}.${colour}${shape[0]}`).join(",");
  }

  /** @param {string} text as `format` writes it */
  parse(text) {
    const found = [...text.matchAll(/([^,]*)\.([0-7])([csth])(?=,|$)/g)];
    this.chosen = new Map(found.map(([, type, colour, shape]) => [decodeURIComponent(type), { colour: Number(colour), shape: SHAPES.find((one) => one[0] === shape) ?? SHAPES[0] }]));
  }
}
