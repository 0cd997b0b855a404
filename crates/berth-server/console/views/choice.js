// Why a node was chosen: what the filters left, and the terms of the best nodes beside each other.

import { html, useMemo, useState } from "../lib/view.js";
import * as format from "../lib/format.js";
import { NodeLink } from "../lib/parts.js";
import { store } from "../lib/store.js";

/** Events that are read to explain a decision when its view is opened; a longer log is read on request. */
const EXPLAINED_AT_ONCE = 50_000;

/** Explains what would read many events only when asked to. @param {{ events: number, children: () => any }} props */
export function WhenAsked({ events, children }) {
  const [asked, setAsked] = useState(events <= EXPLAINED_AT_ONCE);
  if (asked) return children();
  return html`<p>To explain it, up to ${format.count(events)} events of the log are read. <button onClick=${() => setAsked(true)}>Explain</button></p>`;
}

const TONES = ["c1", "c2", "c3", "c5", "c6", "c4"];

/** @param {{ of: any, others?: any[] }} props */
export function Choice({ of, others }) {
  return html`<p>${of.eligible === undefined ? "" : html`<strong>${of.eligible}</strong> of ${of.nodes} nodes were eligible under policy <strong>${of.policy}</strong>.`}</p>
    ${of.winner && html`<${Terms} best=${[of.winner, ...(of.runner_up ? [of.runner_up] : []), ...(others ?? [])]} />`}
    <${Removed} of=${of} />
    ${of.winner && html`<details><summary>Filters that it passed</summary><p>${(of.filters ?? []).join(", ")}</p></details>`}`;
}

/** @param {{ of: any }} props */
export function Removed({ of }) {
  if (!of.counts?.length) return html`<p class="muted">No filter removed a node.</p>`;
  return html`<p class="muted">Filters removed: ${of.counts.map((/** @type {any} */ one, /** @type {number} */ i) => html`${i > 0 && ", "}<strong key=${one.filter}>${one.filter}</strong> ${one.removed}`)}</p>`;
}

/**
 * The terms that differ, as stacked bars, and all of them as a table. Terms that are the same for all
 * say nothing of the choice; a bar of them would hide what does.
 * @param {{ best: any[] }} props
 */
export function Terms({ best }) {
  const { differing, scorers, most } = useMemo(() => {
    const names = best[0].terms.map((/** @type {any} */ term) => term.scorer);
    const of = (/** @type {any} */ node, /** @type {string} */ name) => node.terms.find((/** @type {any} */ term) => term.scorer === name)?.points ?? 0;
    const differing = names.filter((/** @type {string} */ name) => best.some((node) => of(node, name) !== of(best[0], name)));
    const sum = (/** @type {any} */ node) => differing.reduce((/** @type {number} */ all, /** @type {string} */ name) => all + of(node, name), 0);
    return { differing, scorers: names, most: Math.max(1, ...best.map(sum)) };
  }, [best]);
  const pointsOf = (/** @type {any} */ node, /** @type {string} */ name) => node.terms.find((/** @type {any} */ term) => term.scorer === name);
  const tone = (/** @type {string} */ name) => TONES[differing.indexOf(name) % TONES.length] ?? "none";
  const link = (/** @type {any} */ node) => html`<${NodeLink} id=${node.node} />`;
  return html`<div class="stacks">
      ${best.map((node, place) => html`<div key=${node.node} class=${place === 0 ? "stack-row won" : "stack-row"}><span>${link(node)}</span>
        <span class="stack" aria-hidden="true">${differing.map((/** @type {string} */ name) => html`<i key=${name} class=${tone(name)} title=${`${name}: ${format.points(pointsOf(node, name)?.points ?? 0)}`}
          style=${{ width: `${(100 * (pointsOf(node, name)?.points ?? 0)) / most}%` }}></i>`)}</span>
        <span>${format.points(node.total)}</span></div>`)}
    </div>
    <div class="legend">${differing.map((/** @type {string} */ name) => html`<span key=${name}><i class=${`swatch ${tone(name)}`}></i> ${name}</span>`)}
      ${differing.length < scorers.length && html`<span>${scorers.length - differing.length} terms are the same for all and are not drawn</span>`}</div>
    <details><summary>All terms</summary><div class="scroll" tabindex="0" role="region" aria-label="All terms"><table class="plain">
      <thead><tr><th scope="col">Scorer</th><th scope="col" class="number">Weight</th>${best.map((node) => html`<th key=${node.node} scope="col" class="number">${node.node}</th>`)}</tr></thead>
      <tbody>${scorers.map((/** @type {string} */ name) => html`<tr key=${name}><td>${name}</td><td class="number">${(pointsOf(best[0], name)?.weight_permille ?? 0) / 1000}</td>
        ${best.map((node) => html`<td key=${node.node} class="number">${format.points(pointsOf(node, name)?.points ?? 0)}</td>`)}</tr>`)}
        <tr><th scope="row">Total</th><td></td>${best.map((node) => html`<td key=${node.node} class="number"><strong>${format.points(node.total)}</strong></td>`)}</tr></tbody></table></div></details>`;
}
