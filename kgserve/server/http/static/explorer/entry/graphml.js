// GraphML parser for previews. The browser's own parser would replace malformed XML with a styled error page.

import { W } from "./words.js";

/** @typedef {{id: string, type: string, summary: string, content: string}} GraphmlNode */
/** @typedef {{from: string, to: string, relation_type: string}} GraphmlEdge */

const TOKEN = /<!--[\s\S]*?-->|<\?[\s\S]*?\?>|<!DOCTYPE[^>]*>|<!\[CDATA\[([\s\S]*?)\]\]>|<(\/?)([\w:.-]+)((?:\s+[\w:.-]+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*)\s*(\/?)>|([^<]+)|</g;
const ATTRIBUTE = /([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')/g;
const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'" };
const TYPES = ["type", "kind", "labels"];
const TITLES = ["summary", "title"];
const CONTENTS = ["content", "label", "name", "description", "text"];
const RELATIONS = ["relation_type", "label", "Edge Label", "type", "relationship", "interaction"];

/** @param {string} text */
const decoded = (text) => text.replace(/&(?:#x([\da-f]+)|#(\d+)|(\w+));/gi, (all, hex, number, name) => {
  if (name) return ENTITIES[name] ?? all;
  const code = Number.parseInt(hex ?? number, hex ? 16 : 10);
  return code <= 0x10ffff ? String.fromCodePoint(code) : all;
});

/** @param {string} text @returns {Record<string, string>} */
const attributesIn = (text) => Object.fromEntries([...text.matchAll(ATTRIBUTE)].map(([, name, double, single]) => [name, decoded(double ?? single)]));

/** Yield elements at their end tags, with attributes, text and ancestors. Throws Error. @param {string} text @param {boolean} whole @returns {Generator<{name: string, given: Record<string, string>, text: string, around: any[]}>} */
function* elements(text, whole) {
  const open = /** @type {{name: string, given: Record<string, string>, text: string}[]} */ ([]);
  for (const [token, cdata, closing, qualified, attributes, empty, chars] of text.matchAll(TOKEN)) {
    const name = qualified?.split(":").at(-1) ?? "";
    const inner = open.at(-1);
    if (token === "<") {
      if (whole) throw new Error(W.badGraphml);
      return;
    }
    if (inner) inner.text += cdata ?? (chars ? decoded(chars) : "");
    if (!name) continue;
    if (!closing) open.push({ name, given: attributesIn(attributes), text: "" });
    if (!closing && !empty) continue;
    const ended = open.pop();
    if (ended?.name !== name) throw new Error(W.badGraphml);
    yield { ...ended, around: open };
  }
  if (whole && open.length) throw new Error(W.badGraphml);
}

/** Return the nodes and edges of a text, or of its beginning. Throws Error. @param {string} text @param {boolean} whole @returns {{nodes: GraphmlNode[], edges: GraphmlEdge[]}} */
export function readGraphml(text, whole) {
  const found = { nodes: /** @type {GraphmlNode[]} */ ([]), edges: /** @type {GraphmlEdge[]} */ ([]) };
  const names = /** @type {Record<string, string>} */ ({});
  let root = "";
  for (const { name, given, text: inside, around } of elements(text, whole)) {
    root = name;
    const first = (/** @type {string[]} */ keys) => keys.map((key) => given[`data ${key}`]).find(Boolean) ?? "";
    if (name === "key") names[given.id] = given["attr.name"] ?? given.id;
    else if (name === "data" && around.length) around[around.length - 1].given[`data ${names[given.key] ?? given.key}`] = inside.trim();
    else if (name === "node") found.nodes.push({ id: given.id, type: first(TYPES) || "node", summary: first(TITLES), content: first(CONTENTS) });
    else if (name === "edge") found.edges.push({ from: given.source, to: given.target, relation_type: first(RELATIONS) || "RELATED_TO" });
  }
  if (whole && root !== "graphml") throw new Error(W.badGraphml);
  return found;
}
