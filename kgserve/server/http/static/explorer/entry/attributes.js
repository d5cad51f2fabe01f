// Conversion between a node's attributes and form rows.

import { W } from "./words.js";

/** @typedef {"text" | "number" | "boolean" | "json"} AttributeKind */
/** @typedef {{name: string, kind: AttributeKind, text: string}} AttributeRow */

const NUMBER = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
const KINDS = { string: "text", number: "number", boolean: "boolean" };

/** @param {Record<string, any>} attributes @returns {AttributeRow[]} */
export const rowsOf = (attributes) => Object.entries(attributes).map(([name, value]) => {
  const kind = /** @type {AttributeKind} */ (KINDS[typeof value] ?? "json");
  return { name, kind, text: kind === "json" ? JSON.stringify(value) : String(value) };
});

/** Return the name of the first attribute with an integer that the browser may have rounded; undefined: none. @param {Record<string, any>} attributes */
export const roundedAttribute = (attributes) => Object.keys(attributes).find((name) => isRounded(attributes[name]));

/** @param {any} value @returns {boolean} */
function isRounded(value) {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value);
  return value !== null && typeof value === "object" && Object.values(value).some(isRounded);
}

/** @param {AttributeRow} row @returns {any} */
function attributeValue({ name, kind, text }) {
  if (kind === "text") return text;
  if (kind === "boolean") return text === "true";
  if (kind === "number" && !NUMBER.test(text.trim())) throw new Error(W.noNumber(name));
  try {
    return JSON.parse(text.trim().replace(/^(-?)0+(?=\d)/, "$1"));
  } catch (error) {
    throw new Error(`${name}: ${W.noJson(/** @type {Error} */ (error).message)}`);
  }
}

/** Return the attributes of rows, without empty rows. Throws Error. @param {AttributeRow[]} rows @returns {Record<string, any>} */
export function attributesOf(rows) {
  const attributes = new Map();
  for (const row of rows) {
    const name = row.name.trim();
    if (!name && !row.text) continue;
    if (!name) throw new Error(W.namelessAttribute);
    if (attributes.has(name)) throw new Error(W.twice(name));
    attributes.set(name, attributeValue({ ...row, name }));
  }
  return checked(Object.fromEntries(attributes));
}

/** Parse attributes from JSON. Throws Error. @param {string} text @returns {Record<string, any>} */
export function parseAttributes(text) {
  let value;
  try {
    value = JSON.parse(text.trim() || "{}");
  } catch (error) {
    throw new Error(W.noJson(/** @type {Error} */ (error).message));
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(W.noObject);
  return checked(value);
}

/** @param {Record<string, any>} attributes */
function checked(attributes) {
  const rounded = roundedAttribute(attributes);
  if (rounded !== undefined) throw new Error(W.hugeNumber(rounded));
  return attributes;
}
