// Colours and shapes of types: eight colours safe for colour blindness, contrast 3:1 in both themes, and four shapes.

export const LIGHT = ["#0072b2", "#c24d00", "#00795c", "#a23b8f", "#7a6500", "#4f4fc4", "#5f6873", "#8a1f4d"];
export const DARK = ["#56b4e9", "#f5a142", "#3fc79a", "#f0a3d6", "#e6d84a", "#a9a9ff", "#c3c9d0", "#ff8d7a"];
export const SHAPES = /** @type {const} */ (["circle", "square", "triangle", "hexagon"]);
/** Maximum number of types with assigned looks, instead of the look of each hash. */
const MAX_TYPES_TOLD_APART = 64;

/** @typedef {{colour: number, shape: (typeof SHAPES)[number]}} Look */

/** Return the FNV-1a hash of a text in UTF-8, mixed. @param {string} text @returns {number} 32 bits */
export function hashText(text) {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 16), 0x45d9f3b);
  return (hash ^ (hash >>> 16)) >>> 0;
}

/** @param {number} hash @returns {Look} */
const lookOfHash = (hash) => ({ colour: hash % LIGHT.length, shape: SHAPES[(hash >>> 8) % SHAPES.length] });

/**
 * Assign each type the colour of its hash; on collision, the least hash keeps it and others take the next least used one.
 * @param {string[]} types @returns {Map<string, Look>}
 */
export function assignLooks(types) {
  const hashes = types.map((type) => /** @type {[string, number]} */ ([type, hashText(type)])).sort((one, other) => one[1] - other[1]);
  const uses = LIGHT.map(() => 0);
  const taken = new Set();
  const looks = new Map();
  const give = (/** @type {string} */ type, /** @type {number} */ hash, /** @type {number} */ colour) => {
    const start = (hash >>> 8) % SHAPES.length;
    const shapes = SHAPES.map((_, i) => SHAPES[(start + i) % SHAPES.length]);
    const shape = shapes.find((one) => !taken.has(`${colour} ${one}`)) ?? shapes[0];
    taken.add(`${colour} ${shape}`);
    uses[colour]++;
    looks.set(type, { colour, shape });
  };
  for (const [type, hash] of hashes) if (!uses[hash % LIGHT.length]) give(type, hash, hash % LIGHT.length);
  for (const [type, hash] of hashes) {
    if (looks.has(type)) continue;
    const least = Math.min(...uses);
    const colours = LIGHT.map((_, i) => (hash + i) % LIGHT.length);
    give(type, hash, /** @type {number} */ (colours.find((colour) => uses[colour] === least)));
  }
  return looks;
}

/** Looks of a store's types, with those chosen by the user. */
export class Looks {
  /** @param {() => Record<string, number> | undefined} types of the store, with counts */
  constructor(types) {
    this.types = types;
    /** @type {Map<string, Look>} */
    this.chosen = new Map();
    /** @type {Map<string, Look>} */
    this.assigned = new Map();
    /** @type {Record<string, number> | undefined} */
    this.seen = undefined;
  }

  /** @param {string} type @returns {Look} */
  of(type) {
    const types = this.types();
    if (types !== this.seen) {
      this.seen = types;
      const names = Object.keys(types ?? {});
      this.assigned = names.length > MAX_TYPES_TOLD_APART ? new Map() : assignLooks(names);
    }
    return this.chosen.get(type) ?? this.assigned.get(type) ?? lookOfHash(hashText(type));
  }

  /** @param {string} type @param {Partial<Look> | null} look null: that of the hash */
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
