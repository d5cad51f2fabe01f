// Loader of the sample graph, in steps, to give it a history.

import { ask, memory, request } from "../server.js";
import { listStores } from "../session.js";
import { tourStep } from "../state.js";

export const SAMPLE = "example";
const DAY_MS = 86_400_000;
/** Fields given as days from now. */
const MOMENTS = ["valid_from", "valid_to", "created_at"];
const SETTINGS = { name: "Tideline, an example", memory: { half_life_days: 365 } };

/** Return a row with days from now converted to times. @param {Record<string, any>} row @param {number} now */
export const dated = (row, now) => Object.fromEntries(Object.entries(row).map(([field, value]) => [field, MOMENTS.includes(field) ? new Date(now + value * DAY_MS).toISOString() : value]));

/** Create a store with an unused name. @returns {Promise<string>} */
async function createStore() {
  for (let number = 1; ; number++) {
    const name = number === 1 ? SAMPLE : `${SAMPLE}-${number}`;
    if ((await request("PUT", memory(name), { body: SETTINGS })).status === 201) return name;
  }
}

/** @param {string} name @param {any} step @param {number} now */
async function sendStep(name, step, now) {
  const rows = (/** @type {any[] | undefined} */ some) => (some ?? []).map((row) => dated(row, now));
  if (step.delete) await ask("DELETE", memory(name, "nodes", step.delete));
  else if (step.memories) await ask("POST", "/api/v1/retain/batch", { query: { store: name }, body: { items: rows(step.memories) } });
  else await ask("POST", memory(name, "inject"), { body: { nodes: rows(step.nodes), edges: rows(step.edges) } });
}

/** Load the sample into a new store, open it, and begin the tour. If that fails, remove the store and throw Refused. */
export async function loadSample() {
  const { steps } = await ask("GET", "/explorer/entry/sample.json");
  const name = await createStore();
  try {
    const now = Date.now();
    for (const step of steps) await sendStep(name, step, now);
  } catch (error) {
    await ask("DELETE", memory(name), { query: { confirm: name } }).catch(() => undefined);
    throw error;
  }
  await listStores();
  tourStep.value = 1;
  location.hash = `#/${encodeURIComponent(name)}`;
}
