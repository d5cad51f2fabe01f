// Layout of the page.

import { html, render, signal } from "./vendor/preact.js";
import { onKey } from "./keyboard.js";
import { memoryCount } from "./load.js";
import { TopBar } from "./panel/bar.js";
import { CanvasView } from "./panel/canvas.js";
import { Fresh } from "./panel/fresh.js";
import { Legend } from "./panel/legend.js";
import { Cypher, Help, KeyDialog, KeyForm, Live, Memories, NodePanel, Settings, Stats, Stores, Table } from "./panel/lazy.js";
import { Found } from "./panel/search.js";
import { TimeBar } from "./panel/time.js";
import { refused, Unreachable } from "./server.js";
import { enter, keepAddress, reopen } from "./session.js";
import { about, busy, helpOpen, keyOpen, lost, me, message, say, sheet, store, view } from "./state.js";
import { W } from "./words.js";

const VIEWS = /** @type {const} */ (["graph", "table", "memories", "live", "stats", "settings"]);
const SHEETS = /** @type {const} */ (["types", "middle", "details"]);
const PARTS = { graph: CanvasView, table: Table, memories: Memories, live: Live, stats: Stats, settings: Settings };
/** Set when the server could not be reached. */
const unreachable = signal("");

function Tabs() {
  return html`<nav class="tabs" aria-label=${W.views}>
    ${VIEWS.filter((name) => name !== "memories" || (memoryCount.value.store === store.value && memoryCount.value.count)).map((name) => html`<button key=${name} type="button" aria-current=${view.value === name ? "page" : undefined} onClick=${() => { view.value = name; sheet.value = "middle"; }}>${W.viewNames[name]}</button>`)}
  </nav>`;
}

function Store() {
  if (lost.value) return html`<main class="page"><p class="note" role="alert">${lost.value}</p><p><button type="button" onClick=${reopen}>${W.lookAgain}</button> <a href="#/">${W.toStores}</a></p></main>`;
  if (!about.value) return html`<main class="page"><p role="status">${W.loading}</p></main>`;
  const Part = PARTS[view.value] ?? CanvasView;
  return html`<nav class="sheets" aria-label=${W.sheets}>${SHEETS.map((name) => html`<button key=${name} type="button" aria-current=${sheet.value === name ? "page" : undefined} onClick=${() => { sheet.value = name; }}>${W.sheetNames[name]}</button>`)}</nav>
    <main class="store" data-sheet=${sheet.value}>
      <h1 class="hidden">${store.value}</h1>
      <aside class="left" aria-label=${W.sheetNames.types}><${Found} /><${Legend} /></aside>
      <div class="middle"><${Tabs} /><${Fresh} /><${Part} key=${`${store.value} ${view.value}`} />${view.value === "graph" || view.value === "table" ? html`<${TimeBar} />` : null}<${Cypher} /></div>
      <aside class="right" aria-label=${W.sheetNames.details}><${NodePanel} /></aside>
    </main>`;
}

function Page() {
  if (unreachable.value) return html`<main class="page"><h1>kgserve</h1><p class="note" role="alert">${unreachable.value}</p><button type="button" onClick=${start}>${W.lookAgain}</button></main>`;
  const body = refused.value ? html`<main class="page"><h1>kgserve</h1><${KeyForm} /></main>` : me.value === null ? html`<main class="page"><p role="status">${W.loading}</p></main>` : store.value ? html`<${Store} />` : html`<${Stores} />`;
  return html`<a class="skip" href="#main" onClick=${skip}>${W.skip}</a><${TopBar} />${body}${keyOpen.value ? html`<${KeyDialog} />` : null}${helpOpen.value ? html`<${Help} />` : null}
    <div class="message" data-bad=${message.value.bad}><p role=${message.value.bad ? "alert" : "status"}>${message.value.text}</p>
      ${message.value.text && message.value.bad ? html`<button type="button" class="plain small" aria-label=${W.close} onClick=${() => say("")}>×</button>` : null}</div>
    ${busy.value ? html`<p class="busy" aria-hidden="true"></p>` : null}`;
}

/** Go past the top of the page, without touching the address. @param {Event} event */
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
    const why = /** @type {Error} */ (error).message;
    unreachable.value = error instanceof Unreachable ? why : W.unreachable(why);
  }
}

const page = /** @type {HTMLElement} */ (document.getElementById("page"));
page.replaceChildren();
render(html`<${Page} />`, page);
document.addEventListener("keydown", onKey);
keepAddress();
void start().then(() => import("./watch.js"));
