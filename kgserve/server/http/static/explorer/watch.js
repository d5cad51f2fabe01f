// Detection of a dropped store, by an event or a 404, and of a refused key. Loaded after the first picture.

import { effect } from "./vendor/preact.js";
import { leave } from "./load.js";
import { listen } from "./events.js";
import { ask, memory, missing, refused } from "./server.js";
import { listStores } from "./session.js";
import { about, lost, me, store } from "./state.js";
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
