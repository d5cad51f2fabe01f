// Statements stored in this browser for a store: recent ones, and saved ones with their parameters.

import { html, signal, useState } from "../vendor/preact.js";
import { Plus } from "../vendor/icons.js";
import { say, store } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd } from "./forms.js";
import { Dialog, Icon } from "./parts.js";

const REMEMBERED = 30;
const OFF = "kgserve-no-statements";

/** @typedef {{name: string, text: string, params: Record<string, string>}} SavedStatement parameters as typed */

export const remembers = signal(localStorage.getItem(OFF) === null);
/** Incremented when the stored statements change. */
const noted = signal(0);

const place = () => `kgserve-statements ${store.value}`;
const savedPlace = () => `kgserve-saved ${store.value}`;

/** @param {string} key @returns {any[]} */
function kept(key) {
  noted.value;
  return JSON.parse(localStorage.getItem(key) ?? "[]");
}

/** @param {string} key @param {unknown[]} list */
function keep(key, list) {
  if (list.length) localStorage.setItem(key, JSON.stringify(list));
  else localStorage.removeItem(key);
  noted.value++;
}

/** Return the recent statements of this store, newest first. @returns {string[]} */
export const statements = () => kept(place());
/** Return the saved statements of this store, sorted by name. @returns {SavedStatement[]} */
export const savedStatements = () => kept(savedPlace());

/** @param {string} statement */
export function remember(statement) {
  if (remembers.value) keep(place(), [statement, ...statements().filter((one) => one !== statement)].slice(0, REMEMBERED));
}

/** Toggle the recording of statements; stopping deletes all but saved ones. */
export function toggleRemembering() {
  remembers.value = !remembers.value;
  if (remembers.value) localStorage.removeItem(OFF);
  else {
    localStorage.setItem(OFF, "1");
    for (const name of Object.keys(localStorage)) if (name.startsWith("kgserve-statements ")) localStorage.removeItem(name);
  }
  noted.value++;
}

/** Menu of saved statements, and button to save the current one or delete others. @param {{present: Omit<SavedStatement, "name">, onOpen: (saved: SavedStatement) => void}} props */
export function SavedStatements({ present, onOpen }) {
  const [open, setOpen] = useState(false);
  const saved = savedStatements();
  const choose = (/** @type {any} */ event) => {
    const chosen = saved.find((one) => one.name === event.currentTarget.value);
    event.currentTarget.value = "";
    if (chosen) onOpen(chosen);
  };
  return html`${saved.length ? html`<select aria-label=${W.savedStatements} onChange=${choose}><option value="">${W.savedStatements}</option>${saved.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select>` : null}
    <button type="button" class="plain" onClick=${() => setOpen(true)}><${Icon} of=${Plus} />${W.saveStatement}</button>
    ${open ? html`<${SaveDialog} saved=${saved} present=${present} onClose=${() => setOpen(false)} />` : null}`;
}

/** @param {{saved: SavedStatement[], present: Omit<SavedStatement, "name">, onClose: () => void}} props */
function SaveDialog({ saved, present, onClose }) {
  const [name, setName] = useState("");
  const wanted = name.trim();
  const without = (/** @type {string} */ other) => saved.filter((one) => one.name !== other);
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    keep(savedPlace(), [...without(wanted), { name: wanted, ...present }].sort((one, other) => one.name.localeCompare(other.name)));
    say(W.statementSaved(wanted));
    onClose();
  };
  const remove = (/** @type {SavedStatement} */ one) => {
    keep(savedPlace(), without(one.name));
    say(W.statementDeleted(one.name), false, async () => keep(savedPlace(), [...savedStatements(), one].sort((a, b) => a.name.localeCompare(b.name))));
  };
  return html`<${Dialog} title=${W.saveStatement} onClose=${onClose}><form onSubmit=${send}>
    <p class="soft">${W.savedHere}</p><pre class="scroll" tabindex="0" role="region" aria-label=${W.statement}>${present.text}</pre>
    <label>${W.name} <input required maxlength="100" value=${name} onInput=${(/** @type {any} */ event) => setName(event.currentTarget.value)} /></label>
    <${FormEnd} does=${saved.some((one) => one.name === wanted) ? W.replaceStatement : W.save} disabled=${!wanted} /></form>
    ${saved.length ? html`<h3>${W.savedStatements}</h3><ul class="plain-list">${saved.map((one) => html`<li key=${one.name}>${one.name} <button type="button" class="plain small bad" aria-label=${W.doWith(W.delete, one.name)} onClick=${() => remove(one)}>${W.delete}</button></li>`)}</ul>` : null}<//>`;
}
