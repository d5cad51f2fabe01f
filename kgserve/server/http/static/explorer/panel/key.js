// Form for the API key, and dialog with its permissions.

import { html, useState } from "../vendor/preact.js";
import { enter } from "../session.js";
import { keyOpen, me } from "../state.js";
import { key, refused, useKey } from "../server.js";
import { W } from "../words.js";
import { Command, Dialog, time } from "./parts.js";

export function KeyForm() {
  const [typed, setTyped] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    useKey(typed.trim());
    setTyped("");
    keyOpen.value = false;
    void enter();
  };
  return html`<form class="key" onSubmit=${submit}>
    <p>${refused.value ? (key.value ? W.wrongKey : W.needsKey) : null} ${W.keyKept}</p>
    <label>${W.key} <input type="password" autocomplete="off" spellcheck=${false} placeholder="kgs_…" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} /></label>
    <button disabled=${!typed.trim()}>${W.useKey}</button>
  </form>`;
}

export function KeyDialog() {
  const who = me.value;
  const close = () => {
    keyOpen.value = false;
  };
  const forget = () => {
    useKey("");
    close();
    void enter();
  };
  return html`<${Dialog} title=${W.whoAmI} onClose=${close}>
    ${who
      ? html`<dl>
          <dt>${W.name}</dt><dd>${who.name}</dd>
          <dt>${W.role}</dt><dd>${W.access[who.role]}</dd>
          <dt>${W.storesSeen}</dt><dd>${who.stores.includes("*") ? W.allStores : who.stores.join(", ")}</dd>
          <dt>${W.ends}</dt><dd>${who.expires ? time(who.expires) : W.never}</dd>
        </dl>
        ${who.open ? html`<p>${W.noKeyNeeded}</p>` : null}`
      : null}
    ${key.value ? html`<button type="button" onClick=${forget}>${W.forgetKey}</button>` : null}
    <${KeyForm} />
    <${Command} label=${W.makeKey} text="kgserve keys create --name NAME --role read" />
  <//>`;
}
