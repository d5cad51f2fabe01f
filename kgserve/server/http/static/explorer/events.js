// Live updates: one event stream for all tabs, because browsers allow six connections to a host.

import { signal } from "./vendor/preact.js";
import { key, Refused, request } from "./server.js";
import { me, store } from "./state.js";

/** @typedef {{id: string, event: string, data: any}} StoreNotice */

const KEPT = 200;
const LONGEST_PAUSE = 30_000;
const SHARED = "BroadcastChannel" in globalThis && Boolean(navigator.locks);

/** State of the event stream, with the reason if it is down. */
export const live = signal({ on: false, why: "" });
export const wanted = signal(true);
/** Last events of the current store, newest first. */
export const strip = signal(/** @type {StoreNotice[]} */ ([]));
/** @type {Set<(notice: StoreNotice) => void>} */
const listeners = new Set();
/** @type {Set<() => void>} */
const beginners = new Set();
/** Promise that resolves when the stream first connects. @type {Promise<void>} */
export const begun = new Promise((done) => void beginners.add(done));
/** @type {BroadcastChannel | null} */
let channel = null;
/** @type {AbortController | null} */
let running = null;
let lastId = "";

/** Subscribe to events of the current store; return a function that unsubscribes. @param {(notice: StoreNotice) => void} listener @returns {() => void} */
export function listen(listener) {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** Call a function whenever the stream connects: data read before may be stale. @param {() => void} beginner */
export const onLive = (beginner) => void beginners.add(beginner);

/** @param {StoreNotice} notice */
function receive(notice) {
  if (notice.id) lastId = notice.id;
  if (notice.event === "on" && !live.value.on) {
    live.value = { on: true, why: "" };
    for (const beginner of beginners) beginner();
  }
  if (notice.event === "off") live.value = { on: false, why: notice.data };
  if (!notice.data?.store || notice.data.store !== store.value) return;
  strip.value = [notice, ...strip.value].slice(0, KEPT);
  for (const listener of listeners) listener(notice);
}

/** Send an event to this tab and the others. @param {StoreNotice} notice */
function tell(notice) {
  channel?.postMessage(notice);
  receive(notice);
}

/** Start the event stream, or restart it with another key. */
export function follow() {
  running?.abort();
  channel?.close();
  channel = null;
  live.value = { on: false, why: "" };
  if (!wanted.value || !me.value) return;
  const mine = new AbortController();
  running = mine;
  if (!SHARED) {
    void alone(mine.signal);
    return;
  }
  const name = `kgserve-events ${me.value.name} ${key.value ? key.value.slice(0, 12) : ""}`;
  channel = new BroadcastChannel(name);
  channel.onmessage = ({ data }) => {
    if (data.event === "who") {
      if (leading) tell({ id: "", event: live.value.on ? "on" : "off", data: live.value.why });
    } else receive(data);
  };
  let leading = false;
  channel.postMessage({ id: "", event: "who", data: null });
  navigator.locks
    .request(name, { signal: mine.signal }, async () => {
      leading = true;
      await stream(mine.signal);
    })
    .catch(() => undefined);
}

/** Follow events in this tab only, while it is visible. @param {AbortSignal} signal */
async function alone(signal) {
  while (!signal.aborted) {
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
    const visible = new AbortController();
    const stop = () => document.hidden && visible.abort();
    document.addEventListener("visibilitychange", stop);
    await stream(AbortSignal.any([signal, visible.signal]));
    document.removeEventListener("visibilitychange", stop);
  }
}

/** Follow events until aborted, resuming after the last one. @param {AbortSignal} signal */
async function stream(signal) {
  let pause = 1000;
  while (!signal.aborted) {
    let why = "";
    try {
      const answer = await request("GET", "/api/events", { query: { last_event_id: lastId }, signal, accept: "text/event-stream" });
      tell({ id: "", event: "on", data: null });
      pause = 1000;
      for await (const notice of events(answer)) {
        if (notice.event === "dropped") lastId = notice.data?.resume ?? "";
        else tell(notice);
      }
    } catch (error) {
      if (signal.aborted) break;
      if (error instanceof Refused && error.status === 401) return;
      if (error instanceof Refused && (error.status === 410 || error.status === 400)) lastId = "";
      why = error instanceof Refused ? error.message : "";
    }
    tell({ id: "", event: "off", data: why });
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(LONGEST_PAUSE, pause * 2);
  }
}

/** Yield the events of a response. @param {Response} answer @returns {AsyncGenerator<StoreNotice>} */
async function* events(answer) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const blocks = rest.split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const notice = readEvent(block);
      if (notice) yield notice;
    }
  }
}

/** Parse one event of the stream; return null for a comment. @param {string} block @returns {StoreNotice | null} */
export function readEvent(block) {
  const fields = new Map(block.split("\n").map((line) => /** @type {[string, string]} */ (line.split(/: ?(.*)/s).slice(0, 2))));
  if (!fields.has("data") && !fields.has("id")) return null;
  const data = fields.get("data");
  return { id: fields.get("id") ?? "", event: fields.get("event") ?? "", data: data ? JSON.parse(data) : null };
}
