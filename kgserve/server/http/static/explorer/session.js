// Login, navigation between stores, and synchronization of the URL with the view.

import { batch } from "./vendor/preact.js";
import { keyIn, openArrangement, parse } from "./link.js";
import { around, catchUp, leave, memoryCount, overview, put, refreshAbout, refreshTimeline } from "./load.js";
import { begun, follow } from "./events.js";
import { ask, Refused, refused, useKey } from "./server.js";
import { about, announce, asOf, busy, changed, compared, focus, graph, hiddenRelations, hiddenTypes, lost, me, memoryFilter, memoryPart, openEdge, openEntity, searchText, store, storeCount, stores, validAt, view } from "./state.js";
import { runSearch } from "./panel/search.js";

const LOCAL = new Set(["localhost", "127.0.0.1", "[::1]"]);
/** Number of links being opened; meanwhile the URL is not written. */
export let opening = 0;
/** Minimum number of stores to list, in whole pages. */
let wantedStores = 1;
export async function listStores() {
  /** @type {any[]} */
  const found = [];
  let next = "", count = 0;
  do {
    const page = await ask("GET", `/api/memory${next ? `?after=${encodeURIComponent(next)}` : ""}`);
    found.push(...page.stores);
    next = page.next_after ?? "";
    count = page.count;
  } while (next && found.length < wantedStores);
  if (next && store.value && !found.some((one) => one.name === store.value)) {
    const own = (await ask("GET", `/api/memory?limit=1&prefix=${encodeURIComponent(store.value)}`)).stores;
    found.push(...own.filter((/** @type {any} */ one) => one.name === store.value));
  }
  batch(() => {
    stores.value = found;
    storeCount.value = count;
  });
}

/** List one more page of stores. */
export function listMoreStores() {
  wantedStores = (stores.value?.length ?? 0) + 1;
  return listStores();
}

/** Log in and open the URL, at the start or with another key. */
export async function enter() {
  const handed = keyIn(location.hash);
  if (handed) {
    useKey(handed);
    history.replaceState(null, "", location.hash.replace(/[?&]key=[^&]*/, "").replace(/(#[^?&]*)&/, "$1?"));
  }
  try {
    const [who] = await Promise.all([ask("GET", "/api/whoami"), listStores()]);
    me.value = who;
    refused.value = false;
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 401) throw error;
    me.value = null;
    store.value = "";
    return;
  }
  follow();
  const wanted = parse(location.hash);
  const only = stores.value?.length === 1 && me.value.open && LOCAL.has(location.hostname) && !location.hash;
  if (only) history.replaceState(null, "", `#/${stores.value?.[0].name}`);
  await go(only ? parse(location.hash) : wanted);
  void begun.then(catchUp);
}

/** Open the view of a link. @param {import("./link.js").Link} link @param {boolean} [stays] whether the canvas holds what the link says */
export async function go(link, stays = false) {
  const opened = location.hash;
  opening++;
  busy.value++;
  try {
    if (link.store !== store.value || !about.value) {
      leave();
      searchText.value = "";
      void runSearch();
      store.value = link.store;
    }
    openArrangement(link);
    if (stays) changed(); // Its colours.
    lost.value = "";
    document.title = link.store ? `${link.store} · kgserve` : "kgserve";
    if (!link.store) return;
    batch(() => {
      asOf.value = link.asOf;
      validAt.value = link.validAt;
      view.value = link.view;
      const [, before, after] = link.compare.match(/^(\d+)-(\d+)$/) ?? [];
      compared.value = after ? { before: Number(before), after: Number(after) } : null;
      hiddenTypes.value = new Set(link.types);
      hiddenRelations.value = new Set(link.relations);
      memoryPart.value = link.part;
      openEntity.value = link.entity;
      memoryFilter.value = link.filter;
    });
    if (!stays) await load(link);
    if (lost.value) {
      announce(""); // The page shows the error.
      return;
    }
    if (link.node && !graph.nodes.has(link.node)) await put([link.node], false);
    const node = link.node || link.start;
    focus.value = graph.nodes.has(node) ? node : "";
    openEdge.value = link.edge;
    if (link.query !== searchText.value) {
      searchText.value = link.query;
      void runSearch({ typing: Boolean(link.node) });
    }
  } finally {
    opening--;
    busy.value--;
    void address().then(({ write }) => write(opened));
  }
}

/** Load the canvas of a link, and what is known about the store. @param {import("./link.js").Link} link */
async function load(link) {
  const known = refreshAbout().catch((error) => {
    lost.value = /** @type {Error} */ (error).message;
  });
  void refreshTimeline();
  void countMemories();
  await Promise.all([known, link.start ? around(link.start, link.depth) : link.ids.length ? put(link.ids) : overview(link.more, true)]);
}

/** Restore the view from the URL. */
export const reopen = () => go(parse(location.hash));

async function countMemories() {
  const name = store.value;
  const found = await ask("GET", "/api/analytics/overview", { query: { store: name } }).catch(() => null);
  memoryCount.value = { store: name, count: found?.total_memories ?? 0 };
}

/** Module that writes the URL, loaded after the first picture. */
const address = () => import("./address.js");

addEventListener("hashchange", () => void address().then(({ reopenAddress }) => reopenAddress()));
