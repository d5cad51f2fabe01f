// Detection of a dropped store, by an event or a 404, of a refused key, and of facts that begin or end. Loaded after the first picture.

import { effect } from "./vendor/preact.js";
import { leave } from "./load.js";
import { listen } from "./events.js";
import { ask, memory, missing, refused } from "./server.js";
import { listStores } from "./session.js";
import { about, changed, graph, lost, me, revision, store } from "./state.js";
import { W } from "./words.js";

/** Replace the view of the store with a message. */
function drop() {
  leave();
  lost.value = W.dropped(store.value);
  void listStores().catch(() => undefined);
}

/** Check whether the store exists, after a 404. */
async function checkStore() {
  const name = store.value;
  if (!name || !about.value || lost.value) return;
  const status = await ask("GET", memory(name)).then(() => 200, (error) => error.status);
  if (status === 404 && store.value === name && !lost.value) drop();
}

listen((notice) => {
  if (notice.event === "store_dropped") drop();
});
effect(() => {
  if (refused.value) me.value = null;
});
effect(() => {
  if (missing.value) void checkStore();
});

const HOUR_MS = 3_600_000;
effect(() => {
  revision.value;
  const now = Date.now();
  const turns = [...graph.nodes.values(), ...graph.edges.values()].flatMap(({ validFrom, validTo }) => [validFrom ?? 0, validTo ?? 0]).filter((at) => at >= now);
  const timer = setTimeout(changed, turns.reduce((least, at) => Math.min(least, at + 1 - now), HOUR_MS));
  return () => clearTimeout(timer);
});
