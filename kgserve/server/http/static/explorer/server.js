// HTTP client of the explorer, with API key, retries and readable errors.

import { signal } from "./vendor/preact.js";
import { W } from "./words.js";

const KEY = "kgserve-key";
const RETRIES = 2;
const LONGEST_WAIT = 5;

/** API key; kept until this tab is closed, and sent to this server only. */
export const key = signal(sessionStorage.getItem(KEY) ?? "");
/** True if the server refused the request without a key, or with the current one. */
export const refused = signal(false);

/** @param {string} value the empty text forgets the key */
export function useKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  key.value = value;
  refused.value = false;
}

/** Number of 404 responses. */
export const missing = signal(0);

export class Refused extends Error {
  /** @param {number} status @param {any} problem the problem document, or what came in its place */
  constructor(status, problem) {
    super(problem?.detail ?? W.answered(status));
    this.status = status;
    this.problem = problem ?? {};
    /** @type {string} */
    this.code = String(problem?.type ?? "").split(":").at(-1) ?? "";
  }
}

/** Return the path of a store, or of a resource in it, percent-encoded. @param {string} store @param {string[]} parts */
export const memory = (store, ...parts) => ["/api/memory", ...[store, ...parts].map(encodeURIComponent)].join("/");

/** Return the URL of a path on this server, which may have a path prefix. @param {string} path */
export const onServer = (path) => new URL(`.${path}`, document.baseURI).href;

/** @param {string} path @param {Record<string, unknown>} [query] what is undefined or null is left out */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const words = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return given.length ? `${path}?${words}` : path;
}

const pause = (/** @type {number} */ seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

/**
 * Send a request and return the response, unread.
 * @param {string} method @param {string} path
 * @param {{body?: unknown, query?: Record<string, unknown>, signal?: AbortSignal, accept?: string}} [options]
 * @returns {Promise<Response>}
 */
export async function request(method, path, { body, query, signal: abort, accept } = {}) {
  /** @type {Record<string, string>} */
  const headers = key.value ? { Authorization: `Bearer ${key.value}` } : {};
  const raw = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = raw ? body.type : "application/json";
  if (accept) headers.Accept = accept;
  const sent = { method, headers, body: raw ? body : body === undefined ? undefined : JSON.stringify(body), signal: abort };
  for (let attempt = 0; ; attempt++) {
    const answer = await reached(() => fetch(onServer(address(path, query)), { ...sent, credentials: "omit", cache: "no-store" }));
    if (answer.ok) return answer;
    const wait = Number(answer.headers.get("Retry-After") ?? 1);
    if (method === "GET" && answer.status === 503 && attempt < RETRIES && wait <= LONGEST_WAIT) {
      await pause(wait);
      continue;
    }
    if (answer.status === 401) refused.value = true;
    if (answer.status === 404) missing.value++;
    throw new Refused(answer.status, await answer.json().catch(() => null));
  }
}

/** Return the response, or throw Error in plain words. @param {() => Promise<Response>} send */
async function reached(send) {
  try {
    return await send();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Error(W.unreachable);
  }
}

/** Send a request and return its response as JSON. @type {(method: string, path: string, options?: Parameters<typeof request>[2]) => Promise<any>} */
export const ask = async (method, path, options) => (await request(method, path, options)).json();

/** Save a blob as a file. @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
