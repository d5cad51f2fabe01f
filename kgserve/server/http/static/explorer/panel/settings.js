// Form for the settings of a store, for admin keys.

import { html, useState } from "../vendor/preact.js";
import { refreshAbout } from "../load.js";
import { ask, memory } from "../server.js";
import { about, attempt, mayAdminister, say, store } from "../state.js";
import { W } from "../words.js";

const LANGUAGES = ["auto", "ar", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it", "nl", "no", "pt", "ro", "ru", "sv", "ta", "tr"];
const CHOICES = { language: LANGUAGES, conflict_policy: ["lww", "manual"], dedup: ["guarded", "off"], consolidation: ["safe", "full", "suggest", "off"], prune: ["archive", "delete", "off"] };
const FIXED = new Set(["store", "created_at", "sequence"]);

/** What a field holds, as text. @param {any} value */
const shown = (value) => (value === null || typeof value === "object" ? JSON.stringify(value) : String(value));

/** What a field says, as the kind of value that it was; raises SyntaxError. @param {string} text @param {any} was */
function read(text, was) {
  if (typeof was === "boolean") return text === "true";
  if (typeof was === "string") return text;
  return JSON.parse(text);
}

export function Settings() {
  const given = about.value?.settings;
  const [draft, setDraft] = useState(/** @type {Record<string, string>} */ ({}));
  const [wrong, setWrong] = useState("");
  if (!given) return html`<p role="status">${W.loading}</p>`;
  const { memory: ofMemories = {}, ...own } = given;
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      /** @type {Record<string, any>} */
      const body = {};
      for (const [path, text] of Object.entries(draft)) {
        const [name, inner] = path.split(".");
        if (inner) body.memory = { ...body.memory, [inner]: read(text, ofMemories[inner]) };
        else body[name] = read(text, own[name]);
      }
      setWrong("");
      await attempt(async () => {
        await ask("PATCH", memory(store.value), { body });
        setDraft({});
        say(W.settingsSaved);
        await refreshAbout();
      });
    } catch (error) {
      setWrong(W.noJson(/** @type {Error} */ (error).message));
    }
  };
  const field = (/** @type {string} */ path, /** @type {any} */ value) => {
    const name = path.split(".").at(-1) ?? path;
    const now = draft[path] ?? shown(value);
    const change = (/** @type {any} */ event) => setDraft({ ...draft, [path]: event.currentTarget.value });
    const choices = CHOICES[name] ?? (typeof value === "boolean" ? ["true", "false"] : null);
    const disabled = !mayAdminister.value;
    return html`<label key=${path}>${name.replaceAll("_", " ")} ${choices
      ? html`<select value=${now} disabled=${disabled} onChange=${change}>${[...new Set([...choices, shown(value)])].map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`
      : html`<input value=${now} disabled=${disabled} onInput=${change} />`}</label>`;
  };
  return html`<div class="scroll fill pad" tabindex="0" role="region" aria-label=${W.settings}><form class="edit" onSubmit=${send}>
    <h2>${W.settings}</h2>
    ${mayAdminister.value ? null : html`<p class="note">${W.onlyAdmin}</p>`}
    ${Object.entries(own).filter(([name]) => !FIXED.has(name)).map(([name, value]) => field(name, value))}
    <h3>${W.memories}</h3>${Object.entries(ofMemories).map(([name, value]) => field(`memory.${name}`, value))}
    ${wrong ? html`<p class="note" role="alert">${wrong}</p>` : null}
    ${mayAdminister.value ? html`<button disabled=${!Object.keys(draft).length}>${W.save}</button>` : null}
  </form></div>`;
}
