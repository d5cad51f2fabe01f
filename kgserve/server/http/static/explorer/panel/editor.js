// Statement editor: a text field with a highlighted overlay and completions.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { W } from "../view_words.js";

/** Completion; `of`: labels and relationship types of a property, if not all. @typedef {{label: string, type: string, of?: string[]}} Word */

const TOKENS = /\/\/.*|\/\*[\s\S]*?(?:\*\/|$)|'(?:\\.|[^'\\])*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|`[^`]*(?:`|$)|\$\w+|\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b|[\p{L}_][\p{L}\p{N}_]*|[()[\]{}]|[^\s]/gu;
const OPENING = { ")": "(", "]": "[", "}": "{" };
/** Maximum length of highlighted text, in characters. */
const LONGEST = 20_000;
const OFFERED = 50;
const SUBQUERIES = new Set(["CALL", "COLLECT", "COUNT", "EXISTS"]);

/** Return the kind of a token; empty: it depends on others. @param {string} token */
function kindOf(token) {
  if (/^(\/\/|\/\*)/.test(token)) return "comment";
  if (/^['"]/.test(token)) return "string";
  if (/^[\d$]/.test(token)) return "number";
  return /^[()[\]{}]/.test(token) ? "bracket" : "";
}

/** Set the kinds of names, by surrounding brackets and adjacent tokens. @param {{text: string, kind: string}[]} all @param {Set<string>} keywords */
function nameKinds(all, keywords) {
  const named = all.filter((one) => one.kind !== "comment" && one.text.trim());
  const inside = /** @type {string[]} */ ([]);
  let labels = "";
  named.forEach((one, i) => {
    const before = named[i - 1]?.text ?? "";
    const after = named[i + 1]?.text ?? "";
    const around = inside.at(-1) ?? "";
    if (one.kind === "bracket") {
      const query = one.text === "{" && named[i - 1]?.kind !== "property" && (SUBQUERIES.has(before.toUpperCase()) || before === ")");
      if (one.text in OPENING) inside.pop();
      else inside.push(one.text === "[" && before === "-" ? "-[" : query ? "" : one.text);
    } else if (/^[\p{L}_`]/u.test(one.text)) {
      const more = /^[|&]$/.test(before) && around !== "[" && labels;
      if (more || (before === ":" && around !== "{")) one.kind = around === "-[" ? "relation" : "label";
      else if ((before === "." && after !== "(") || (around === "{" && after === ":")) one.kind = "property";
      else if (keywords.has(one.text.toUpperCase()) && before !== ".") one.kind = "keyword";
      else if (after === "(" && !one.text.startsWith("`")) one.kind = "function";
    }
    if (!/^[|&]$/.test(one.text)) labels = one.kind === "label" || one.kind === "relation" ? one.kind : "";
  });
}

/**
 * Split a statement into tokens and the text between them.
 * @param {string} text @param {Set<string>} keywords in upper case @returns {{from: number, text: string, kind: string}[]}
 */
export function pieces(text, keywords) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    if (match.index > end) found.push({ from: end, text: text.slice(end, match.index), kind: "" });
    found.push({ from: match.index, text: match[0], kind: kindOf(match[0]) });
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push({ from: end, text: text.slice(end), kind: "" });
  nameKinds(found, keywords);
  return found;
}

/** Return the positions of the pair of brackets at the caret; empty: none. @param {ReturnType<typeof pieces>} all @param {number} caret */
export function pairAt(all, caret) {
  const open = [];
  for (const { from, text, kind } of all) {
    if (kind !== "bracket") continue;
    if (!(text in OPENING)) open.push({ from, text });
    else {
      const other = open.pop();
      if (other?.text === OPENING[text] && [other.from, other.from + 1, from, from + 1].includes(caret)) return [other.from, from];
    }
  }
  return [];
}

const NAME = "[\\p{L}\\p{N}_]*";
const MORE_NAMES = "(?:[\\p{L}\\p{N}_\\s]*[|&]\\s*:?)*\\s*";
const DECLARED = "\\s*:\\s*(?:([\\p{L}\\p{N}_]+)|`([^`]+)`)";
const QUOTED_OR_COMMENT = /'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|\/\/.*\n|\/\*[\s\S]*?\*\//g;
const FUNCTION_PLACE = /(?<![\p{L}\p{N}_.])(?:date|datetime|duration|localdatetime|localtime|time)\.\w*$/iu;
/** Kinds of completions by the text before the caret; the first match applies. */
const PLACES = /** @type {[RegExp, string[]][]} */ ([
  [/\bCALL\s+[\w.]*$/i, ["procedure"]],
  [FUNCTION_PLACE, ["function"]],
  [new RegExp(`-\\[\\s*${NAME}\\s*:${MORE_NAMES}${NAME}$`, "u"), ["relation"]],
  [new RegExp(`\\(\\s*${NAME}\\s*:${MORE_NAMES}${NAME}$`, "u"), ["label"]],
  [new RegExp(`\\b(?:AND|NOT|OR|REMOVE|SET|WHEN|WHERE|XOR)\\s+${NAME}:${NAME}$`, "iu"), ["label"]],
  [new RegExp(`[\\p{L}_]${NAME}\\.${NAME}$`, "u"), ["property"]],
  [new RegExp(`[([][^\\][(){}]*\\{(?:[^{}]*,)?\\s*${NAME}$`, "u"), ["property"]],
]);
const ANYWHERE = ["keyword", "function"];
const NAMES = new Set(["label", "relation", "property"]);

/** Return the kinds of completions at the caret, and where the typed word begins. @param {string} before @returns {{from: number, kinds: string[], quoted: boolean}} */
function placeOfWord(before) {
  const bare = before.replace(QUOTED_OR_COMMENT, (one) => " ".repeat(one.length));
  const opened = /['"`]|\/\/|\/\*/.exec(bare);
  if (opened?.[0] === "`") {
    const { kinds } = placeOfWord(before.slice(0, opened.index));
    return { from: opened.index, kinds: kinds.filter((kind) => NAMES.has(kind)), quoted: false };
  }
  if (opened) return { from: opened.index + 1, kinds: /['"]/.test(opened[0]) ? ["label", "relation"] : [], quoted: true };
  const kinds = PLACES.find(([pattern]) => pattern.test(bare))?.[1] ?? ANYWHERE;
  const begun = kinds[0] === "procedure" || FUNCTION_PLACE.test(bare) ? /[\w.]*$/ : /[\p{L}\p{N}_]*$/u;
  return { from: before.length - (begun.exec(bare)?.[0].length ?? 0), kinds, quoted: false };
}

/** Return the label or relationship type whose property is typed. @param {string} before */
function typeAtCaret(before) {
  const variable = /([\p{L}_][\p{L}\p{N}_]*)\.[\p{L}\p{N}_`]*$/u.exec(before)?.[1];
  const pattern = variable ? `[([]\\s*${variable}${DECLARED}` : `[([]\\s*${NAME}${DECLARED}[^()[\\]{}]*\\{[^{}]*$`;
  const found = new RegExp(pattern, "u").exec(before);
  return found?.[1] ?? found?.[2] ?? "";
}

/** Quote a name if Cypher requires it. @param {string} name */
const inBackticks = (name) => (/^[\p{L}_][\p{L}\p{N}_]*$/u.test(name) ? name : `\`${name.replaceAll("`", "``")}\``);

/** Return the completions at the caret. @param {string} text @param {number} caret @param {Word[]} words @param {boolean} asked @returns {{from: number, words: Word[]}} */
export function completions(text, caret, words, asked) {
  const before = text.slice(0, caret);
  const { from, kinds, quoted } = placeOfWord(before);
  const begun = before.slice(from);
  const isName = !quoted && NAMES.has(kinds[0]);
  if (!begun && !asked && !(isName && /[:.]$/.test(before))) return { from: caret, words: [] };
  const low = begun.replace(/^`/, "").toLowerCase();
  const type = typeAtCaret(before);
  const known = words.some(({ of }) => of?.includes(type));
  const fitting = words.filter((word) => kinds.includes(word.type) && word.label.toLowerCase().startsWith(low) && word.label !== begun
    && (!known || !word.of || word.of.includes(type)));
  const once = [...new Map(fitting.map((word) => [word.label, word])).values()].slice(0, OFFERED);
  return { from, words: isName ? once.map((word) => ({ ...word, label: inBackticks(word.label) })) : once };
}

/** Return the offset of a line and column, both from 1. @param {string} text @param {number} line @param {number} column */
export function placeOf(text, line, column) {
  const lines = text.split("\n");
  const row = Math.min(Math.max(1, line), lines.length) - 1;
  return lines.slice(0, row).reduce((sum, one) => sum + one.length + 1, 0) + Math.min(lines[row].length, Math.max(0, column - 1));
}

/** Return the screen box of the character at a text offset. @param {HTMLElement} shown @param {number} place @returns {DOMRect | null} */
function boxAt(shown, place) {
  const walk = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  let left = place;
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const length = node.nodeValue?.length ?? 0;
    if (left < length) {
      const range = document.createRange();
      range.setStart(node, left);
      // An empty range has no box at the beginning of a line.
      range.setEnd(node, left + 1);
      return range.getClientRects()[0] ?? null;
    }
    left -= length;
  }
  return null;
}

/**
 * Statement editor. The caret moves to `wrong`, the position of `error`. `recall` loads earlier statements.
 * @param {{text: import("../vendor/preact.js").Signal<string>, label: string, words: Word[], run: () => void, wrong: {line: number, column: number} | null, error: string, recall: (step: number) => void}} props
 */
export function Editor({ text, label, words, run, wrong, error, recall }) {
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const shown = useRef(/** @type {HTMLElement | null} */ (null));
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  const [caret, setCaret] = useState(0);
  const [offer, setOffer] = useState({ from: 0, words: /** @type {Word[]} */ ([]) });
  const [chosen, setChosen] = useState(0);
  const now = text.value;
  const keywords = new Set(words.filter((word) => word.type === "keyword").map((word) => word.label.toUpperCase()));
  const all = now.length > LONGEST ? [{ from: 0, text: now, kind: "" }] : pieces(now, keywords);
  const pair = pairAt(all, caret);
  const bad = wrong ? placeOf(now, wrong.line, wrong.column) : -1;
  const marked = wrong ? all.findLast((one) => one.from <= bad && one.text.trim())?.from : undefined;
  const close = () => setOffer({ from: 0, words: [] });
  const look = (/** @type {boolean} */ asked) => {
    const { value, selectionStart } = /** @type {HTMLTextAreaElement} */ (field.current);
    setOffer(completions(value, selectionStart, words, asked));
    setChosen(0);
  };
  useEffect(() => {
    if (bad < 0) return;
    field.current?.focus();
    field.current?.setSelectionRange(bad, bad);
  }, [wrong]);
  useEffect(() => {
    const box = offer.words.length && shown.current && list.current ? boxAt(shown.current, offer.from) : null;
    if (!box || !list.current) return;
    const { offsetHeight: high, offsetWidth: wide, style } = list.current;
    style.left = `${Math.max(4, Math.min(box.left, innerWidth - wide - 4))}px`;
    // Above the line, over the graph, so that the result stays visible.
    style.top = `${box.top - high - 2 > 4 ? box.top - high - 2 : box.bottom + 2}px`;
    list.current.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [offer, chosen]);
  const accept = (/** @type {number} */ which) => {
    const element = /** @type {HTMLTextAreaElement} */ (field.current);
    const { label: word } = offer.words[which];
    element.focus();
    element.setSelectionRange(offer.from, element.selectionStart);
    // The only way to insert text that the field can undo.
    if (!document.execCommand("insertText", false, word)) element.setRangeText(word, offer.from, element.selectionEnd, "end");
    text.value = element.value;
    close();
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    const { key: name } = event;
    const step = name === "ArrowDown" ? 1 : name === "ArrowUp" ? -1 : 0;
    if (name === "Enter" && (event.ctrlKey || event.metaKey)) run();
    else if (name === " " && event.ctrlKey) look(true);
    else if (step && (event.ctrlKey || event.metaKey)) recall(-step);
    else if (!offer.words.length) return;
    else if (name === "Escape") close();
    else if (step) setChosen((chosen + step + offer.words.length) % offer.words.length);
    else if ((name === "Enter" || name === "Tab") && !event.shiftKey) accept(chosen);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const moved = () => setCaret(field.current?.selectionStart ?? 0);
  const typed = (/** @type {any} */ event) => {
    text.value = event.currentTarget.value;
    moved();
    look(false);
  };
  const open = offer.words.length > 0;
  return html`<div class="editor" data-wrong=${Boolean(wrong)}>
    <pre ref=${shown} aria-hidden="true">${all.map((one) => html`<span key=${one.from} class=${`${one.kind} ${pair.includes(one.from) ? "pair" : ""} ${one.from === marked ? "wrong" : ""}`}>${one.text}</span>`)}${"\n"}</pre>
    <textarea ref=${field} aria-label=${label} aria-invalid=${error ? "true" : undefined} aria-describedby=${error ? "statement-error" : undefined} spellcheck=${false} autocapitalize="off" autocomplete="off" value=${now}
      aria-autocomplete="list" aria-controls=${open ? "offered" : undefined} aria-activedescendant=${open ? `offered-${chosen}` : undefined}
      onInput=${typed} onKeyDown=${key} onKeyUp=${moved} onPointerUp=${moved} onBlur=${close}></textarea>
    ${open ? html`<ul class="offered" id="offered" role="listbox" aria-label=${W.completions} ref=${list}>${offer.words.map((word, i) => html`<li key=${word.label} id=${`offered-${i}`} role="option" aria-selected=${i === chosen}
      onMouseDown=${(/** @type {Event} */ event) => { event.preventDefault(); accept(i); }}>${word.label} <span class="soft">${W.wordKinds[word.type] ?? word.type}</span></li>`)}</ul>` : null}
  </div>${error ? html`<p class="note mono" role="alert" id="statement-error">${error}</p>` : null}`;
}
