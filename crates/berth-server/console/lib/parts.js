// Small parts that many views use.

import { Fragment, html, useEffect, useRef, useState } from "./view.js";
import * as format from "./format.js";
import { to } from "./router.js";
import { store } from "./store.js";

export { Fragment };

/** An error where it happened, in the words of the API. @param {{ error: any }} props */
export function ErrorBox({ error }) {
  if (!error) return null;
  const body = error.body ?? {};
  return html`<div class="error" role="alert">
    <strong>${body.title ?? error.message}</strong>
    ${body.detail && body.detail !== body.title && html`<p>${body.detail}</p>`}
    ${(body.fields ?? []).length > 1 && html`<ul>${body.fields.map((/** @type {any} */ field) =>
      html`<li><code>${field.field}</code>: accepted is ${field.accepted}</li>`)}</ul>`}
    ${body.remedy && html`<p class="remedy">${body.remedy}</p>`}
    ${error.code && error.status ? html`<a href=${`/problems/${error.code}`} target="_blank" rel="noopener">${error.code}</a>` : null}
  </div>`;
}

const STATES = {
  active: "good", ready: "good", granted: "good", done: "good", identical: "good",
  cordoned: "warn", draining: "warn", degraded: "bad", lost: "bad", joining: "info", refused: "bad", different: "bad",
  held: "info", binding: "info", releasing: "warn", waiting: "info", progressing: "info", paused: "warn", failed: "bad",
  deleting: "warn", blocked: "bad", running: "info", copying: "info", cancelled: "muted", expired: "warn", planned: "info",
};

/** @param {{ state: string }} props */
export function Chip({ state }) {
  return html`<span class=${`chip ${STATES[/** @type {keyof typeof STATES} */ (state)] ?? ""}`}>${state}</span>`;
}

/** A node; only who sees the fleet can open it. @param {{ id: string | undefined | null }} props */
export const NodeLink = ({ id }) => (!id ? html`<span class="muted">none</span>` : store.seesFleet ? html`<a href=${to("nodes", id)}>${id}</a>` : html`<span>${id}</span>`);

/** @param {{ id: string, name?: string | null }} props */
export const InstanceLink = ({ id, name }) => html`<a href=${to("instances", id)} title=${id}>${name || format.short(id)}</a>`;

/** @param {{ id: string }} props */
export const DecisionLink = ({ id }) => html`<a href=${to("decisions", id)}><code>${id}</code></a>`;

/** A time, as its distance from now. @param {{ at: string | number | null | undefined }} props */
export const Ago = ({ at }) => (at ? html`<time dateTime=${format.time(at)?.toISOString()} title=${format.clock(at)}>${format.ago(at)}</time>` : html`<span class="muted">–</span>`);

/** @param {{ title?: any, children?: any, class?: string, tools?: any, id?: string }} props */
export function Card({ title, children, tools, id, class: extra }) {
  return html`<section class=${`card ${extra ?? ""}`} aria-labelledby=${id}>
    ${(title || tools) && html`<header><h2 id=${id}>${title}</h2><span class="grow"></span>${tools}</header>`}
    ${children}
  </section>`;
}

/** @param {{ label: string, value: any, note?: any, share?: number, tone?: string }} props */
export function Tile({ label, value, note, share, tone }) {
  return html`<div class=${`tile ${tone ?? ""}`}>
    <span class="label">${label}</span>
    <b>${value}</b>
    ${share !== undefined && html`<span class="meter" aria-hidden="true"><i style=${{ width: `${Math.min(100, share)}%` }}></i></span>`}
    ${note && html`<span class="note">${note}</span>`}
  </div>`;
}

/** Names and values. @param {{ rows: [string, any][] }} props */
export function Facts({ rows }) {
  const given = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return html`<dl class="facts">${given.map(([name, value]) => html`<${Fragment} key=${name}><dt>${name}</dt><dd>${value}</dd><//>`)}</dl>`;
}

/** Pairs of a map. @param {{ of: Record<string, any> | undefined }} props */
export function Pairs({ of }) {
  const pairs = Object.entries(of ?? {});
  if (pairs.length === 0) return html`<span class="muted">none</span>`;
  return html`<span class="pairs">${pairs.map(([key, value]) => html`<code key=${key}>${value === true || value === "" ? key : `${key}=${value}`}</code>`)}</span>`;
}

/** @param {{ text: string, label?: string }} props */
export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button class="quiet" onClick=${copy}>${done ? "Copied" : (label ?? "Copy")}</button>`;
}

/** Code that may be copied. @param {{ label: string, text: string }} props */
export function Code({ label, text }) {
  return html`<figure class="code"><figcaption>${label}<span class="grow"></span><${Copy} text=${text} /></figcaption>
    <pre tabindex="0" aria-label=${label}>${text}</pre></figure>`;
}

/**
 * A dialog that asks before something is done, and shows what it will do.
 * @param {{ title: string, children?: any, action: string, danger?: boolean, onDo: () => Promise<any>, onClose: () => void, disabled?: boolean }} props
 */
export function Confirm({ title, children, action, danger, onDo, onClose, disabled }) {
  const dialog = useRef(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const run = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(undefined);
    try {
      await onDo();
      dialog.current?.close();
      onClose();
    } catch (failed) {
      setError(failed);
    } finally {
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="dialog-title">
    <form onSubmit=${run}>
      <h2 id="dialog-title">${title}</h2>
      <div class="dialog-body">${children}</div>
      <${ErrorBox} error=${error} />
      <footer>
        <button type="button" class="quiet" onClick=${() => dialog.current?.close()}>Cancel</button>
        <button class=${danger ? "danger" : "primary"} disabled=${busy || disabled}>${busy ? "Working…" : action}</button>
      </footer>
    </form>
  </dialog>`;
}

/** A button that opens a dialog. @param {{ label: string, danger?: boolean, primary?: boolean, disabled?: boolean, children: (close: () => void) => any }} props */
export function Opens({ label, danger, primary, disabled, children }) {
  const [open, setOpen] = useState(false);
  return html`<button class=${danger ? "danger" : primary ? "primary" : ""} disabled=${disabled} onClick=${() => setOpen(true)}>${label}</button>
    ${open && children(() => setOpen(false))}`;
}

/**
 * @param {{ label: string, value: any, onInput: (text: string) => void, type?: string, placeholder?: string, list?: string,
 *   hint?: any, options?: [string, string][], error?: string, required?: boolean, id?: string }} props
 */
export function Field({ label, value, onInput, type, placeholder, list, hint, options, error, required, id }) {
  const take = (/** @type {any} */ event) => onInput(event.target.value);
  return html`<label class=${error ? "field wrong" : "field"}>
    <span>${label}</span>
    ${options
      ? html`<select value=${value} onChange=${take} id=${id}>${options.map(([key, text]) => html`<option key=${key} value=${key} selected=${key === value}>${text}</option>`)}</select>`
      : type === "area"
        ? html`<textarea value=${value} onInput=${take} placeholder=${placeholder} rows="6" spellcheck="false" id=${id}></textarea>`
        : html`<input type=${type ?? "text"} value=${value} onInput=${take} placeholder=${placeholder} list=${list} required=${required}
            id=${id} aria-invalid=${Boolean(error)} autocomplete="off" spellcheck="false" min=${type === "number" ? 0 : undefined} />`}
    ${(error || hint) && html`<small>${error ?? hint}</small>`}
  </label>`;
}

/**
 * A bar of parts of a whole.
 * @param {{ label: string, whole: number, parts: { name: string, value: number, tone: string }[], mark?: number, text: string, show: (value: number) => string }} props
 */
export function Bar({ label, whole, parts, mark, text, show }) {
  const share = (/** @type {number} */ value) => `${whole > 0 ? Math.max(0, Math.min(100, (100 * value) / whole)) : 0}%`;
  const words = parts.filter((part) => part.value > 0).map((part) => `${part.name} ${show(part.value)}`).join(", ");
  return html`<div class="bar-row">
    <div class="bar-head"><span>${label}</span><span class="muted">${text}</span></div>
    <div class="bar" role="img" aria-label=${`${label}: ${words || "nothing used"}, of ${show(whole)}`}>
      ${parts.map((part) => part.value > 0 && html`<i key=${part.name} class=${part.tone} style=${{ width: share(part.value) }} title=${`${part.name}: ${show(part.value)}`}></i>`)}
      ${mark !== undefined && html`<u style=${{ left: share(mark) }} title=${`watermark: ${show(mark)}`}></u>`}
    </div>
  </div>`;
}

/** @param {{ title: any, crumbs?: [string, string][], tools?: any, note?: any }} props */
export function PageHead({ title, crumbs, tools, note }) {
  return html`<div class="page-head">
    <div>${crumbs && html`<nav aria-label="Breadcrumb" class="crumbs">${crumbs.map(([name, href]) => html`<a key=${href} href=${href}>${name}</a><span aria-hidden="true">/</span>`)}</nav>`}
    <h1>${title}</h1>${note && html`<p class="muted">${note}</p>`}</div>
    <div class="tools">${tools}</div></div>`;
}
