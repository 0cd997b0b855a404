// Light, dark, or as the system has it. Kept in this browser.

import { store } from "./store.js";

const THEMES = /** @type {const} */ (["auto", "light", "dark"]);
const system = window.matchMedia("(prefers-color-scheme: dark)");

/** @returns {"auto" | "light" | "dark"} */
export function theme() {
  const kept = localStorage.getItem("berth-theme");
  return kept === "light" || kept === "dark" ? kept : "auto";
}

export function applyTheme() {
  const wanted = theme();
  document.documentElement.dataset.theme = wanted === "auto" ? (system.matches ? "dark" : "light") : wanted;
  store.notify("theme");
}

export function nextTheme() {
  localStorage.setItem("berth-theme", THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  applyTheme();
}

system.addEventListener("change", applyTheme);
