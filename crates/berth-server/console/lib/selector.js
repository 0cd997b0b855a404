// The input of a selector of nodes, which completes what is typed.

import { html, useMemo, useRef, useState } from "./view.js";
import { store } from "./store.js";

const ATTRIBUTES = [
  "id", "state", "zone", "rack", "capacity_type", "platform", "hardware_class", "kvm", "reserved", "headnode", "virtual", "instances",
  "last_boot", "next_reboot", "heartbeat", "cpu", "memory", "disk", "bandwidth", "used.memory", "used.cpu", "used.disk", "free.memory",
  "free.cpu", "free.disk",
];
const JOINS = ["and", "or", "not"];

/** What may follow a text: words, and where the last word begins. @param {string} text */
export function completions(text) {
  const word = /[^\s()=<>!~,]*$/.exec(text)?.[0] ?? "";
  const before = text.slice(0, text.length - word.length);
  const valueOf = /([\w.:-]+)\s*(?:=|!=|~|in\s*\((?:[^)]*,)?)\s*$/.exec(before);
  let words;
  if (valueOf) words = valuesOf(valueOf[1]);
  else if (/[\w.:-]+\s+$/.test(before) && !/(and|or|not|\()\s*$/i.test(before)) {
    words = /(=|<|>|~)\s*[^\s]+\s+$/.test(before) || /\)\s*$/.test(before) ? JOINS : ["=", "!=", "<", ">", "~", "in ("];
  } else words = [...ATTRIBUTES, ...keys(), "not"];
  const found = words.filter((one) => one.startsWith(word) && one !== word).slice(0, 8);
  return { before, words: found };
}

/** Values of an attribute that nodes have. @param {string} attribute */
function valuesOf(attribute) {
  const seen = new Set();
  for (const { facts } of store.nodes.values()) {
    const [kind, key] = attribute.split(":");
    const value = key ? facts[`${kind}s`]?.[key] : facts[attribute === "virtual" ? "is_virtual" : attribute];
    if (typeof value === "string" || typeof value === "boolean") seen.add(String(value));
    if (seen.size > 200) break;
  }
  return [...seen].sort();
}

/** Labels and traits that nodes have. */
function keys() {
  const seen = new Set();
  for (const { facts } of store.nodes.values()) {
    Object.keys(facts.labels ?? {}).forEach((key) => seen.add(`label:${key}`));
    Object.keys(facts.traits ?? {}).forEach((key) => seen.add(`trait:${key}`));
    if (seen.size > 100) break;
  }
  return [...seen].sort();
}

/** @param {{ label: string, value: string, onInput: (text: string) => void, error?: any, placeholder?: string, id: string }} props */
export function SelectorInput({ label, value, onInput, error, placeholder, id }) {
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const input = useRef(/** @type {any} */ (null));
  const { before, words } = useMemo(() => (open ? completions(value) : { before: "", words: [] }), [value, open]);
  const choose = (/** @type {string} */ word) => {
    onInput(`${before}${word} `);
    setAt(-1);
    input.current?.focus();
  };
  const key = (/** @type {any} */ event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      setOpen(true);
      setAt((at + (event.key === "ArrowDown" ? 1 : -1) + words.length + 1) % (words.length + 1) - (at < 0 && event.key === "ArrowUp" ? 1 : 0));
    } else if (event.key === "Enter" && at >= 0 && words[at]) {
      event.preventDefault();
      choose(words[at]);
    } else if (event.key === "Escape") setOpen(false);
  };
  const shown = open && words.length > 0;
  return html`<label class=${error ? "field wide wrong selector" : "field wide selector"}><span>${label}</span>
    <input ref=${input} id=${id} role="combobox" aria-expanded=${shown} aria-controls=${`${id}-list`} aria-autocomplete="list" aria-invalid=${Boolean(error)}
      aria-activedescendant=${shown && at >= 0 ? `${id}-${at}` : undefined} autocomplete="off" spellcheck="false"
      value=${value} placeholder=${placeholder ?? "zone = zone-0 and free.memory > 64GiB"} onKeyDown=${key}
      onFocus=${() => setOpen(true)} onBlur=${() => setTimeout(() => setOpen(false), 150)}
      onInput=${(/** @type {any} */ event) => { onInput(event.target.value); setOpen(true); setAt(-1); }} />
    ${shown && html`<ul class="choices" role="listbox" id=${`${id}-list`} aria-label="Completions">${words.map((word, i) => html`<li key=${word} id=${`${id}-${i}`} role="option"
      aria-selected=${i === at} onMouseDown=${(/** @type {Event} */ event) => { event.preventDefault(); choose(word); }}>${word}</li>`)}</ul>`}
    ${error && html`<small role="alert">${error.message}</small>`}
  </label>`;
}
