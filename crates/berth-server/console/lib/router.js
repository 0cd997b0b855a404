// URLs. Every view has one that can be shared; back and forward work.

import { store } from "./store.js";

/** What follows the view in a path, decoded. */
export function location() {
  const parts = window.location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  const [, view, ...rest] = parts[0] === "ui" ? parts : ["ui", "fleet"];
  return { view: view ?? "fleet", rest, query: new URLSearchParams(window.location.search) };
}

/** @param {string} url @param {{ replace?: boolean }} [options] */
export function go(url, options = {}) {
  if (options.replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  store.notify("location");
  if (!options.replace) window.scrollTo(0, 0);
}

/** Changes parts of the query, without a new entry in the history. @param {Record<string, string | undefined>} changes */
export function setQuery(changes) {
  const query = new URLSearchParams(window.location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value) query.set(key, value);
    else query.delete(key);
  }
  const text = query.toString();
  go(window.location.pathname + (text && `?${text}`), { replace: true });
}

/** The URL of a view. @param {string} view @param {...string} rest */
export function to(view, ...rest) {
  if (view === "fleet" && rest.length === 0) return "/";
  return ["/ui", view, ...rest.map(encodeURIComponent)].join("/");
}

export function followLinks() {
  window.addEventListener("popstate", () => store.notify("location"));
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || event.defaultPrevented || link.target || link.download) return;
    const href = link.getAttribute("href") ?? "";
    if (href !== "/" && !href.startsWith("/ui/") && !href.startsWith("/?")) return;
    event.preventDefault();
    go(href);
  });
}
