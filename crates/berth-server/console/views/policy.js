// Policies: versions, weights, and what a change would do to the placements there are.

import { html, useEffect, useMemo, useRequest, useState } from "../lib/view.js";
import { all, get, path, post, request } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Card, Chip, Code, Confirm, ErrorBox, Field, InstanceLink, NodeLink, Opens, PageHead } from "../lib/parts.js";
import { go, to } from "../lib/router.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";

/** @param {{ rest: string[] }} props */
export function Policy({ rest }) {
  return html`<${Versions} chosen=${rest[0] ?? "active"} key=${rest[0]} />`;
}

/** @param {{ chosen: string }} props */
function Versions({ chosen }) {
  const list = useRequest((signal) => all("/v1/policies", {}, signal), [], { topics: ["policy"], everyMs: 300 });
  const one = useRequest((signal) => get(`/v1/policies/${path(chosen)}`, {}, signal), [chosen], { topics: ["policy"], everyMs: 300 });
  const active = list.data?.find((/** @type {any} */ policy) => policy.active);
  const reload = () => {
    list.reload();
    one.reload();
  };
  /** @type {import("../lib/table.js").Column[]} */
  const columns = [
    { name: "Name", value: (policy) => policy.name, show: (policy) => html`<a href=${to("policy", idOf(policy))}>${policy.name}</a>` },
    { name: "Version", value: (policy) => policy.hash, show: (policy) => html`<code title=${policy.hash}>${policy.hash.slice(0, 8)}</code>` },
    { name: "", value: (policy) => (policy.active ? "active" : ""), show: (policy) => policy.active && html`<${Chip} state="active" />` },
    { name: "Stored", value: (policy) => policy.stored_at ?? "", show: (policy) => (policy.stored_at ? html`<${Ago} at=${policy.stored_at} />` : html`<span class="muted">built in</span>`) },
  ];
  return html`<${PageHead} title="Policy" note=${active ? html`<strong>${active.name}</strong> <code>${active.hash}</code> is active.` : ""}
      tools=${store.mayRun && html`<${Opens} label="Roll back…">${(/** @type {() => void} */ close) => html`<${Confirm} title="Roll back the policy?" action="Roll back" danger onClose=${close}
        onDo=${() => request("POST", "/v1/policies/rollback", { body: {}, headers: active && { "If-Match": `"${active.hash}"` } }).then(reload)}><p>The policy that was active before <strong>${active?.name}</strong> (<code>${active?.hash}</code>) decides again, from the next request on.</p><//>`}<//>`} />
    <${ErrorBox} error=${list.error} />
    <div class="split form-left policies">
      <${Card} title="Versions"><${Table} compact name="Policies" columns=${columns} rows=${list.data} rowKey=${(/** @type {any} */ policy) => policy.hash} /><//>
      <div><${ErrorBox} error=${one.error} />${one.data && html`<${Editor} key=${one.data.hash} policy=${one.data} active=${active} reload=${reload} />`}</div>
    </div>`;
}

/** What names a policy: built-in ones are not stored, so their hash leads nowhere. @param {any} policy */
const idOf = (policy) => (policy.stored_at ? policy.hash : policy.name);

/** A policy as TOML. @param {any} body @param {Record<string, number>} scores @param {string} name */
export function toml(body, scores, name) {
  const lines = [`name = ${JSON.stringify(name)}`, `combine = ${JSON.stringify(body.combine)}`];
  const value = (/** @type {any} */ of) => tomlValue(of);
  for (const section of ["filters", "explain", "options"]) {
    const entries = Object.entries(body[section] ?? {}).filter(([, of]) => of !== null);
    if (entries.length === 0) continue;
    lines.push("", `[${section}]`, ...entries.map(([key, of]) => `${key} = ${value(of)}`));
  }
  lines.push("", "[scores]", ...Object.entries(scores).filter(([, weight]) => weight > 0).map(([key, weight]) => `${key} = ${weight}`));
  return `${lines.join("\n")}\n`;
}

/** @param {any} of @returns {string} */
function tomlValue(of) {
  if (Array.isArray(of)) return `[${of.map(tomlValue).join(", ")}]`;
  if (of && typeof of === "object") return `{ ${Object.entries(of).filter(([, one]) => one !== null).map(([key, one]) => `${key} = ${tomlValue(one)}`).join(", ")} }`;
  return JSON.stringify(of);
}

/** @param {{ policy: any, active: any, reload: () => void }} props */
function Editor({ policy, active, reload }) {
  const [scores, setScores] = useState(/** @type {Record<string, number>} */ ({ ...policy.body.scores }));
  const [name, setName] = useState(policy.name);
  const changed = name !== policy.name || Object.keys({ ...scores, ...policy.body.scores }).some((key) => (scores[key] ?? 0) !== (policy.body.scores[key] ?? 0));
  const text = useMemo(() => toml(policy.body, scores, name), [policy, scores, name]);
  const [settled, setSettled] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSettled(changed ? text : ""), 500);
    return () => clearTimeout(timer);
  }, [text, changed]);
  const other = changed || !policy.active;
  const diff = useRequest(async (signal) => (settled || !policy.active ? post("/v1/policies/diff", { from: "active", to: settled ? { toml: settled } : idOf(policy), live: true, limit: 100 }, signal) : undefined), [settled, policy.hash, active?.hash]);
  const save = async () => {
    const stored = changed ? await post("/v1/policies", { toml: text }) : policy;
    await request("POST", `/v1/policies/${path(idOf(stored))}/activate`, { body: {}, headers: active && { "If-Match": `"${active.hash}"` } });
    reload();
    go(to("policy"));
  };
  return html`<${Card} title=${html`${policy.name} ${policy.active && html`<${Chip} state="active" />`}`} tools=${store.mayRun && html`<${Opens} label="Activate…" primary disabled=${!other || Boolean(diff.error)}>${(/** @type {() => void} */ close) => html`<${Confirm} title=${`Activate ${name}?`} action="Activate" onClose=${close} onDo=${save}>
        <p>${diff.data?.live?.summary ?? "It decides from the next request on."}. Nothing that is placed moves because of it.</p><p class="muted">Roll back restores ${active?.name}.</p><//>`}<//>`}>
      <${Field} label="Name" value=${name} onInput=${setName} />
      <h3>Weights</h3><div class="weights">${Object.keys(policy.body.scores).sort().map((key) => html`<label key=${key}><span>${key}</span>
        <input type="range" min="0" max=${Math.max(10, 2 * policy.body.scores[key])} step="0.25" value=${scores[key]} aria-label=${`Weight of ${key}`} onInput=${(/** @type {any} */ event) => setScores({ ...scores, [key]: Number(event.target.value) })} />
        <input type="number" min="0" max="1000" step="0.25" value=${scores[key]} aria-label=${`Weight of ${key}, as a number`} onInput=${(/** @type {any} */ event) => setScores({ ...scores, [key]: Number(event.target.value) })} /></label>`)}</div>
      <details><summary>As a file</summary><${Code} label="TOML" text=${text} /></details><//>
    ${other && html`<${Card} title="What would change"><${ErrorBox} error=${diff.error} />${diff.loading && html`<p class="muted" role="status">Deciding the placements of the fleet again…</p>`}${diff.data && html`<${Difference} diff=${diff.data} />`}<//>`}`;
}

/** @type {import("../lib/table.js").Column[]} */
const CHANGED = [
  { name: "Instance", value: (one) => one.instance, show: (one) => html`<${InstanceLink} id=${one.instance} />` },
  { name: "Tenant", value: (one) => one.tenant },
  { name: "Now on", value: (one) => one.node, show: (one) => html`<${NodeLink} id=${one.node} />` },
  { name: "Active policy", value: (one) => one.from ?? one.code ?? "", show: (one) => (one.from ? html`<${NodeLink} id=${one.from} />` : (one.code ?? "")) },
  { name: "This one", value: (one) => one.to ?? one.code ?? "", show: (one) => (one.to ? html`<${NodeLink} id=${one.to} />` : (one.code ?? "")) },
];

/** @param {{ diff: any }} props */
function Difference({ diff }) {
  const { live } = diff;
  return html`<p role="status"><strong>${live?.summary}</strong></p>
    <p>${diff.changes.map((/** @type {any} */ one, /** @type {number} */ i) => html`${i > 0 && ", "}<code key=${one.key}>${one.key} ${JSON.stringify(one.from ?? "unset")} → ${JSON.stringify(one.to ?? "unset")}</code>`)}</p>
    ${live && html`<p class="muted">${format.count(live.counts.looked_at)} placements were decided again with each policy: ${live.counts.same} the same, ${live.counts.other_node} on another node, ${live.counts.only_from} would no longer fit, ${live.counts.only_to} would fit now.</p>
      <${Table} compact name="Placements that would differ" columns=${CHANGED} rows=${live.decisions} rowKey=${(/** @type {any} */ one) => one.instance} />`}`;
}
