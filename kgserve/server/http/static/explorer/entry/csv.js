// CSV parser, guesses of column types, and conversion to lines of the exchange format.

import { W } from "./words.js";

/** @typedef {{rows: string[][], lines: number[], delimiter: string}} CsvTable rows and the line numbers on which they begin; the first is the header */
/** @typedef {"id" | "type" | "summary" | "content" | "tags" | "valid_from" | "valid_to" | "from" | "to" | "relation_type" | "weight" | "text" | "number" | "boolean" | "json" | "skip"} Target */
/** @typedef {{kind: "node" | "edge", targets: Target[], fixed: string, separator: string}} CsvMapping `fixed` is the type of all rows if no column has it */

export const DELIMITERS = [",", ";", "\t", "|"];
export const NODE_TARGETS = /** @type {Target[]} */ (["id", "type", "summary", "content", "tags", "valid_from", "valid_to", "text", "number", "boolean", "json", "skip"]);
export const EDGE_TARGETS = /** @type {Target[]} */ (["from", "to", "relation_type", "weight", "valid_from", "valid_to", "text", "number", "boolean", "json", "skip"]);
/** Targets allowed for several columns. */
const MANY = new Set(["text", "number", "boolean", "json", "skip"]);
const NAMED = /** @type {Record<string, Target>} */ ({
  id: "id", key: "id", identifier: "id", type: "type", kind: "type", label: "summary", name: "summary", title: "summary", summary: "summary", content: "content", description: "content", text: "content",
  tags: "tags", labels: "tags", valid_from: "valid_from", valid_to: "valid_to", from: "from", source: "from", start: "from", to: "to", target: "to", end: "to",
  relation_type: "relation_type", relation: "relation_type", relationship: "relation_type", weight: "weight",
});
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/;
const YES = /^(true|yes|1)$/i;
const BOOLEAN = /^(true|false|yes|no)$/i;
const SAMPLE_ROWS = 200;

/** Return the most frequent delimiter in the first line, outside of quotes. @param {string} text */
export function guessDelimiter(text) {
  const head = text.slice(0, text.search(/[\r\n]|$/)).replace(/"[^"]*"/g, "");
  const counts = DELIMITERS.map((one) => head.split(one).length);
  return DELIMITERS[counts.indexOf(Math.max(...counts))];
}

/** Parse RFC 4180 with LF, CRLF or CR line ends. Throws Error at an unclosed quote. @param {string} text @param {string} delimiter @returns {CsvTable} */
export function readCsv(text, delimiter) {
  const cellPattern = new RegExp(`(?:"([^"]*(?:""[^"]*)*)"|([^"\\r\\n${delimiter === "\t" ? "\\t" : `\\${delimiter}`}][^\\r\\n${delimiter === "\t" ? "\\t" : `\\${delimiter}`}]*|))(${delimiter === "\t" ? "\\t" : `\\${delimiter}`}|\\r\\n|\\r|\\n|$)`, "y");
  const rows = [];
  const lines = [];
  let row = /** @type {string[]} */ ([]);
  let line = 1;
  let begun = 1;
  cellPattern.lastIndex = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  while (cellPattern.lastIndex < text.length || row.length) {
    const found = cellPattern.exec(text);
    if (!found) throw new Error(`${W.lineOf(line)} ${W.openQuote}`);
    const [whole, quoted, bare, after] = found;
    row.push(quoted === undefined ? bare : quoted.replaceAll('""', '"'));
    line += whole.split(/\r\n|\r|\n/).length - 1;
    if (after === delimiter) continue;
    if (row.length > 1 || row[0]) {
      rows.push(row);
      lines.push(begun);
    }
    row = [];
    begun = line;
    if (!after) break;
  }
  return { rows, lines, delimiter };
}

/** Return the attribute type that fits all filled cells. @param {string[]} cells @returns {Target} */
function guessKind(cells) {
  const filled = cells.filter((cell) => cell.trim());
  if (!filled.length) return "text";
  // Codes such as 007 and +49 stay text: numbers would lose the prefix.
  if (filled.every((cell) => NUMBER.test(cell.trim()) && !/^(\+|-?0\d)/.test(cell.trim()) && (!/^[+-]?\d+$/.test(cell.trim()) || Number.isSafeInteger(Number(cell))))) return "number";
  return filled.every((cell) => BOOLEAN.test(cell.trim())) ? "boolean" : "text";
}

/** Guess the target of each column. @param {CsvTable} table @param {"node" | "edge"} [kind] @returns {CsvMapping} */
export function guessMapping({ rows }, kind) {
  const [header = [], ...body] = rows;
  const names = header.map((name) => name.trim().toLowerCase().replaceAll(/[\s-]+/g, "_"));
  const named = names.map((name) => NAMED[name]);
  const guessed = kind ?? (named.includes("from") && named.includes("to") ? "edge" : "node");
  const allowed = guessed === "node" ? NODE_TARGETS : EDGE_TARGETS;
  const taken = new Set();
  const targets = names.map((name, at) => {
    const target = guessed === "edge" && (name === "type" || name === "kind" || name === "label") ? "relation_type" : named[at];
    if (!target || !allowed.includes(target) || taken.has(target)) return guessKind(body.slice(0, SAMPLE_ROWS).map((row) => row[at] ?? ""));
    taken.add(target);
    return target;
  });
  if (guessed === "node" && !taken.has("id") && targets.length) targets[0] = "id";
  return { kind: guessed, targets, fixed: "", separator: ";" };
}

/** Return the error in a mapping; empty: none. @param {CsvMapping} mapping @returns {string} */
export function mappingFault({ kind, targets, fixed }) {
  const used = targets.filter((target) => !MANY.has(target));
  const twice = used.find((target, at) => used.indexOf(target) !== at);
  if (twice) return W.twoColumns(W.targets[twice]);
  const missing = (kind === "node" ? ["id"] : ["from", "to"]).find((target) => !used.includes(/** @type {Target} */ (target)));
  if (missing) return W.needsColumn(W.targets[missing]);
  const type = kind === "node" ? "type" : "relation_type";
  return used.includes(type) || fixed.trim() ? "" : W.needsFixed(kind === "node" ? W.fixedType : W.fixedRelation);
}

/** Parse the value of an attribute. Throws Error. @param {Target} target @param {string} cell @param {string} column */
function attributeOf(target, cell, column) {
  const text = cell.trim();
  const wrong = (/** @type {keyof typeof W.kinds} */ kind) => new Error(W.cellWrong(column, text, W.kinds[kind]));
  if (target === "number") {
    const value = Number(text);
    if (!NUMBER.test(text) || (/^[+-]?\d+$/.test(text) && !Number.isSafeInteger(value))) throw wrong("number");
    return value;
  }
  if (target === "boolean") {
    if (!BOOLEAN.test(text) && text !== "1" && text !== "0") throw wrong("boolean");
    return YES.test(text);
  }
  if (target !== "json") return cell;
  try {
    return JSON.parse(text);
  } catch {
    throw wrong("json");
  }
}

/** Parse a time; a date is midnight UTC. Throws Error. @param {string} cell @param {string} column */
function timeOf(cell, column) {
  const text = cell.trim();
  const zoned = /^\d{4}-\d\d-\d\d$/.test(text) || /(Z|[+-]\d\d:?\d\d)$/i.test(text) ? text : `${text}Z`;
  if (!/^\d{4}-\d\d-\d\d/.test(text) || Number.isNaN(Date.parse(zoned))) throw new Error(W.cellWrong(column, text, W.kinds.time));
  return /\.\d{4}/.test(zoned) ? zoned.replace(" ", "T") : new Date(zoned).toISOString();
}

/** Convert a row to the exchange format. Throws Error. @param {string[]} row @param {string[]} header @param {CsvMapping} mapping @returns {Record<string, any>} */
export function rowToLine(row, header, mapping) {
  if (row.length > header.length) throw new Error(W.rowShort(row.length, header.length));
  /** @type {Record<string, any>} */
  const line = { kind: mapping.kind };
  const attributes = new Map();
  for (const [at, target] of mapping.targets.entries()) {
    const cell = row[at] ?? "";
    const column = header[at].trim() || String(at + 1);
    const needed = target === "id" || target === "from" || target === "to" || target === "type" || target === "relation_type";
    if (needed && !cell.trim()) throw new Error(W.cellEmpty(column));
    if (target === "skip" || !cell.trim()) continue;
    if (needed || target === "summary" || target === "content") line[target] = needed ? cell.trim() : cell;
    else if (target === "tags") line.tags = [...new Set(cell.split(mapping.separator || ";").map((one) => one.trim()).filter(Boolean))];
    else if (target === "valid_from" || target === "valid_to") line[target] = timeOf(cell, column);
    else if (target === "weight") line.weight = attributeOf("number", cell, column);
    else attributes.set(column, attributeOf(target, cell, column));
  }
  const type = mapping.kind === "node" ? "type" : "relation_type";
  line[type] ??= mapping.fixed.trim();
  if (attributes.size) line.attributes = Object.fromEntries(attributes);
  return line;
}

/**
 * Convert all rows of a table to lines; collect those that are invalid.
 * @param {CsvTable} table @param {CsvMapping} mapping @returns {{lines: Record<string, any>[], rows: number[], faults: {line: number, message: string}[]}} `rows` are the line numbers in the file
 */
export function convertCsv({ rows, lines }, mapping) {
  const [header, ...body] = rows;
  const made = /** @type {Record<string, any>[]} */ ([]);
  const numbers = /** @type {number[]} */ ([]);
  const faults = /** @type {{line: number, message: string}[]} */ ([]);
  for (const [at, row] of body.entries()) {
    try {
      made.push(rowToLine(row, header, mapping));
      numbers.push(lines[at + 1]);
    } catch (error) {
      faults.push({ line: lines[at + 1], message: /** @type {Error} */ (error).message });
    }
  }
  return { lines: made, rows: numbers, faults };
}
