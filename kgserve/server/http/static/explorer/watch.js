// Notice when the store that is shown is dropped: an event says so, or what is asked for later. Loaded after the first picture.

import { effect } from "./vendor/preact.js";
import { leave } from "./load.js";
import { listen } from "./events.js";
import { ask, memory, missing } from "./server.js";
import { listStores } from "./session.js";
import { about, lost, store } from "./state.js";
import { W } from "./words.js";

/** Put a sentence in the place of the store: what is left on the page could only mislead. */
function drop() {
  leave();
  lost.value = W.dropped(store.value);
  void listStores().catch(() => undefined);
}

/** After an answer that something is not there: see whether the store is. */
async function checkStore() {
  const name = store.value;
  if (!name || !about.value || lost.value) return;
  const status = await ask("GET", memory(name)).then(() => 200, (error) => error.status);
  if (status === 404 && store.value === name && !lost.value) drop();
}

listen((told) => {
  if (told.event === "store_dropped") drop();
});
effect(() => {
  if (missing.value) void checkStore();
});
