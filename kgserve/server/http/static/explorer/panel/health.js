// Server health from its metrics, refreshed every 5 seconds.

import { html, useEffect, useState } from "../vendor/preact.js";
import { request } from "../server.js";
import { attempt, store } from "../state.js";
import { W } from "../view_words.js";
import { bytes, number, time } from "./parts.js";

const EVERY = 5000;
const ROUTES = 15;

/** @typedef {{name: string, labels: Record<string, string>, value: number}} Sample */

/** Parse the response of `/metrics`. @param {string} text @returns {Sample[]} */
export const readMetrics = (text) => [...text.matchAll(/^(\w+)(?:\{(.*)\})? (\S+)$/gm)].map(([, name, labels = "", value]) => ({
  name, value: Number(value),
  labels: Object.fromEntries([...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, text]) => [key, text.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign))])),
}));

/**
 * Return the upper bound of the bucket that holds a quantile; null: empty histogram.
 * @param {Sample[]} buckets of one histogram, in order @param {number} share
 */
export function quantile(buckets, share) {
  const all = buckets.at(-1)?.value ?? 0;
  const bound = all ? buckets.find(({ value }) => value >= share * all)?.labels.le : undefined;
  return bound === undefined ? null : Number(bound.replace("+Inf", "Infinity"));
}

const below = (/** @type {number | null} */ bound) => (bound === null ? "–" : bound === Number.POSITIVE_INFINITY ? W.longer : `≤ ${span(bound)}`);
/** @param {number} seconds */
const span = (seconds) => (Number.isNaN(seconds) ? "–" : seconds < 1 ? `${number(Math.round(seconds * 10_000) / 10)} ms` : `${number(Math.round(seconds * 10) / 10)} s`);

/** Metrics of one scrape, by name and labels. */
class Look {
  /** @param {Sample[]} samples */
  constructor(samples) {
    this.at = performance.now();
    /** @type {Map<string, Sample[]>} */
    this.named = new Map();
    for (const sample of samples) this.named.set(sample.name, [...(this.named.get(sample.name) ?? []), sample]);
  }

  /** @param {string} name @param {Record<string, string>} [labels] */
  of(name, labels = {}) {
    return (this.named.get(name) ?? []).filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value));
  }

  /** Return the value of a metric; undefined: hidden from this key. @param {string} name @param {Record<string, string>} [labels] @returns {number | undefined} */
  value(name, labels) {
    return this.of(name, labels)[0]?.value;
  }

  /** @param {string} name @param {Record<string, string>} [labels] */
  sum(name, labels) {
    return this.of(name, labels).reduce((sum, sample) => sum + sample.value, 0);
  }
}

/** List of names and values, without missing values. @param {[string, string | number | null | undefined][]} all */
const Facts = (all) => html`<dl class="wide">${all.filter(([, value]) => value !== undefined && value !== null).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>`;

/** @param {number | undefined} value @param {number | undefined} most */
const ofMost = (value, most) => (value === undefined ? undefined : most === undefined ? number(value) : W.ofMost(number(value), number(most)));

/** Format the processor use between two scrapes, or since the start. @param {Look} now @param {Look | null} before */
function busyShare(now, before) {
  const [used, was] = [now.value("process_cpu_seconds_total"), before?.value("process_cpu_seconds_total")];
  if (used === undefined) return undefined;
  if (before === null || was === undefined) return span(used);
  return W.ofProcessor(Math.round((100_000 * (used - was)) / (now.at - before.at)));
}

/** @param {{now: Look, before: Look | null}} props */
function Whole({ now, before }) {
  const commits = now.of("kgserve_commit_duration_seconds_bucket");
  const count = now.value("kgserve_commit_duration_seconds_count");
  const [version] = now.of("kgserve_build_info");
  const start = now.value("process_start_time_seconds");
  const memory = now.value("process_resident_memory_bytes");
  return html`<h2>${W.server}</h2>${Facts([
    [W.version, version?.labels.version],
    [W.runsSince, start && time(start * 1000)],
    [W.memoryUsed, memory && bytes(memory)],
    [W.processor, busyShare(now, before)],
    [W.openStores, ofMost(now.value("kgserve_open_stores"), now.value("kgserve_open_stores_limit"))],
    [W.streams, ofMost(now.value("kgserve_event_streams"), now.value("kgserve_event_streams_limit"))],
    [W.engines, ofMost(now.value("kgserve_engine_processes"), now.value("kgserve_engine_processes_limit"))],
    [W.connections, ofMost(now.value("kgserve_connections"), undefined)],
    [W.underWay, ofMost(now.value("kgserve_requests_in_progress"), undefined)],
    [W.commitsTimed, count ? W.timed(number(count), span((now.value("kgserve_commit_duration_seconds_sum") ?? 0) / count), below(quantile(commits, 0.95))) : undefined],
    [W.embeddingQueue, ofMost(now.value("kgserve_embedding_queue"), undefined)],
    [W.slow, now.of("kgserve_slow_operations_total").length ? number(now.sum("kgserve_slow_operations_total")) : undefined],
  ])}`;
}

/** @param {{now: Look}} props */
function Requests({ now }) {
  const counts = now.of("kgserve_request_duration_seconds_count").sort((one, other) => other.value - one.value);
  if (!counts.length) return null;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${W.requests}><table><caption>${W.requests}</caption>
    <thead><tr>${W.requestColumns.map((name, i) => html`<th key=${name} scope="col" class=${i ? "number" : ""}>${name}</th>`)}</tr></thead>
    <tbody>${counts.slice(0, ROUTES).map(({ labels, value }) => {
      const buckets = now.of("kgserve_request_duration_seconds_bucket", labels);
      const refused = now.of("kgserve_requests_total", labels).reduce((sum, one) => sum + (one.labels.status >= "400" ? one.value : 0), 0);
      return html`<tr key=${`${labels.method} ${labels.route}`}><th scope="row"><code>${labels.method} ${labels.route}</code></th><td class="number">${number(value)}</td><td class="number">${number(refused)}</td>
        <td class="number">${span(now.sum("kgserve_request_duration_seconds_sum", labels) / value)}</td><td class="number">${below(quantile(buckets, 0.5))}</td><td class="number">${below(quantile(buckets, 0.95))}</td></tr>`;
    })}</tbody></table></div>${counts.length > ROUTES ? html`<p class="soft">${W.andMore(counts.length - ROUTES)}</p>` : null}`;
}

/** @param {{now: Look, name: string}} props */
function OfStore({ now, name }) {
  const of = (/** @type {string} */ what) => now.value(`kgserve_store_${what}`, { store: name });
  const shown = (/** @type {string} */ what, form = number) => (of(what) === undefined ? undefined : form(of(what)));
  const commits = of("commits_total");
  const engine = of("engine_process_bytes");
  const views = now.of("kgserve_store_view_lag_commits", { store: name });
  if (commits === undefined) return null;
  return html`<h2>${W.sinceOpened}</h2>${Facts([
    [W.writes, shown("writes_total")],
    [W.commits, commits ? W.timedMean(number(commits), span((of("commit_seconds_total") ?? 0) / commits)) : "0"],
    [W.failures, shown("commit_failures_total")],
    [W.queued, shown("queued_writes")],
    [W.statementsWaiting, shown("waiting_statements")],
    [W.pending, shown("pending_entities")],
    [W.engineMemory, engine ? bytes(engine) : undefined],
    [W.engineStarts, shown("engine_starts_total")],
    [W.rebuilds, shown("engine_rebuilds_total")],
    [W.compactions, shown("compactions_total")],
  ])}
  <table><caption>${W.followers}</caption><thead><tr>${W.followerColumns.map((each) => html`<th key=${each} scope="col">${each}</th>`)}</tr></thead>
    <tbody>${views.map(({ labels, value }) => html`<tr key=${labels.view}><th scope="row">${labels.view}</th><td class="number">${number(value)}</td>
      <td>${now.value("kgserve_store_view_failing", { store: name, view: labels.view }) ? W.failing : W.good}</td></tr>`)}</tbody></table>`;
}

export function Health() {
  const [looks, setLooks] = useState(/** @type {{now: Look | null, before: Look | null}} */ ({ now: null, before: null }));
  useEffect(() => {
    let [now, gone] = [/** @type {Look | null} */ (null), false];
    const look = async () => {
      if (document.hidden) return;
      const before = now;
      now = new Look(readMetrics(await (await request("GET", "/metrics")).text()));
      if (!gone) setLooks({ now, before });
    };
    void attempt(look);
    const again = setInterval(() => void look().catch(() => undefined), EVERY);
    return () => {
      gone = true;
      clearInterval(again);
    };
  }, []);
  const { now, before } = looks;
  if (!now) return null;
  return html`<${OfStore} now=${now} name=${store.value} />${now.value("process_resident_memory_bytes") === undefined ? null : html`<${Whole} now=${now} before=${before} /><${Requests} now=${now} />`}`;
}
