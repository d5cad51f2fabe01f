// Side panel: node details, search hits, and differences between two commits.

import { html, useSignalEffect } from "../vendor/preact.js";
import { X } from "../vendor/icons.js";
import { compared, panelOpen, panelTab, sheet } from "../state.js";
import { W } from "../words.js";
import { Compared, NodePanel } from "./lazy.js";
import { Icon } from "./parts.js";
import { Found, found } from "./search.js";

const PARTS = { details: NodePanel, results: Found, compare: Compared };

export function SidePanel() {
  useSignalEffect(() => {
    if (!compared.value) return;
    panelTab.value = "compare";
    panelOpen.value = true;
  });
  const tabs = ["details", ...(found.value ? ["results"] : []), ...(compared.value ? ["compare"] : [])];
  const tab = tabs.includes(panelTab.value) ? panelTab.value : "details";
  const close = () => {
    panelOpen.value = false;
    sheet.value = "middle";
  };
  const hits = found.value?.hits.length;
  return html`<aside class="side" aria-label=${W.sidePanel}>
    <header class="bar"><div role="tablist" aria-label=${W.sidePanel}>${tabs.map((name) => html`<button key=${name} type="button" role="tab" id=${`tab-${name}`} aria-selected=${tab === name} aria-controls="side-content" onClick=${() => { panelTab.value = name; }}>
        ${W.panelTabs[name]}${name === "results" && hits ? html` <span class="count">${hits}</span>` : null}</button>`)}</div>
      <button type="button" class="icon-button" aria-label=${W.closePanel} onClick=${close}><${Icon} of=${X} /></button></header>
    <div class="scroll" id="side-content" role="tabpanel" aria-labelledby=${`tab-${tab}`} tabindex="0"><${PARTS[tab]} /></div>
  </aside>`;
}
