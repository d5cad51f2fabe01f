// Time of a commit, and the band above the page while a past commit or a comparison is shown.

import { html, signal, useEffect } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { about, asOf, compared, store, timeline, view } from "../state.js";
import { W } from "../view_words.js";
import { hasDrawer } from "./navigation.js";
import { time } from "./parts.js";

const DAY_MS = 86_400_000;
/** Milliseconds for which a commit is shown before its time is requested. */
const REST = 250;
/** Exact times, by store and commit. */
const times = signal(/** @type {Map<string, string>} */ (new Map()));

/** Describe the span of the timeline that holds a commit; spans longer than a day by their date. @param {number} sequence */
function roughTime(sequence) {
  const [, , begun, ended] = timeline.value.find(([from, to]) => from <= sequence && sequence <= to) ?? [];
  if (!begun) return "";
  const [start, end] = [Date.parse(begun), Date.parse(String(ended))];
  return W.about(new Date((start + end) / 2).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: end - start > DAY_MS ? undefined : "short" }));
}

/** Return the time of a commit as text: rough at first, exact once the server has answered. @param {number} sequence */
export function useCommitTime(sequence) {
  const key = `${store.value} ${about.value?.stats.created_at} ${sequence}`;
  useEffect(() => {
    if (times.peek().has(key)) return undefined;
    const rest = setTimeout(async () => {
      const { changes: [one] } = await ask("GET", memory(store.value, "changes"), { query: { since: sequence - 1, limit: 1 } }).catch(() => ({ changes: [] }));
      if (one?.sequence === sequence) times.value = new Map(times.value).set(key, one.time);
    }, REST);
    return () => clearTimeout(rest);
  }, [key]);
  const exact = times.value.get(key);
  return exact ? time(exact) : roughTime(sequence);
}

/** @param {{text: string, action: string, onClick: () => void}} props */
const Band = ({ text, action, onClick }) => html`<p class="band row" role="status">${text} <button type="button" onClick=${onClick}>${action}</button></p>`;

/** @param {{sequence: number}} props */
function CommitBand({ sequence }) {
  const when = useCommitTime(sequence);
  const text = hasDrawer() ? W.asOfBand(sequence, when) : W.presentBand(W.viewNames[view.value], sequence, when);
  return html`<${Band} text=${text} action=${W.backToNow} onClick=${() => { asOf.value = null; }} />`;
}

export function PastBand() {
  const two = compared.value;
  if (asOf.value !== null) return html`<${CommitBand} sequence=${asOf.value} />`;
  return two ? html`<${Band} text=${W.comparedBand(W.viewNames[view.value], two.before, two.after)} action=${W.stopComparing} onClick=${() => { compared.value = null; }} />` : null;
}
