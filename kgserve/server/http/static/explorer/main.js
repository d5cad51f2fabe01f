// Layout of the page.

import { html, render, signal, useSignalEffect } from "./vendor/preact.js";
import { Check, TriangleAlert, X } from "./vendor/icons.js";
import { onKey } from "./keyboard.js";
import { TopBar } from "./panel/bar.js";
import { CanvasView } from "./panel/canvas.js";
import { Fresh } from "./panel/fresh.js";
import { loadCommands } from "./panel/command_bar.js";
import { Legend } from "./panel/legend.js";
import { Drawer, Entry, Help, KeyDialog, KeyForm, Live, Memories, PastBand, Settings, Stats, Stores, Table, Tour } from "./panel/lazy.js";
import { hasDrawer, hasSidePanel, Navigation } from "./panel/navigation.js";
import { Icon } from "./panel/parts.js";
import { SidePanel } from "./panel/side_panel.js";
import { TimeBar } from "./panel/time.js";
import { refused } from "./server.js";
import { enter, reopen } from "./session.js";
import { about, announce, asOf, busy, compared, cypherOpen, entry, helpOpen, keyOpen, lost, me, message, panelOpen, sheet, store, tourStep, undoLast, view } from "./state.js";
import { W } from "./words.js";

const SHEETS = /** @type {const} */ (["middle", "details"]);
const PARTS = { graph: CanvasView, table: Table, memories: Memories, live: Live, stats: Stats, settings: Settings };
const TOAST_MS = 6000;
/** Milliseconds until a toast with undo closes. */
const UNDO_MS = 20_000;
/** Error message if the server is unreachable. */
const unreachable = signal("");

function Store() {
  if (lost.value) return html`<main class="page"><h1>${store.value}</h1><p class="note" role="alert">${lost.value[0].toUpperCase()}${lost.value.slice(1)}</p><p class="row"><button type="button" onClick=${reopen}>${W.lookAgain}</button> <a href="#/">${W.toStores}</a></p></main>`;
  if (!about.value) return html`<main class="page"><p role="status">${W.loading}</p></main>`;
  const Part = PARTS[view.value] ?? CanvasView;
  const alone = !hasSidePanel();
  const drawer = cypherOpen.value && hasDrawer();
  return html`${asOf.value !== null || (compared.value && !hasDrawer()) ? html`<${PastBand} />` : null}<div class="shell"><${Navigation} />
    <main class="store" data-sheet=${alone ? "middle" : sheet.value} data-panel=${panelOpen.value && !alone} data-drawer=${drawer}>
      <h1 class="hidden">${store.value}</h1>
      ${alone ? null : html`<nav class="sheets" aria-label=${W.sheets}>${SHEETS.map((name) => html`<button key=${name} type="button" aria-current=${sheet.value === name ? "page" : undefined} onClick=${() => { sheet.value = name; panelOpen.value = true; }}>${W.sheetNames[name]}</button>`)}</nav>`}
      <div class="stage" data-view=${view.value}><${Fresh} /><${Part} key=${`${store.value} ${view.value}`} />${hasDrawer() ? html`<${Legend} /><${TimeBar} />` : null}</div>
      ${alone ? null : html`<${SidePanel} />`}
      ${drawer ? html`<${Drawer} />` : null}
    </main></div>`;
}

/** Status message that closes unless it is an error. */
function Toast() {
  useSignalEffect(() => {
    const { text, bad, undo } = message.value;
    if (!text || bad) return undefined;
    const gone = setInterval(() => document.querySelector(".toast:is(:hover, :focus-within)") ?? announce(""), undo ? UNDO_MS : TOAST_MS);
    return () => clearInterval(gone);
  });
  const { text, bad, quiet, undo } = message.value;
  return html`<div class="toast" data-bad=${bad} data-quiet=${quiet || !text}>${bad ? html`<${Icon} of=${TriangleAlert} />` : html`<${Icon} of=${Check} />`}<p role=${bad ? "alert" : "status"}>${text}</p>
      ${undo ? html`<button type="button" class="plain" title="Ctrl Z" onClick=${undoLast}>${W.undo}</button>` : null}
      ${text && !quiet ? html`<button type="button" class="icon-button" aria-label=${W.close} onClick=${() => announce("")}><${Icon} of=${X} /></button>` : null}</div>`;
}

function Page() {
  if (unreachable.value) return html`<main class="page"><h1>kgserve</h1><p class="note" role="alert">${unreachable.value}</p><button type="button" onClick=${start}>${W.lookAgain}</button></main>`;
  const body = refused.value ? html`<main class="page"><h1>kgserve</h1><${KeyForm} /></main>` : me.value === null ? html`<main class="page"><p role="status">${W.loading}</p></main>` : store.value ? html`<${Store} />` : html`<${Stores} />`;
  return html`<a class="skip" href="#main" onClick=${skip}>${W.skip}</a><${TopBar} />${body}${keyOpen.value ? html`<${KeyDialog} />` : null}${helpOpen.value ? html`<${Help} />` : null}${entry.value ? html`<${Entry} />` : null}${tourStep.value ? html`<${Tour} />` : null}
    <${Toast} />${busy.value ? html`<p class="busy" aria-hidden="true"></p>` : null}`;
}

/** Move the focus past the top of the page, keeping the URL. @param {Event} event */
function skip(event) {
  event.preventDefault();
  const target = /** @type {HTMLElement | null} */ (document.querySelector("#graph, main .scroll, main a, main button"));
  target?.focus();
}

async function start() {
  unreachable.value = "";
  try {
    await enter();
  } catch (error) {
    unreachable.value = /** @type {Error} */ (error).message;
  }
}

const page = /** @type {HTMLElement} */ (document.getElementById("page"));
page.replaceChildren();
render(html`<${Page} />`, page);
document.addEventListener("keydown", onKey);
void start().then(() => Promise.all([import("./watch.js"), import("./entry/drop.js"), loadCommands()]));
