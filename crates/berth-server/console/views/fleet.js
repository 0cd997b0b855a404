// The fleet: every node a cell, totals, and what happened in the last hours.

import { html, useCallback, useEffect, useMemo, useRequest, useSlowTopics, useState, useTopics } from "../lib/view.js";
import { all, get } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import * as format from "../lib/format.js";
import { FleetMap } from "../lib/map.js";
import { MEASURES } from "../lib/measures.js";
import { Card, DecisionLink, ErrorBox, Ago, Field, NodeLink, PageHead, Tile } from "../lib/parts.js";
import { location, setQuery } from "../lib/router.js";
import { SelectorInput } from "../lib/selector.js";
import { store } from "../lib/store.js";
import { NodeTable } from "./nodes.js";

/** Nodes that fit a selector: their ids, or an error. @param {string} where */
export function useSelector(where) {
  const [settled, setSettled] = useState(where);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(where.trim()), 350);
    return () => clearTimeout(timer);
  }, [where]);
  const found = useRequest(
    async (signal) => (settled ? new Set((await all("/v1/nodes", { where: settled }, signal, { most: 200_000 })).map((node) => node.facts.id)) : undefined),
    [settled],
  );
  return { ids: found.data, error: found.error };
}

export function Fleet() {
  useTopics("location");
  const { query } = location();
  const measure = query.get("colour") ?? "memory";
  const where = query.get("where") ?? "";
  const asTable = query.get("as") === "table";
  const { ids, error } = useSelector(where);
  const owned = useOwned(measure, query.get("tenant") ?? "", query.get("workload") ?? "");
  const chosen = MEASURES[measure] ?? MEASURES.memory;
  const reading = useCallback(
    (/** @type {any} */ node) => chosen.read(node, { most: mostInstances(), owned: owned.counts, ownedMost: owned.most }),
    [chosen, owned],
  );
  const dimmed = useCallback((/** @type {string} */ id) => Boolean(ids && !ids.has(id)), [ids]);
  return html`<${PageHead} title="Fleet" note=${html`<${Newest} />`} />
    <${Totals} />
    <div class="split">
      <${Card} class="map-card">
        <div class="filter-row">
          <${Field} label="Colour by" value=${measure} id="colour" onInput=${(/** @type {string} */ value) => setQuery({ colour: value === "memory" ? undefined : value })}
            options=${Object.entries(MEASURES).map(([key, one]) => [key, one.name])} />
          ${measure === "owned" && html`<${Field} label="Tenant" value=${query.get("tenant") ?? ""} onInput=${(/** @type {string} */ tenant) => setQuery({ tenant })} />
            <${Field} label="Workload" value=${query.get("workload") ?? ""} onInput=${(/** @type {string} */ workload) => setQuery({ workload })} />`}
          <${SelectorInput} id="where" label="Only nodes where" value=${where} error=${error} onInput=${(/** @type {string} */ text) => setQuery({ where: text })} />
          <div class="tabs" role="group" aria-label="Show as">
            <button aria-pressed=${!asTable} onClick=${() => setQuery({ as: undefined })}>Map</button>
            <button aria-pressed=${asTable} onClick=${() => setQuery({ as: "table" })}>Table</button>
          </div>
        </div>
        ${asTable ? html`<${NodeTable} only=${ids} />` : html`
          <${FleetMap} label=${`Map of the fleet, coloured by ${chosen.name.toLowerCase()}`} reading=${reading} dimmed=${dimmed} version=${ids} />
          <${Legend} measure=${chosen} found=${ids?.size} />`}
      <//>
      <${Ranks} />
    </div>
    <${Charts} />
    <${Recent} />`;
}

function Newest() {
  useSlowTopics(500, "events");
  if (!store.newest) return "no event since this page was opened";
  return html`${format.count(store.eventsSeen)} events since this page was opened, the newest ${format.ago(store.newest)}`;
}

let mostSeen = { at: 0, most: 1 };
/** The most instances of a node, found once a second. */
function mostInstances() {
  const now = performance.now();
  if (now - mostSeen.at > 1000) {
    let most = 1;
    for (const node of store.nodes.values()) most = Math.max(most, node.instances);
    mostSeen = { at: now, most };
  }
  return mostSeen.most;
}

/** Instances of a tenant or a workload, by node. @param {string} measure @param {string} tenant @param {string} workload */
function useOwned(measure, tenant, workload) {
  const wanted = measure === "owned" && (tenant || workload);
  const found = useRequest(async (signal) => (wanted ? all("/v1/claims", { tenant, workload }, signal, { most: 20_000 }) : []), [wanted, tenant, workload], { topics: ["instance"], everyMs: 3000 });
  return useMemo(() => {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const claim of found.data ?? []) counts.set(claim.node, (counts.get(claim.node) ?? 0) + 1);
    return { counts, most: Math.max(1, ...counts.values()) };
  }, [found.data]);
}

/** @param {{ measure: import("../lib/measures.js").Measure, found?: number }} props */
function Legend({ measure, found }) {
  useSlowTopics(1000, "nodes");
  return html`<div class="legend">
    ${measure.classes ? measure.classes.map(([name, tone]) => html`<span key=${name}><i class=${`swatch ${tone}`}></i> ${name}</span>`)
      : html`<span>${measure.low}</span><i class="ramp"></i><span>${measure.high}</span>`}
    <span class="grow"></span>
    <span role="status">${found === undefined ? `${format.count(store.nodes.size)} nodes` : `${format.count(found)} of ${format.count(store.nodes.size)} nodes fit`}</span>
  </div>`;
}

function Totals() {
  useSlowTopics(300, "nodes", "queue");
  const t = store.totals();
  const share = (/** @type {number} */ part, /** @type {number} */ whole) => (whole > 0 ? (100 * part) / whole : 0);
  const away = t.nodes - t.active;
  return html`<div class="tiles">
    <${Tile} label="Nodes" value=${format.count(t.nodes)} note=${away ? `${away} not active` : "all active"} />
    <${Tile} label="Instances" value=${format.count(t.instances)} note=${`${format.count(t.empty)} empty nodes`} />
    <${Tile} label="CPU" value=${format.percent(t.cpu, t.cpuMost)} share=${share(t.cpu, t.cpuMost)} note=${`${format.count(Math.round(t.cpu / 1000))} of ${format.count(Math.round(t.cpuMost / 1000))}`} />
    <${Tile} label="Memory" value=${format.percent(t.memory, t.memoryMost)} share=${share(t.memory, t.memoryMost)} note=${`${format.mib(t.memory)} of ${format.mib(t.memoryMost)}`} />
    <${Tile} label="Disk" value=${format.percent(t.disk, t.diskMost)} share=${share(t.disk, t.diskMost)} note=${`${format.mib(t.disk)} of ${format.mib(t.diskMost)}`} />
    <${Tile} label="Waiting" value=${format.count(store.waiting)} tone=${store.waiting ? "bad" : ""} note=${html`<a href="/ui/queue">the queue</a>`} />
  </div>`;
}

function Ranks() {
  useSlowTopics(2000, "nodes");
  const nodes = [...store.nodes.values()].filter((node) => node.limits.memory_mib > 0);
  const share = (/** @type {any} */ node) => Math.max(node.used.memory_mib / node.limits.memory_mib, node.limits.cpu_milli ? node.used.cpu_milli / node.limits.cpu_milli : 0);
  const hot = nodes.sort((one, other) => share(other) - share(one)).slice(0, 7);
  const empty = nodes.filter((node) => node.instances === 0);
  return html`<div>
    <${Card} title="Fullest nodes"><ol class="rank">${hot.map((node) => html`<li key=${node.facts.id}><${NodeLink} id=${node.facts.id} /><span>${Math.round(100 * share(node))} %</span>
      <span class="meter"><i style=${{ width: `${100 * Math.min(1, share(node))}%` }}></i></span></li>`)}</ol><//>
    <${Card} title=${`Empty nodes · ${empty.length}`}>${empty.length === 0 ? html`<p class="muted">Every node has instances.</p>`
      : html`<ul class="rank">${empty.slice(0, 6).map((node) => html`<li key=${node.facts.id}><${NodeLink} id=${node.facts.id} /><span class="muted">${node.facts.zone}</span></li>`)}</ul>`}<//>
  </div>`;
}

const HOURS_S = 3 * 3600;
const STEP_S = 60;

/** Decisions of the last hours, newest first. */
export async function recentDecisions(/** @type {AbortSignal} */ signal) {
  const oldest = Date.now() / 1000 - HOURS_S;
  /** @type {any[]} */
  const found = [];
  let cursor;
  for (let page = 0; page < 4; page++) {
    const next = await get("/v1/decisions", { limit: 1000, cursor }, signal);
    found.push(...next.items.map((/** @type {any} */ one) => ({ at: Date.parse(one.at) / 1000, granted: one.outcome === "granted", one: found.length < 8 ? one : undefined })));
    cursor = next.next;
    if (!cursor || (found.at(-1)?.at ?? 0) < oldest) break;
  }
  return found;
}

function Charts() {
  useTopics("samples");
  const decisions = useRequest((signal) => recentDecisions(signal), [], { topics: ["instance", "samples"], everyMs: 15_000 });
  const last = store.samples.length;
  const use = useMemo(() => [store.samples.map((one) => one.at), store.samples.map((one) => one.memory), store.samples.map((one) => one.cpu), store.samples.map((one) => one.disk)], [last, store.samples.at(-1)?.at]);
  const waiting = useMemo(() => [use[0], store.samples.map((one) => one.waiting)], [use]);
  const rate = useMemo(() => perMinute(decisions.data ?? []), [decisions.data]);
  return html`<div class="columns charts">
    <${Card} title="Use, % of capacity"><${Chart} label="Use" unit="%" most=${100} data=${use} series=${[{ name: "memory", tone: "c1" }, { name: "CPU", tone: "c2" }, { name: "disk", tone: "c3" }]} /><//>
    <${Card} title="Decisions a minute"><${Chart} label="Decisions a minute" data=${rate} series=${[{ name: "granted", tone: "c1" }, { name: "refused", tone: "c4" }]} /><//>
    <${Card} title="Requests that wait"><${Chart} label="Waiting" data=${waiting} series=${[{ name: "waiting", tone: "c3" }]} /><//>
  </div>`;
}

/** @param {{ at: number, granted: boolean }[]} decisions */
function perMinute(decisions) {
  const now = Math.floor(Date.now() / 1000 / STEP_S) * STEP_S;
  const oldest = decisions.at(-1)?.at ?? now;
  const from = Math.max(now - HOURS_S, Math.min(Math.floor(oldest / STEP_S) * STEP_S, now - 10 * STEP_S));
  const steps = Math.floor((now - from) / STEP_S) + 1;
  const at = Array.from({ length: steps }, (_, i) => from + i * STEP_S);
  const granted = at.map(() => 0);
  const refused = at.map(() => 0);
  for (const one of decisions) {
    const place = Math.floor((one.at - from) / STEP_S);
    if (place >= 0 && place < steps) (one.granted ? granted : refused)[place] += 1;
  }
  return [at, granted, refused];
}

function Recent() {
  const refused = useRequest((signal) => get("/v1/decisions", { outcome: "refused", limit: 6 }, signal), [], { topics: ["instance", "samples"], everyMs: 5000 });
  return html`<${Card} title="Newest refusals"><${ErrorBox} error=${refused.error} />
    ${refused.data?.items.length === 0 && html`<p class="muted">Nothing was refused.</p>`}
    <ul class="rank">${(refused.data?.items ?? []).map((/** @type {any} */ one) => html`<li key=${one.id}><span><${DecisionLink} id=${one.id} /> <strong>${one.code}</strong>
      <span class="muted"> ${one.tenant}, ${one.asked} ${one.asked === 1 ? "instance" : "instances"}: ${one.reason ?? one.refusals?.[0]?.remedy ?? ""}</span></span><${Ago} at=${one.at} /></li>`)}</ul><//>`;
}
