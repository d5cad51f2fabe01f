// List of the latest events.

import { html } from "../vendor/preact.js";
import { follow, live, strip, wanted } from "../events.js";
import { W } from "../words.js";
import { time } from "./parts.js";
import { showNode } from "./search.js";

export function Live() {
  const toggle = () => {
    wanted.value = !wanted.value;
    follow();
  };
  return html`<div class="scroll fill pad" tabindex="0" role="region" aria-label=${W.live}>
    <p class="row"><label class="check"><input type="checkbox" checked=${wanted.value} onChange=${toggle} /> ${W.followChanges}</label>
      <span class="soft">${live.value.on ? W.liveOn : live.value.why || W.liveOff}</span></p>
    ${strip.value.length ? null : html`<p class="soft">${W.nothingYet}</p>`}
    <ol class="strip">${strip.value.map((told) => html`<li key=${`${told.id} ${told.event} ${told.data.id ?? ""}`}>
      <span class="soft">${time(told.data.time)}</span> <strong>${told.event.replaceAll("_", " ")}</strong>
      ${told.event.startsWith("node_") && told.event !== "node_deleted" ? html`<button type="button" class="link" onClick=${() => showNode(told.data.id)}>${told.data.id}</button>` : html`<span>${told.data.from ? `${told.data.from} –${told.data.relation_type}→ ${told.data.to}` : (told.data.id ?? "")}</span>`}</li>`)}</ol></div>`;
}
