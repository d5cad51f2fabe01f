// History of a node: changes of each state, comparison of two states, and revert.

import { html, useState } from "../vendor/preact.js";
import { ask, memory } from "../server.js";
import { attempt, mayWrite, say, store } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd } from "./forms.js";
import { refreshShown } from "./node.js";
import { Dialog, plain, time } from "./parts.js";
import { lookBack } from "./time.js";

/** Metadata fields of a state, excluded from comparison. */
const ASIDE = new Set(["version", "sequence", "updated_at", "created_at", "superseded_by", "is_current", "confidence_at"]);

/**
 * Return the differences between two states of a node, by field and attribute.
 * @param {any} before @param {any} after @returns {{path: string, before: any, after: any}[]}
 */
export function differences(before, after) {
  const flat = (/** @type {any} */ node) => {
    const { attributes = {}, ...rest } = node ?? {};
    const own = Object.entries(attributes).map(([name, value]) => /** @type {[string, any]} */ ([`attributes.${name}`, value]));
    return new Map([...Object.entries(rest).filter(([name]) => !ASIDE.has(name)), ...own]);
  };
  const [one, other] = [flat(before), flat(after)];
  return [...new Set([...one.keys(), ...other.keys()])]
    .filter((path) => JSON.stringify(one.get(path)) !== JSON.stringify(other.get(path)))
    .map((path) => ({ path, before: one.get(path) ?? null, after: other.get(path) ?? null }));
}

const LENGTHS = /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([["year", 31_557_600], ["month", 2_629_800], ["day", 86_400], ["hour", 3600], ["minute", 60], ["second", 1]]);

/** Format the duration of a state in its largest unit. @param {string} from @param {string} to */
function lasting(from, to) {
  const seconds = Math.max(1, (Date.parse(to) - Date.parse(from)) / 1000);
  const [unit, size] = LENGTHS.find(([, each]) => seconds >= each) ?? ["second", 1];
  return new Intl.NumberFormat("en", { style: "unit", unit, unitDisplay: "long" }).format(Math.floor(seconds / size));
}

/** Return a field as the page names it, or an attribute. @param {string} path */
function fieldName(path) {
  if (path.startsWith("attributes.")) return path.slice(11);
  return typeof W[path] === "string" ? W[path] : path.replaceAll("_", " ");
}

/** Return the value of a field as the page shows it. @param {string} path @param {any} value */
function fieldValue(path, value) {
  if (/^\w+_(from|to|at)$/.test(path)) return time(value);
  return Array.isArray(value) && path === "tags" ? value.join(", ") : plain(value);
}

/** @param {{diff: {path: string, before: any, after: any}[]}} props */
export const Diff = ({ diff }) => diff.length
  ? html`<ul class="diff">${diff.map(({ path, before, after }) => html`<li key=${path}><span class="name">${fieldName(path)}:</span>${" "}
      ${before === null ? null : html`<del>${fieldValue(path, before)}</del>`} ${after === null ? null : html`<ins>${fieldValue(path, after)}</ins>`}</li>`)}</ul>`
  : html`<p class="soft">${W.noDifference}</p>`;

/** @param {{id: string, present: any}} props */
export function History({ id, present }) {
  const [states, setStates] = useState(/** @type {any[] | null} */ (null));
  const [next, setNext] = useState(/** @type {number | null} */ (null));
  const [why, setWhy] = useState("");
  const [picked, setPicked] = useState(/** @type {number[]} */ ([]));
  const [revert, setRevert] = useState(/** @type {any} */ (null));
  const load = async (/** @type {number | null} */ before) => {
    try {
      const answer = await ask("GET", memory(store.value, "nodes", id, "history"), { query: { before } });
      setStates([...(before === null ? [] : (states ?? [])), ...answer.states]);
      setNext(answer.next_before);
    } catch (error) {
      setWhy(/** @type {Error} */ (error).message);
    }
  };
  const opened = (/** @type {any} */ event) => {
    if (event.currentTarget.open && states === null) void load(null);
  };
  const pick = (/** @type {number} */ index) => setPicked(picked.includes(index) ? picked.filter((one) => one !== index) : [...picked, index].slice(-2));
  const [newer, older] = [...picked].sort((one, other) => one - other);
  return html`<details class="history" onToggle=${opened}><summary><h3>${W.history}</h3></summary>
    ${why ? html`<p class="note">${why}</p>` : null}
    ${picked.length === 2 && states ? html`<section class="note" aria-label=${W.compare}>${W.versionsCompared(states[older].node.version, states[newer].node.version)}
      <${Diff} diff=${differences(states[older].node, states[newer].node)} /></section>` : null}
    <ol class="states">${(states ?? []).map((state, index, all) => html`<li key=${`${state.from_sequence} ${state.node.version}`} data-change=${state.deleted ? "deleted" : state.diff.length || next !== null || index < all.length - 1 ? "changed" : "created"}>
      <label><input type="checkbox" checked=${picked.includes(index)} onChange=${() => pick(index)} aria-label=${W.compareVersion(state.node.version)} /> <strong>${W.version} ${state.node.version}</strong></label>
      <span class="soft">${time(state.recorded_from)}${state.node.created_by ? ` ${W.by(state.node.created_by)}` : ""}${state.deleted ? ` ${W.thenDeleted}` : ""}</span>
      ${index || state.deleted ? html` <span class="lasted">${W.lasted(lasting(state.recorded_from, state.recorded_to))}</span>` : null}
      ${state.diff.length ? html`<${Diff} diff=${state.diff.filter((/** @type {any} */ one) => !ASIDE.has(one.path))} />` : null}
      <p class="row"><button type="button" class="plain small" onClick=${() => lookBack(state.from_sequence)}>${W.lookThen}</button>
        ${mayWrite.value && state.to_sequence !== null ? html`<button type="button" class="plain small" onClick=${() => setRevert(state)}>${W.revert}</button>` : null}</p></li>`)}</ol>
    ${next === null ? null : html`<button type="button" class="plain small" onClick=${() => load(next)}>${W.older}</button>`}
    ${revert ? html`<${Revert} id=${id} state=${revert} present=${present} onClose=${() => setRevert(null)} />` : null}
  </details>`;
}

/** @param {{id: string, state: any, present: any, onClose: () => void}} props */
function Revert({ id, state, present, onClose }) {
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
    void attempt(async () => {
      await ask("POST", memory(store.value, "nodes", id, "revert"), { body: { version: state.node.version } });
      say(W.reverted(state.node.version));
      await refreshShown();
    });
  };
  return html`<${Dialog} title=${W.revertTo(state.node.version)} onClose=${onClose}><form onSubmit=${send}>
    <p>${W.revertText}</p><${Diff} diff=${differences(present, state.node)} /><${FormEnd} does=${W.revert} /></form><//>`;
}
