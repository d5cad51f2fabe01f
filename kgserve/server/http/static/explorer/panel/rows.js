// Virtual table that renders only the visible rows and the focused one.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";

/** Row height in pixels, as in explorer.css. */
const HEIGHT = 34;
const BEYOND = 12;
/** Number of rows by which the rendered range moves; smaller scrolls render nothing. */
const STEP = 6;
const MOVES = { ArrowUp: -1, ArrowDown: 1, Home: Number.NEGATIVE_INFINITY, End: Number.POSITIVE_INFINITY };

/** Return the indices of the rows to render, in order. @param {number} first @param {number} last @param {number} held focused row @param {number} count */
export function inSight(first, last, held, count) {
  const from = Math.max(0, first - BEYOND);
  const to = Math.min(count, last + BEYOND);
  const numbers = Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
  if (held < 0 || held >= count || (held >= from && held < to)) return numbers;
  return held < from ? [held, ...numbers] : [...numbers, held];
}

/** @param {HTMLElement} row @returns {HTMLElement[]} */
const controls = (row) => [...row.querySelectorAll("button, a, input")].map((one) => /** @type {HTMLElement} */ (one));

/**
 * Virtual table. Arrow keys move by row, Home and End to the ends.
 * @template T
 * @param {{label: string, caption?: string, head: any, columns: number, rows: T[], keyOf: (row: T, at: number) => string, classOf?: (row: T) => string, children: (row: T, at: number) => any, big?: boolean}} props
 */
export function LongTable({ label, caption, head, columns, rows, keyOf, classOf, children, big }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const wanted = useRef(/** @type {{row: number, control: number} | null} */ (null));
  const [first, setFirst] = useState(0);
  const [count, setCount] = useState(40);
  const [held, setHeld] = useState(-1);
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const look = () => {
      setFirst(Math.floor(element.scrollTop / HEIGHT / STEP) * STEP);
      setCount(Math.ceil(element.clientHeight / HEIGHT) + STEP);
    };
    const watched = new ResizeObserver(look);
    watched.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      watched.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  useEffect(() => {
    const { row, control } = wanted.current ?? { row: -1, control: 0 };
    const found = /** @type {HTMLElement | null | undefined} */ (box.current?.querySelector(`tr[data-row="${row}"]`));
    if (!found) return;
    wanted.current = null;
    const all = controls(found);
    (all[control] ?? all[0])?.focus();
  });
  const at = (/** @type {any} */ event) => {
    const row = event.target.closest?.("tr[data-row]");
    return row ? { row: Number(row.dataset.row), control: controls(row).indexOf(event.target) } : null;
  };
  const entered = (/** @type {any} */ event) => setHeld(at(event)?.row ?? -1);
  const move = (/** @type {any} */ event) => {
    const from = at(event);
    if (!from || !(event.key in MOVES) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const row = Math.min(rows.length - 1, Math.max(0, from.row + MOVES[event.key]));
    wanted.current = { ...from, row };
    setHeld(row);
  };
  /** Return a spacer for rows that are not rendered. @param {string} key @param {number} missing */
  const gap = (key, missing) => missing > 0
    ? [html`<tr key=${key} class="gap" aria-hidden="true"><td colspan=${columns} ref=${(/** @type {HTMLElement | null} */ cell) => { if (cell) cell.style.height = `${missing * HEIGHT}px`; }}></td></tr>`]
    : [];
  /** Return a row and the spacer before it, as siblings so that a row that moves keeps its element and focus. */
  const made = (/** @type {number} */ number, /** @type {number} */ i) => [
    ...gap(`before ${i}`, number - (i ? numbers[i - 1] + 1 : 0)),
    html`<tr key=${`row ${keyOf(rows[number], number)}`} data-row=${number} aria-rowindex=${number + 2} class=${classOf?.(rows[number]) ?? ""}>${children(rows[number], number)}</tr>`,
  ];
  const numbers = inSight(first, first + count, held, rows.length);
  return html`<div class=${`scroll long ${big ? "fill" : "rows"}`} ref=${box} tabindex="0" role="region" aria-label=${label} onFocusIn=${entered} onKeyDown=${move}>
    <table aria-rowcount=${rows.length + 1}>${caption ? html`<caption class="hidden">${caption}</caption>` : null}
      <thead><tr aria-rowindex="1">${head}</tr></thead>
      <tbody>${numbers.flatMap(made)}${gap("at the end", rows.length - 1 - (numbers.at(-1) ?? -1))}</tbody></table></div>`;
}
