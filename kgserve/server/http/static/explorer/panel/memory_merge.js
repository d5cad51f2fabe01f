// Dialog to merge a memory or an entity into another one, with undo in the toast.

import { html, useEffect, useState } from "../vendor/preact.js";
import { labelOf } from "../graph/labels.js";
import { ask } from "../server.js";
import { attempt, store } from "../state.js";
import { W } from "../view_words.js";
import { FormEnd } from "./forms.js";
import { isMemory, mergeWithUndo } from "./memory_state.js";
import { Dialog } from "./parts.js";

const OFFERED = 8;
const TYPING_PAUSE_MS = 300;

/** Find merge targets for a memory or an entity; without search text, memories with similar content. @param {any} row @param {string} text @returns {Promise<any[]>} */
async function findOthers(row, text) {
  const query = { store: store.value, limit: OFFERED + 1 };
  const found = isMemory(row)
    ? await ask("GET", "/api/memories/search", { query: { ...query, q: text.trim() || row.content.slice(0, 1000), touch: false } })
    : (await ask("GET", "/api/entities", { query: { ...query, name: text.trim() } })).entities;
  return found.filter((/** @type {any} */ one) => one.id !== row.id).slice(0, OFFERED);
}

/** @param {{row: any, onClose: () => void}} props */
export function Merge({ row, onClose }) {
  const [text, setText] = useState("");
  const [others, setOthers] = useState(/** @type {any[] | null} */ (null));
  const [into, setInto] = useState(/** @type {any} */ (null));
  const [rule, setRule] = useState(/** @type {import("./memory_state.js").ContentRule} */ (isMemory(row) ? "keep" : "fill"));
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    let current = true;
    const wait = setTimeout(() => void attempt(async () => {
      const found = await findOthers(row, text);
      if (current) setOthers(found);
    }), others ? TYPING_PAUSE_MS : 0);
    return () => {
      current = false;
      clearTimeout(wait);
    };
  }, [text]);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await mergeWithUndo(row, into, rule);
      onClose();
    } catch (error) {
      setWrong(/** @type {Error} */ (error).message);
    }
  };
  const rules = /** @type {import("./memory_state.js").ContentRule[]} */ (["keep", "append", "overwrite"]);
  return html`<${Dialog} title=${W.mergeTitle(labelOf(row))} onClose=${onClose} wide><form onSubmit=${send}>
    <p>${W.mergeText}</p>
    <label>${W.mergeSearch} <input type="search" value=${text} onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)} /></label>
    <fieldset class="choices"><legend>${W.mergeInto}</legend>
      ${others?.map((one) => html`<label class="check" key=${one.id}><input type="radio" name="into" checked=${into?.id === one.id} onChange=${() => setInto(one)} /> ${labelOf(one)} <span class="soft">${one.memory_type ?? one.entity_type}</span></label>`)}
      ${others?.length === 0 ? html`<p class="soft">${W.nothingToMerge}</p>` : null}</fieldset>
    ${into && isMemory(row) ? html`<div class="heads"><section><h3>${W.mergeGoes}</h3><p class="content">${row.content}</p></section>
      <section><h3>${W.mergeStays}</h3><p class="content">${rule === "overwrite" ? row.content : into.content}${rule === "append" ? `\n${row.content}` : ""}</p></section></div>
      <fieldset class="choices"><legend>${W.mergeWhich}</legend>${rules.map((name) => html`<label class="check" key=${name}><input type="radio" name="rule" checked=${rule === name} onChange=${() => setRule(name)} /> ${W.mergeRules[name]}</label>`)}</fieldset>` : null}
    <${FormEnd} does=${W.merge} wrong=${wrong} disabled=${!into} /></form><//>`;
}
