// Top bar: store, command bar, connection, and access.

import { html } from "../vendor/preact.js";
import { CircleQuestionMark, KeyRound, PanelRight } from "../vendor/icons.js";
import { live } from "../events.js";
import { helpOpen, keyOpen, lost, me, panelOpen, store, stores } from "../state.js";
import { W } from "../words.js";
import { CommandBar } from "./command_bar.js";
import { hasSidePanel } from "./navigation.js";
import { Icon } from "./parts.js";

export function TopBar() {
  const choose = (/** @type {any} */ event) => {
    location.hash = `#/${encodeURIComponent(event.currentTarget.value)}`;
  };
  const who = me.value;
  const shown = store.value && !lost.value;
  const names = new Set([...(stores.value ?? []).map((one) => one.name), store.value]);
  return html`<header class="top">
    <a class="brand" href="#/" title=${W.toStores}>kgserve</a>
    ${shown
      ? html`<select class="quiet" value=${store.value} onChange=${choose} aria-label=${W.store}>
            ${[...names].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
          </select>`
      : null}
    ${who ? html`<${CommandBar} />` : html`<span class="grow"></span>`}
    ${shown ? html`<span class="live" data-on=${live.value.on} title=${live.value.on ? W.liveOnText : W.liveOffText}>${live.value.on ? W.liveOn : W.liveOff}</span>` : null}
    <button type="button" class="plain access" title=${W.whoAmI} onClick=${() => { keyOpen.value = true; }}><${Icon} of=${KeyRound} /><span>${who ? W.keyIs(who) : W.key}</span></button>
    <button type="button" class="icon-button" aria-label=${W.help} title=${W.help} onClick=${() => { helpOpen.value = true; }}><${Icon} of=${CircleQuestionMark} /></button>
    ${shown && hasSidePanel() ? html`<button type="button" class="icon-button panel-toggle" aria-label=${W.sidePanel} title=${W.sidePanel} aria-pressed=${panelOpen.value} onClick=${() => { panelOpen.value = !panelOpen.value; }}><${Icon} of=${PanelRight} /></button>` : null}
  </header>`;
}
