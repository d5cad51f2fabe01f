// Parameters of a statement, with an input field for each `$name`.

import { html, signal } from "../vendor/preact.js";
import { W } from "../view_words.js";
import { pieces } from "./editor.js";

/** Typed text by parameter name. */
export const typedParameters = signal(/** @type {Record<string, string>} */ ({}));

/** Return the parameter names in order. @param {string} statement @returns {string[]} */
export const parametersOf = (statement) =>
  [...new Set(pieces(statement, new Set()).filter(({ kind, text }) => kind === "number" && text.startsWith("$")).map(({ text }) => text.slice(1)))];

/** Parse a value as JSON, else return it as text; null if empty. @param {string} typed @returns {unknown} */
export function parameterValue(typed) {
  if (!typed.trim()) return null;
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}

/** Return the parameter values of a statement. @param {string} statement */
export const parametersFor = (statement) =>
  Object.fromEntries(parametersOf(statement).map((name) => [name, parameterValue(typedParameters.value[name] ?? "")]));

/** @param {{statement: string}} props */
export function Parameters({ statement }) {
  const names = parametersOf(statement);
  if (!names.length) return null;
  return html`<fieldset class="parameters"><legend>${W.parameters} <span class="soft">${W.parameterHelp}</span></legend>
    ${names.map((name) => html`<label key=${name}><span class="mono">$${name}</span> <input value=${typedParameters.value[name] ?? ""} autocomplete="off" spellcheck=${false} placeholder="null"
      onInput=${(/** @type {any} */ event) => { typedParameters.value = { ...typedParameters.value, [name]: event.currentTarget.value }; }} /></label>`)}</fieldset>`;
}
