// Bitemporal filters: the state of rows as of a commit, and their validity at a time.

/** @typedef {import("./model.js").Span} Span */
/** @typedef {{lives: Span[] | null, validFrom: number | null, validTo: number | null}} Dated */
/**
 * @typedef {object} Clock
 * @property {number | null} asOf a commit; null: now
 * @property {number | null} validAt milliseconds; null: any time
 */

/** Return the index of the state that held as of a commit; -1: none did. @param {Dated} row @param {number | null} asOf */
export function stateAt(row, asOf) {
  if (row.lives === null) return 0;
  return row.lives.findIndex(([from, to]) => (asOf === null ? to === null : from <= asOf && (to === null || asOf < to)));
}

/** @param {Dated} row @param {number | null} validAt */
export const isTrueAt = (row, validAt) =>
  validAt === null || ((row.validFrom === null || row.validFrom <= validAt) && (row.validTo === null || validAt < row.validTo));

/** @param {Dated} row @param {Clock} clock */
export const holds = (row, clock) => stateAt(row, clock.asOf) >= 0 && isTrueAt(row, clock.validAt);

/** Return the start and end of a row's validity that lie within a period; a withdrawn row, with both at once, was never true. @param {Dated} row @param {number} from milliseconds @param {number} to @returns {{at: number, ended: boolean}[]} */
export function endsWithin({ validFrom, validTo }, from, to) {
  if (validFrom === validTo) return [];
  const inside = (/** @type {number | null} */ at) => at !== null && from <= at && at <= to;
  return [...(inside(validFrom) ? [{ at: Number(validFrom), ended: false }] : []), ...(inside(validTo) ? [{ at: Number(validTo), ended: true }] : [])];
}

/** @typedef {"same" | "gone" | "come" | "changed" | "never"} Difference */

/** Return the change of a row from one commit to another. @param {Dated} row @param {number | null} before @param {number | null} after @returns {Difference} */
export function difference(row, before, after) {
  const [then, now] = [stateAt(row, before), stateAt(row, after)];
  if (then < 0) return now < 0 ? "never" : "come";
  if (now < 0) return "gone";
  return then === now ? "same" : "changed";
}

/** Return the least and greatest valid time of all rows; null: none has one. @param {Iterable<Dated>} rows @returns {[number, number] | null} */
export function validRange(rows) {
  let [least, greatest] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const { validFrom, validTo } of rows) {
    for (const time of [validFrom, validTo]) {
      if (time === null || Number.isNaN(time)) continue;
      least = Math.min(least, time);
      greatest = Math.max(greatest, time);
    }
  }
  return least <= greatest ? [least, greatest] : null;
}
