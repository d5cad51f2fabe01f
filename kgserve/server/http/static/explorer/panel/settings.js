// Form for the settings of a store, for admin keys. Labels and explanations are in view_words.js.

import { html, useState } from "../vendor/preact.js";
import { refreshAbout } from "../load.js";
import { ask, memory } from "../server.js";
import { about, attempt, mayAdminister, say, store } from "../state.js";
import { W } from "../view_words.js";
import { DaysByTypeField, HistoryField, JsonField, ListField } from "./setting_fields.js";

const LANGUAGES = ["auto", "ar", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it", "nl", "no", "pt", "ro", "ru", "sv", "ta", "tr"];
const languageNames = new Intl.DisplayNames(["en"], { type: "language" });
/** Custom field components by setting path. */
const FIELDS = { kind_whitelist: ListField, indexed_attributes: ListField, metadata: JsonField, history: HistoryField, "memory.half_life_by_type": DaysByTypeField };
/** Setting paths in the order of the form; other settings follow at the end. */
const GROUPS = {
  general: ["name", "language", "metadata"],
  writing: ["conflict_policy", "kind_whitelist", "history"],
  search: ["indexes", "indexed_attributes", "late_interaction"],
  fading: ["memory.half_life_days", "memory.half_life_by_type", "memory.reinforcement", "memory.reinforcement_amount", "memory.prune", "memory.prune_threshold", "memory.prune_hours"],
  merging: ["memory.dedup", "memory.dedup_threshold", "memory.consolidation", "memory.consolidation_threshold", "memory.consolidation_guard", "memory.consolidation_interval", "memory.consolidation_hours"],
  recall: ["memory.default_limit", "memory.min_confidence", "memory.alpha", "memory.min_similarity", "memory.min_relevance", "memory.extract"],
};
const FIXED = new Set(["store", "created_at", "sequence", "memory"]);

/** Return settings by path; memory settings have the prefix `memory.`. @param {any} given @returns {Record<string, any>} */
const byPath = (given) => Object.fromEntries([
  ...Object.entries(given).filter(([name]) => !FIXED.has(name)),
  ...Object.entries(given.memory ?? {}).map(([name, value]) => [`memory.${name}`, value]),
]);

/** Build the request body of a change. @param {Record<string, any>} draft */
function bodyOf(draft) {
  /** @type {Record<string, any>} */
  const body = {};
  for (const [path, value] of Object.entries(draft)) {
    const [name, inner] = path.split(".");
    if (inner) body.memory = { ...body.memory, [inner]: value };
    else body[name] = value;
  }
  return body;
}

/** @param {{path: string, value: any, disabled: boolean, onChange: (value: any) => void}} props */
function Field({ path, value, disabled, onChange }) {
  const name = path.split(".").at(-1) ?? path;
  const [label, help, choices] = W.settingFields[path] ?? [name.replaceAll("_", " "), ""];
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
    const change = (/** @type {any} */ event) => onChange(event.currentTarget.value === "" ? null : event.currentTarget.valueAsNumber);
    return html`<label class="field">${label}<input type="number" step="any" required=${value !== null && path !== "memory.half_life_days"} value=${value ?? ""} placeholder=${path === "memory.half_life_days" ? W.never : ""} disabled=${disabled} onInput=${change} />${explained}</label>`;
  }
  return html`<label class="field">${label}<input value=${value} disabled=${disabled} onInput=${(/** @type {any} */ event) => onChange(event.currentTarget.value)} />${explained}</label>`;
}

export function Settings() {
  const given = about.value?.settings;
  const [draft, setDraft] = useState(/** @type {Record<string, any>} */ ({}));
  if (!given) return html`<p role="status">${W.loading}</p>`;
  const known = byPath(given);
  const listed = new Set(Object.values(GROUPS).flat());
  const groups = { ...GROUPS, more: Object.keys(known).filter((path) => !listed.has(path)) };
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    void attempt(async () => {
      await ask("PATCH", memory(store.value), { body: bodyOf(draft) });
      await refreshAbout();
      setDraft({});
      say(W.settingsSaved);
    });
  };
  const change = (/** @type {string} */ path) => (/** @type {any} */ value) => {
    const { [path]: _, ...rest } = draft;
    setDraft(JSON.stringify(value) === JSON.stringify(known[path]) ? rest : { ...rest, [path]: value });
  };
  const count = Object.keys(draft).length;
  return html`<div class="scroll fill pad" tabindex="0" role="region" aria-label=${W.settings}><form class="settings" onSubmit=${send}>
    <h2>${W.settings}</h2>
    ${mayAdminister.value ? null : html`<p class="note">${W.onlyAdmin}</p>`}
    ${Object.entries(groups).map(([group, paths]) => paths.some((path) => path in known) ? html`<fieldset key=${group}><legend>${W.settingGroups[group]}</legend>
      ${paths.filter((path) => path in known).map((path) => html`<${Field} key=${path} path=${path} value=${path in draft ? draft[path] : known[path]} disabled=${!mayAdminister.value} onChange=${change(path)} />`)}</fieldset>` : null)}
    ${mayAdminister.value ? html`<p class="row save"><button disabled=${!count}>${W.save}</button>
      ${count ? html`<button type="button" class="plain" onClick=${() => setDraft({})}>${W.discard}</button> <span class="soft">${W.changesToSave(count)}</span>` : null}</p>` : null}
  </form></div>`;
}
