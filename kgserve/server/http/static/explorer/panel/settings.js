// Form for the settings of a store, for admin keys. Labels and explanations are in view_words.js.

import { html, signal, useState } from "../vendor/preact.js";
import { Plus } from "../vendor/icons.js";
import { ListField, parseAttributes, RemoveButton } from "../entry/fields.js";
import { refreshAbout } from "../load.js";
import { ask, key, memory } from "../server.js";
import { about, mayAdminister, say, store } from "../state.js";
import { W } from "../view_words.js";
import { unsaved } from "./forms.js";
import { Icon } from "./parts.js";

/** @typedef {import("../entry/fields.js").FieldProps} FieldProps */

const LANGUAGES = ["auto", "ar", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it", "nl", "no", "pt", "ro", "ru", "sv", "ta", "tr"];
const languageNames = new Intl.DisplayNames(["en"], { type: "language" });
/** Custom field components by setting path. */
const FIELDS = { kind_whitelist: ListField, indexed_attributes: ListField, metadata: JsonField, history: HistoryField, "memory.half_life_by_type": DaysByTypeField };
/** Labels, explanations and choices by setting path. */
const TEXTS = Object.assign({}, ...Object.values(W.settingGroups));
const FIXED = new Set(["store", "created_at", "sequence", "memory"]);

/** Return settings by path; memory settings have the prefix `memory.`. @param {any} given @returns {Record<string, any>} */
const byPath = (given) => Object.fromEntries([
  ...Object.entries(given).filter(([name]) => !FIXED.has(name)),
  ...Object.entries(given.memory ?? {}).map(([name, value]) => [`memory.${name}`, value]),
]);

/** Unsaved changes by store and key, kept while other views are shown. */
const drafts = signal(/** @type {Record<string, Record<string, any>>} */ ({}));
unsaved.add(() => Object.values(drafts.value).some((draft) => Object.keys(draft).length));

/** Build the request body of a change. Throws Error if the notes are not a JSON object. @param {Record<string, any>} draft */
function bodyOf(draft) {
  /** @type {Record<string, any>} */
  const body = {};
  for (const [path, given] of Object.entries(draft)) {
    const value = FIELDS[path] === JsonField ? parseAttributes(given) : given;
    const [name, inner] = path.split(".");
    if (inner) body.memory = { ...body.memory, [inner]: value };
    else body[name] = value;
  }
  return body;
}

/** @param {{path: string, value: any, optional: boolean, disabled: boolean, onChange: (value: any) => void}} props */
function Field({ path, value, optional, disabled, onChange }) {
  const name = path.split(".").at(-1) ?? path;
  const [label, help, choices] = TEXTS[path] ?? [name.replaceAll("_", " "), ""];
  const Own = FIELDS[path];
  if (Own) return html`<${Own} label=${label} help=${help} value=${value} disabled=${disabled} onChange=${onChange} />`;
  const explained = help ? html`<span class="help">${help}</span>` : null;
  if (typeof value === "boolean") return html`<div class="field"><label class="check"><input type="checkbox" checked=${value} disabled=${disabled} onChange=${() => onChange(!value)} /> ${label}</label>${explained}</div>`;
  const options = path === "language" ? Object.fromEntries(LANGUAGES.map((code) => [code, code === "auto" ? W.detected : languageNames.of(code)])) : choices;
  if (options) {
    return html`<label class="field">${label}<select value=${value} disabled=${disabled} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}>
      ${Object.entries({ [value]: value, ...options }).map(([one, words]) => html`<option key=${one} value=${one}>${words}</option>`)}</select>${explained}</label>`;
  }
  if (typeof value === "number" || value === null) {
    const change = (/** @type {any} */ event) => onChange(optional && event.currentTarget.value === "" ? null : event.currentTarget.valueAsNumber);
    return html`<label class="field">${label}<input type="number" step="any" required=${!optional} value=${value ?? ""} placeholder=${path === "memory.half_life_days" ? W.never : ""} disabled=${disabled} onInput=${change} />${explained}</label>`;
  }
  return html`<label class="field">${label}<input value=${value} disabled=${disabled} onInput=${(/** @type {any} */ event) => onChange(event.currentTarget.value)} />${explained}</label>`;
}

export function Settings() {
  const given = about.value?.settings;
  const name = store.value;
  const place = JSON.stringify([name, key.value]);
  const draft = drafts.value[place] ?? {};
  const [wrong, setWrong] = useState("");
  const setDraft = (/** @type {Record<string, any>} */ next) => {
    setWrong("");
    drafts.value = { ...drafts.value, [place]: next };
  };
  if (!given) return html`<p role="status">${W.loading}</p>`;
  const known = byPath(given);
  const groups = { ...W.settingGroups, [W.moreSettings]: Object.fromEntries(Object.entries(known).filter(([path]) => !(path in TEXTS))) };
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setWrong("");
    try {
      await ask("PATCH", memory(name), { body: bodyOf(draft) });
      await refreshAbout();
      setDraft({});
      say(W.settingsSaved);
    } catch (error) {
      // The server names the path of a setting.
      setWrong(/** @type {Error} */ (error).message.replace(/^[\w.]+(?=: )/, (path) => TEXTS[path]?.[0] ?? path));
    }
  };
  const change = (/** @type {string} */ path) => (/** @type {any} */ value) => {
    const { [path]: _, ...rest } = draft;
    setDraft(JSON.stringify(value) === JSON.stringify(known[path]) ? rest : { ...rest, [path]: value });
  };
  const count = Object.keys(draft).length;
  return html`<div class="scroll fill pad" tabindex="0" role="region" aria-label=${W.settings}><form class="settings" onSubmit=${send}>
    <h2>${W.settings}</h2>
    ${mayAdminister.value ? null : html`<p class="note">${W.onlyAdmin}</p>`}
    ${Object.entries(groups).map(([group, fields]) => Object.keys(fields).some((path) => path in known) ? html`<fieldset key=${group}><legend>${group}</legend>
      ${Object.keys(fields).filter((path) => path in known).map((path) => html`<${Field} key=${path} path=${path} value=${path in draft ? draft[path] : known[path]} optional=${known[path] === null || path === "memory.half_life_days"} disabled=${!mayAdminister.value} onChange=${change(path)} />`)}</fieldset>` : null)}
    ${mayAdminister.value ? html`<p class="row save">${wrong ? html`<span class="note" role="alert">${wrong}</span>` : null}<button disabled=${!count}>${W.save}</button>
      ${count ? html`<button type="button" class="plain" onClick=${() => setDraft({})}>${W.discard}</button> <span class="soft">${W.changesToSave(count)}</span>` : null}</p>` : null}
  </form></div>`;
}

const HISTORY_DAYS = 90;

/** Field for a JSON object. The value is text once it is changed; while that is invalid, the form cannot be sent. @param {FieldProps} props */
function JsonField({ label, help, value, disabled, onChange }) {
  const text = typeof value === "string" ? value : Object.keys(value).length ? JSON.stringify(value, null, 2) : "";
  let wrong = "";
  try {
    parseAttributes(text);
  } catch (error) {
    wrong = /** @type {Error} */ (error).message;
  }
  return html`<label class="field">${label}<textarea rows="3" value=${text} disabled=${disabled} ref=${(/** @type {HTMLTextAreaElement | null} */ field) => field?.setCustomValidity(wrong)} onInput=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}></textarea>
    <span class="help">${help}</span>${wrong ? html`<span class="note" role="alert">${wrong}</span>` : null}</label>`;
}

/** Field for history retention: all, none, or a number of days. @param {FieldProps} props */
function HistoryField({ label, help, value, disabled, onChange }) {
  const days = typeof value === "number";
  const choose = (/** @type {any} */ event) => onChange(event.currentTarget.value === "days" ? HISTORY_DAYS : event.currentTarget.value);
  return html`<div class="field"><div class="pair-of-fields"><label>${label}<select value=${days ? "days" : value} disabled=${disabled} onChange=${choose}>
      ${Object.entries(W.historyChoices).map(([one, words]) => html`<option key=${one} value=${one}>${words}</option>`)}</select></label>
    ${days ? html`<label>${W.days}<input type="number" min="0" step="1" required value=${value} disabled=${disabled} onInput=${(/** @type {any} */ event) => onChange(event.currentTarget.valueAsNumber)} /></label>` : null}</div>
    <span class="help">${help}</span></div>`;
}

/** Field for half-lives in days by memory type; empty: never fades. @param {FieldProps} props */
function DaysByTypeField({ label, help, value, disabled, onChange }) {
  const [typed, setTyped] = useState("");
  const add = () => {
    if (typed.trim()) onChange({ ...value, [typed.trim()]: null });
    setTyped("");
  };
  const days = (/** @type {string} */ type) => (/** @type {any} */ event) => onChange({ ...value, [type]: event.currentTarget.value === "" ? null : event.currentTarget.valueAsNumber });
  const without = (/** @type {string} */ type) => Object.fromEntries(Object.entries(value).filter(([other]) => other !== type));
  return html`<div class="field" role="group" aria-label=${label}><span class="label">${label}</span>
    ${Object.keys(value).map((type) => html`<p class="row" key=${type}><span class="chip">${type}</span>
      <input type="number" step="any" min="0" aria-label=${W.daysOf(type)} placeholder=${W.never} value=${value[type] ?? ""} disabled=${disabled} onInput=${days(type)} /> ${W.days}
      ${disabled ? null : html`<${RemoveButton} look="icon-button" name=${type} onClick=${() => onChange(without(type))} />`}</p>`)}
    ${disabled ? null : html`<p class="row"><input aria-label=${W.typeOfMemory} placeholder=${W.typeOfMemory} value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} />
      <button type="button" disabled=${!typed.trim()} onClick=${add}><${Icon} of=${Plus} />${W.addType}</button></p>`}
    <span class="help">${help}</span></div>`;
}
