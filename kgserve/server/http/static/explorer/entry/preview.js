// Preview of a file or a pasted text: its format, first rows, and errors.

import { convertCsv, guessDelimiter, readCsv } from "./csv.js";
import { readGraphml } from "./graphml.js";
import { W } from "./words.js";

/** @typedef {"ndjson" | "graphml" | "csv" | "zip"} Format */
/** @typedef {{line: number, message: string}} Fault */
/** @typedef {{nodes: any[], edges: any[], nodeCount: number, edgeCount: number, whole: boolean, faults: Fault[]}} Preview the first rows; `whole`: the file was read to its end */

const ENDINGS = /** @type {Record<string, Format>} */ ({ jsonl: "ndjson", ndjson: "ndjson", json: "ndjson", graphml: "graphml", xml: "graphml", csv: "csv", tsv: "csv", zip: "zip" });
const MEDIA_TYPES = { ndjson: "application/x-ndjson", graphml: "application/xml", zip: "application/zip" };
/** Required fields of lines by kind, and their names in files of the MCP memory server. */
const FIELDS = /** @type {Record<string, string[]>} */ ({ node: ["id"], edge: ["from", "to", "relation_type"], head: ["id"], store: [] });
const THEIRS = { id: "name", from: "from", to: "to", relation_type: "relationType" };
/** Maximum bytes read for a preview; CSV is read as a whole. */
const PREVIEW_BYTES = 4 * 2 ** 20;
export const MOST_CSV_BYTES = 50 * 2 ** 20;

/** Return the format for a file name; undefined: unknown. @param {string} name @returns {Format | undefined} */
export const formatOf = (name) => ENDINGS[name.toLowerCase().split(".").at(-1) ?? ""];

/** Return pasted text as a file named by its format; null: not data. @param {string} text @returns {File | null} */
export function pastedFile(text) {
  const start = text.trimStart().slice(0, 2000);
  const [line] = start.split(/\r?\n/);
  const columns = line.split(guessDelimiter(start)).length;
  const ending = start.startsWith("{") ? "jsonl" : start.startsWith("<") && start.includes("graphml") ? "graphml" : columns > 1 && /[\r\n]/.test(text.trim()) ? "csv" : "";
  return ending ? new File([text], `${W.pasted}.${ending}`) : null;
}

/** Return the beginning of a file, and whether that is all of it. @param {File} file */
async function beginning(file) {
  const whole = file.size <= PREVIEW_BYTES;
  return { text: await (whole ? file : file.slice(0, PREVIEW_BYTES)).text(), whole };
}

/** @param {string} text @param {boolean} whole @returns {Preview} */
function previewLines(text, whole) {
  const found = { nodes: /** @type {any[]} */ ([]), edges: /** @type {any[]} */ ([]), faults: /** @type {Fault[]} */ ([]) };
  const lines = text.split("\n");
  if (!whole) lines.pop();
  for (const [at, line] of lines.entries()) {
    if (!line.trim()) continue;
    try {
      const row = JSON.parse(line);
      const kind = row?.kind ?? { entity: "node", relation: "edge" }[row?.type];
      const theirs = row?.kind === undefined;
      const lacks = FIELDS[kind]?.find((name) => !((theirs ? THEIRS[name] : name) in row));
      if (lacks || !(kind in FIELDS)) found.faults.push({ line: at + 1, message: lacks ? W.noField(lacks) : W.noKind });
      else if (kind === "edge") found.edges.push(theirs ? { ...row, relation_type: row.relationType } : row);
      else if (kind === "node") found.nodes.push(theirs ? { id: row.name, type: row.entityType, content: (row.observations ?? []).join("\n") } : row);
    } catch (error) {
      found.faults.push({ line: at + 1, message: W.noJson(/** @type {Error} */ (error).message) });
    }
  }
  return { ...found, nodeCount: found.nodes.length, edgeCount: found.edges.length, whole };
}

/** @param {string} text @param {boolean} whole @returns {Preview} */
function previewGraphml(text, whole) {
  const { nodes, edges } = readGraphml(text, whole);
  return { nodes, edges, nodeCount: nodes.length, edgeCount: edges.length, whole, faults: [] };
}

/** Read a file for its preview. Throws Error. @param {File} file @param {Format} format @returns {Promise<{preview: Preview | null, table: import("./csv.js").CsvTable | null, text: string}>} */
export async function readFile(file, format) {
  if (format === "zip") return { preview: null, table: null, text: "" };
  if (format === "csv") {
    if (file.size > MOST_CSV_BYTES) throw new Error(W.bigCsv);
    const text = await file.text();
    const table = readCsv(text, guessDelimiter(text));
    if (table.rows.length < 2) throw new Error(W.emptyFile);
    return { preview: null, table, text };
  }
  const { text, whole } = await beginning(file);
  if (!text.trim()) throw new Error(W.emptyFile);
  return { preview: (format === "graphml" ? previewGraphml : previewLines)(text, whole), table: null, text: "" };
}

/** Convert a table by a mapping. @param {import("./csv.js").CsvTable} table @param {import("./csv.js").CsvMapping} mapping */
export function previewCsv(table, mapping) {
  const { lines, rows, faults } = convertCsv(table, mapping);
  const node = mapping.kind === "node";
  const preview = { nodes: node ? lines : [], edges: node ? [] : lines, nodeCount: node ? lines.length : 0, edgeCount: node ? 0 : lines.length, whole: true, faults };
  return { preview, rows, body: () => new Blob([lines.map((line) => JSON.stringify(line)).join("\n")], { type: MEDIA_TYPES.ndjson }) };
}

/** Return the request body of an import. @param {File} file @param {Exclude<Format, "csv">} format */
export const bodyOf = (file, format) => new Blob([file], { type: MEDIA_TYPES[format] });
