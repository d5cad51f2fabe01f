// Model of the canvas: nodes and edges with lifespans, independent of page and server.

import { ordered } from "./labels.js";

/** @typedef {[number, number | null]} Span commits from and until which a state holds; null: it still does */
/**
 * @typedef {object} Node
 * @property {string} key unique on the canvas: the id, or store and id of a node of another store
 * @property {string} id @property {string} store the empty text: the store that is shown
 * @property {string} type @property {string} label @property {number} degree @property {number} version
 * @property {string[]} tags @property {number | null} validFrom milliseconds @property {number | null} validTo
 * @property {Span[] | null} lives null: not known, it is there now
 * @property {number} x @property {number} y @property {boolean} placed @property {boolean} held while it is dragged @property {boolean} pinned @property {boolean} hidden
 * @property {Set<string>} broughtBy keys of the nodes whose expansion brought it; empty: it was asked for
 * @property {number} leftOut edges that an expansion did not bring
 * @property {number | null} confidence @property {number | null} layer @property {boolean} conflict @property {string} ended
 */
/**
 * @typedef {object} Edge
 * @property {string} key @property {string} from key of a node @property {string} to @property {string} type @property {number} weight
 * @property {number | null} validFrom @property {number | null} validTo @property {Span[] | null} lives
 */

/** @typedef {{hub: Node, type: string, start: number, end: number, inner: number, outer: number, leaves: Node[]}} Sector leaves of a type around a hub: angles in radians, distances from the hub */

export const MOST_NODES = 5000;

/** @param {string} from @param {string} type @param {string} to */
export const edgeKey = (from, type, to) => JSON.stringify([from, type, to]);

/** Return a time from the server in milliseconds; null: none. */
export const moment = (/** @type {unknown} */ text) => (text === null || text === undefined ? null : Date.parse(String(text)));

export class Graph {
  constructor() {
    /** @type {Map<string, Node>} */
    this.nodes = new Map();
    /** @type {Map<string, Edge>} */
    this.edges = new Map();
    /** @type {Map<string, Set<Edge>>} */
    this.around = new Map();
    /** Sectors of fans by hub key. @type {Map<string, Sector[]>} */
    this.fans = new Map();
  }

  /** @param {Partial<Node> & {id: string}} given @returns {Node} */
  addNode(given) {
    const key = given.key ?? given.id;
    const known = this.nodes.get(key);
    if (known) {
      for (const name of Object.keys(given)) if (given[name] !== undefined && name !== "broughtBy") known[name] = given[name];
      return known;
    }
    const node = {
      key, store: "", type: "", label: given.id, degree: 0, version: 0, tags: [], validFrom: null, validTo: null, lives: null,
      x: 0, y: 0, placed: false, held: false, pinned: false, hidden: false, broughtBy: new Set(), leftOut: 0,
      confidence: null, layer: null, conflict: false, ended: "", ...given,
    };
    this.nodes.set(key, node);
    this.around.set(key, new Set());
    return node;
  }

  /** Add an edge if both ends exist. @param {Partial<Edge> & {from: string, to: string, type: string}} given */
  addEdge(given) {
    const [from, to] = [this.around.get(given.from), this.around.get(given.to)];
    if (!from || !to) return;
    const key = edgeKey(given.from, given.type, given.to);
    const edge = Object.assign(this.edges.get(key) ?? { key, weight: 1, validFrom: null, validTo: null, lives: null }, given);
    this.edges.set(key, edge);
    from.add(edge);
    to.add(edge);
  }

  /** @param {string} key */
  removeEdge(key) {
    const edge = this.edges.get(key);
    if (!edge) return;
    this.edges.delete(key);
    this.around.get(edge.from)?.delete(edge);
    this.around.get(edge.to)?.delete(edge);
  }

  /** @param {string} key */
  removeNode(key) {
    for (const edge of this.around.get(key) ?? []) this.removeEdge(edge.key);
    this.around.delete(key);
    this.nodes.delete(key);
  }

  /**
   * Add a response of the server, columns with indices. New nodes other than `start` are marked as brought by it.
   * @param {any} answer @param {string} [start] @returns {Node[]} those that are new
   */
  take(answer, start) {
    const fresh = answer.nodes.id.filter((/** @type {string} */ id) => !this.nodes.has(id));
    for (const id of fresh) this.addNode({ id, broughtBy: new Set(start === undefined || id === start ? [] : [start]) });
    this.freshen(answer);
    return fresh.map((/** @type {string} */ id) => /** @type {Node} */ (this.nodes.get(id)));
  }

  /** Update existing nodes, and the edges among them, from a response. @param {any} answer */
  freshen(answer) {
    const { nodes: n, edges: e } = answer;
    const types = answer.types ?? [];
    const relations = answer.relation_types ?? [];
    const left = new Map(answer.left_out ?? []);
    for (let i = 0; i < n.id.length; i++) {
      if (!this.nodes.has(n.id[i])) continue;
      this.addNode({
        id: n.id[i], type: types[n.type[i]] ?? "", label: ordered(n.label?.[i] || n.id[i]), degree: n.degree?.[i] ?? 0,
        version: n.version?.[i] ?? 0, tags: n.tags?.[i] ?? [], validFrom: moment(n.valid_from?.[i]), validTo: moment(n.valid_to?.[i]),
        lives: n.lives?.[i] ?? null, leftOut: left.get(i) ?? 0, layer: n.layer?.[i] ?? null, confidence: n.confidence?.[i] ?? null,
      });
    }
    for (let i = 0; i < e.from.length; i++) {
      this.addEdge({
        from: n.id[e.from[i]], to: n.id[e.to[i]], type: relations[e.type[i]] ?? "", weight: e.weight?.[i] ?? 1,
        validFrom: moment(e.valid_from?.[i]), validTo: moment(e.valid_to?.[i]), lives: e.lives?.[i] ?? null,
      });
    }
  }

  /** Return the keys of nodes that only the expansion of this node brought. @param {string} key @returns {string[]} */
  broughtOnlyBy(key) {
    return [...this.nodes.values()].filter((node) => node.broughtBy.size === 1 && node.broughtBy.has(key)).map((node) => node.key);
  }

  /** Undo an expansion. @param {string} key @returns {number} how many nodes went */
  collapse(key) {
    const gone = this.broughtOnlyBy(key);
    for (const one of gone) this.collapse(one);
    for (const one of gone) this.removeNode(one);
    for (const node of this.nodes.values()) node.broughtBy.delete(key);
    return gone.length;
  }

  /** @param {string} key @returns {string[]} keys of those that an edge joins with it */
  neighbours(key) {
    const found = new Set();
    for (const edge of this.around.get(key) ?? []) found.add(edge.from === key ? edge.to : edge.from);
    found.delete(key);
    return [...found];
  }

  /** Return the shortest path between two nodes of the canvas, ignoring edge direction. @param {string} from @param {string} to @returns {string[]} */
  path(from, to) {
    /** @type {Map<string, string | null>} */
    const came = new Map([[from, null]]);
    let edge = [from];
    while (edge.length && !came.has(to)) {
      const next = [];
      for (const key of edge) {
        for (const other of this.neighbours(key)) {
          if (came.has(other) || this.nodes.get(other)?.hidden) continue;
          came.set(other, key);
          next.push(other);
        }
      }
      edge = next;
    }
    if (!came.has(to)) return [];
    const way = [];
    for (let at = /** @type {string | null | undefined} */ (to); at !== null && at !== undefined; at = came.get(at)) way.unshift(at);
    return way;
  }
}
