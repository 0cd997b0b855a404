// Requests to the public API. There are no other routes: what the console can do, any program can.

/** An answer of the server that is a problem document. */
export class Problem extends Error {
  /** @param {any} body @param {number} status */
  constructor(body, status) {
    super(body.detail || body.title || `the server answered ${status}`);
    this.body = body;
    this.status = status;
    this.code = body.code || "";
  }
}

/** No answer at all: the server is gone, or the network is. */
export class Unreachable extends Error {
  constructor() {
    super("the server does not answer");
    this.code = "unreachable";
    this.body = { title: "the server does not answer", remedy: "this page goes on by itself when it is back" };
    this.status = 0;
  }
}

/** @type {(problem: Problem) => void} */
let onSignedOut = () => {};

/** What to do when the session is over. @param {(problem: Problem) => void} call */
export function whenSignedOut(call) {
  onSignedOut = call;
}

/** A path from parts that may have any character. @param {...string} parts */
export function path(...parts) {
  return parts.map(encodeURIComponent).join("/");
}

/** @param {Record<string, any>} [query] */
export function queryText(query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "" && value !== null);
  const text = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return text && `?${text}`;
}

/**
 * @param {string} method @param {string} url
 * @param {{ query?: Record<string, any>, body?: any, type?: string, headers?: Record<string, string>, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function request(method, url, options = {}) {
  const { query, body, type, signal } = options;
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json", ...options.headers };
  if (method !== "GET") headers["Berth-Console"] = "1";
  if (body !== undefined) headers["Content-Type"] = type ?? "application/json";
  /** @type {Response} */
  let response;
  try {
    response = await fetch(url + queryText(query), {
      method,
      headers,
      signal,
      credentials: "same-origin",
      body: body === undefined ? undefined : type ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable();
  }
  const text = await response.text();
  let answer;
  try {
    answer = text ? JSON.parse(text) : undefined;
  } catch {
    answer = response.ok ? text : { title: `the server answered ${response.status}` };
  }
  if (response.ok) return answer;
  const problem = new Problem(answer ?? {}, response.status);
  if (response.status === 401) onSignedOut(problem);
  throw problem;
}

/** @param {string} url @param {Record<string, any>} [query] @param {AbortSignal} [signal] */
export const get = (url, query, signal) => request("GET", url, { query, signal });
/** @param {string} url @param {any} [body] @param {AbortSignal} [signal] */
export const post = (url, body, signal) => request("POST", url, { body: body ?? {}, signal });
/** @param {string} url @param {any} body */
export const put = (url, body) => request("PUT", url, { body });
/** @param {string} url @param {any} body */
export const patch = (url, body) => request("PATCH", url, { body });
/** @param {string} url @param {Record<string, any>} [query] */
export const remove = (url, query) => request("DELETE", url, { query });

/**
 * All items of a list, page by page, up to a limit.
 * @param {string} url @param {Record<string, any>} [query] @param {AbortSignal} [signal]
 * @param {{ most?: number, onPage?: (items: any[]) => void }} [options]
 * @returns {Promise<any[]>}
 */
export async function all(url, query, signal, options = {}) {
  const most = options.most ?? 5000;
  /** @type {any[]} */
  const items = [];
  let cursor;
  do {
    const page = await get(url, { ...query, limit: Math.min(1000, most), cursor }, signal);
    items.push(...page.items);
    options.onPage?.(page.items);
    cursor = page.next;
  } while (cursor && items.length < most);
  return items;
}

/** Signs in: the server keeps the token in a cookie that scripts cannot read. @param {string} token */
export async function signIn(token) {
  const response = await fetch("/sign-in", { method: "POST", body: new URLSearchParams({ token }), redirect: "manual" });
  return response.type === "opaqueredirect" || response.ok;
}

export async function signOut() {
  await fetch("/sign-out", { method: "POST", redirect: "manual" });
}
