// Form for the settings of a store, for admin keys. Labels and explanations are in view_words.js.

import { html, signal, useState } from "../vendor/preact.js";
import { parseAttributes } from "../entry/attributes.js";
import { refreshAbout } from "../load.js";
import { ask, key, memory } from "../server.js";
import { about, mayAdminister, say, store } from "../state.js";
import { W } from "../view_words.js";
import { unsaved } from "./forms.js";
import { DaysByTypeField, HistoryField, JsonField, ListField } from "./setting_fields.js";

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
