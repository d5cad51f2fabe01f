// Labels of nodes, and truncation of texts.

const LONGEST = 36;
const NAMES = ["name", "title", "label"];

/** Remove the controls that would reorder the texts around a label. @param {string} text */
export const ordered = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "");

/** Truncate a text without splitting a character. @param {string} text @param {number} [most] */
export function short(text, most = LONGEST) {
  const line = ordered(text).replace(/\s+/g, " ").trim();
  if (line.length <= most) return line;
  return `${[...line.slice(0, most * 2)].slice(0, most - 1).join("")}…`;
}

/** Return the summary, else a name, else the first words, else the id. @param {any} node as the server gives it @returns {string} */
export function labelOf(node) {
  const named = NAMES.map((name) => node.attributes?.[name]).find((value) => typeof value === "string" && value.trim());
  return short(node.summary || node.name || named || node.content || node.id) || node.id;
}
