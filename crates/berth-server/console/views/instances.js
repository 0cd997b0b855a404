// Instances: the list, and one of them with why it is where it is.

import { html, useRequest, useState, useTopics } from "../lib/view.js";
import { all, get, path, post } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Bar, Card, Chip, Confirm, DecisionLink, ErrorBox, Facts, Field, InstanceLink, NodeLink, Opens, PageHead, Pairs } from "../lib/parts.js";
import { location, setQuery, to } from "../lib/router.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";
import { Choice, WhenAsked } from "./choice.js";
import { EventList } from "./timeline.js";

/** @type {import("../lib/table.js").Column[]} */
const COLUMNS = [
  { name: "Instance", value: (one) => one.name ?? one.instance, show: (one) => html`<${InstanceLink} id=${one.instance} name=${one.name} />` },
  { name: "Tenant", value: (one) => one.tenant },
  { name: "Workload", value: (one) => one.workload ?? "" },
  { name: "Node", value: (one) => one.node ?? "", show: (one) => html`<${NodeLink} id=${one.node} />` },
  { name: "State", value: (one) => one.state, show: (one) => html`<${Chip} state=${one.state} />` },
  { name: "CPU", value: (one) => one.resources.cpu_milli, show: (one) => format.cpu(one.resources.cpu_milli), number: true },
  { name: "Memory", value: (one) => one.resources.memory_mib, show: (one) => format.mib(one.resources.memory_mib), number: true },
  { name: "Tags", value: (one) => Object.entries(one.tags ?? {}).map(([key, value]) => `${key}=${value}`).join(" "), show: (one) => html`<${Pairs} of=${one.tags} />` },
  { name: "Since", value: (one) => one.created_at, show: (one) => html`<${Ago} at=${one.created_at} />` },
];

const STATES = /** @type {[string, string][]} */ ([["", "any"], ["held", "held"], ["binding", "binding"], ["active", "active"], ["releasing", "releasing"]]);

/** @param {{ rest: string[] }} props */
export function Instances({ rest }) {
  return rest[0] ? html`<${Instance} id=${rest[0]} />` : html`<${List} />`;
}

function List() {
  useTopics("location");
  const { query } = location();
  const wanted = Object.fromEntries(["tenant", "workload", "node", "state", "tag", "name"].map((key) => [key, query.get(key) ?? ""]));
  const found = useRequest((signal) => all("/v1/instances", wanted, signal, { most: 5000 }), Object.values(wanted), { topics: ["instance"], everyMs: 3000 });
  const field = (/** @type {string} */ key, /** @type {string} */ label, /** @type {string} */ hint) =>
    html`<${Field} key=${key} label=${label} value=${wanted[key]} placeholder=${hint} onInput=${(/** @type {string} */ text) => setQuery({ [key]: text })} />`;
  return html`<${PageHead} title="Instances" />
    <${Card}><div class="filter-row">
      ${store.seesFleet && field("tenant", "Tenant", "any")}${field("workload", "Workload", "any")}${store.seesFleet && field("node", "Node", "any")}
      ${field("tag", "Tag", "role=web")}${field("name", "Name", "any")}
      <${Field} label="State" value=${wanted.state} options=${STATES} onInput=${(/** @type {string} */ state) => setQuery({ state })} />
    </div><${ErrorBox} error=${found.error} />
    <${Table} name="Instances" columns=${COLUMNS} rows=${found.data} rowKey=${(/** @type {any} */ one) => one.instance + one.role} /><//>`;
}

/** @param {{ id: string }} props */
function Instance({ id }) {
  const found = useRequest((signal) => get(`/v1/instances/${path(id)}`, {}, signal), [id], { topics: ["instance"], everyMs: 1000 });
  const one = found.data;
  const head = [["Instances", to("instances")]];
  if (!one) return html`<${PageHead} title=${format.short(id)} crumbs=${head} />${found.error ? html`<${ErrorBox} error=${found.error} /><${Card} title="What happened to it"><${InstanceEvents} id=${id} /><//>` : html`<p class="muted">Reading…</p>`}`;
  return html`<${PageHead} title=${one.name ?? format.short(id)} crumbs=${head}
      note=${html`<${Chip} state=${one.state} /> on ${store.seesFleet ? html`<${NodeLink} id=${one.node} />` : (one.node ?? "a node")} ${[one.zone, one.rack].filter(Boolean).join(" · ")}`}
      tools=${store.mayPlace && html`<${Opens} label="Release…" danger>${(/** @type {() => void} */ close) => html`<${Release} one=${one} close=${close} reload=${found.reload} />`}<//>
        ${store.mayRun && html`<${Opens} label="Move…">${(/** @type {() => void} */ close) => html`<${Move} one=${one} close=${close} reload=${found.reload} />`}<//>`}`} />
    <${ErrorBox} error=${found.error} />
    <div class="columns">
      <${Card} title="Placement"><${Facts} rows=${[
        ["Instance", html`<code>${one.instance}</code>`], ["Tenant", one.tenant],
        ["Workload", one.workload && html`<a href=${to("workloads", one.tenant, one.workload)}>${one.workload}</a>`],
        ["Slot", one.slot && `${one.slot.slot} of revision ${one.slot.revision}`],
        ["Role", one.role.replace("_", " ")], ["Resources", format.amounts(one.resources)], ["Image", one.image],
        ["Tags", html`<${Pairs} of=${one.tags} />`], ["Groups", (one.groups ?? []).join(", ")],
        ["Addresses", (one.values ?? []).map((/** @type {any} */ held) => `${held.value} (${held.pool})`).join(", ")],
        ["Fence", html`<code>${one.fence}</code>`], ["Lease", one.lease_until && html`ends <${Ago} at=${one.lease_until} />`],
        ["Since", html`<${Ago} at=${one.created_at} />`],
        ["Locality marks", html`<span class="pairs">${Object.entries(one.locality).filter(([, mark]) => mark).map(([key, mark]) => html`<code key=${key}>${key} ${String(mark)}</code>`)}</span>`],
      ]} /><//>
      ${one.permit && html`<${Card} title="Permit"><${Permit} permit=${one.permit} /><//>`}
      <${Card} title="What happened to it"><${InstanceEvents} id=${id} /><//>
    </div>
    <${Card} class="spaced" title="Why it is here"><${WhenAsked} events=${store.newestSeq}>${() => html`<${Why} id=${id} />`}<//><//>`;
}

/** The decision that placed it, derived from the log. @param {{ id: string }} props */
function Why({ id }) {
  const why = useRequest((signal) => get(`/v1/instances/${path(id)}/explain`, { limit: 0 }, signal), [id]);
  return html`<${ErrorBox} error=${why.error} />
    ${why.loading && html`<p class="muted" role="status">Deriving the decision from the log…</p>`}
    ${why.data && html`<p>${why.data.note}${why.data.explanation?.note && `; ${why.data.explanation.note}`} ${why.data.decision && html`<${DecisionLink} id=${why.data.decision.id} />`}</p>`}
    ${why.data?.explanation?.explanation && html`<${Choice} of=${why.data.explanation.explanation} />`}`;
}

/** @param {{ permit: any }} props */
function Permit({ permit }) {
  const row = (/** @type {string} */ label, /** @type {"cpu_milli" | "memory_mib"} */ key, /** @type {(value: number) => string} */ show) =>
    html`<${Bar} key=${key} label=${label} whole=${Math.max(permit.max[key], permit.permit[key])} show=${show} mark=${permit.wanted[key]}
      parts=${[{ name: "permitted", value: permit.permit[key], tone: "c1" }]} text=${`${show(permit.permit[key])}, from ${show(permit.min[key])} to ${show(permit.max[key])}`} />`;
  return html`${row("Memory", "memory_mib", format.mib)}${row("CPU", "cpu_milli", format.cpu)}
    <${Facts} rows=${[["Wanted", format.amounts(permit.wanted)], ["Charged", format.amounts(permit.charged)], ["Steps of", format.amounts(permit.compute_unit)], ["Permit", `number ${permit.seq}`]]} />`;
}

/** @param {{ id: string }} props */
function InstanceEvents({ id }) {
  const found = useRequest(async (signal) => {
    const page = await get("/v1/events", { order: "newest", limit: 1000, kinds: "instance,lease" }, signal);
    return page.items.filter((/** @type {any} */ event) => event.body.instance_id === id).slice(0, 15);
  }, [id], { topics: ["instance"], everyMs: 3000 });
  return html`<${ErrorBox} error=${found.error} /><${EventList} events=${found.data} empty="Nothing in the newest 1,000 events of instances." />`;
}

/** @param {{ one: any, close: () => void, reload: () => void }} props */
function Release({ one, close, reload }) {
  const [reason, setReason] = useState("");
  const [confirmed, setConfirmed] = useState(false);
  const release = () => post(`/v1/claims/${path(one.instance)}/release`, { fence: one.fence, confirmed, ...(reason.trim() && { reason: reason.trim() }) }).then(reload);
  return html`<${Confirm} title=${`Release ${one.name ?? format.short(one.instance)}?`} action="Release" danger onClose=${close} onDo=${release}>
    <p>${one.state === "held" ? `It is only held: ${format.amounts(one.resources)} on ${one.node ?? "its node"} are free at once.`
      : `Its agent stops it. ${format.amounts(one.resources)} on ${one.node ?? "its node"} count until the agent says that it is gone.`}</p>
    ${one.workload && html`<p>It is a replica of ${one.workload}: another takes its place.</p>`}
    ${one.state !== "held" && store.mayRun && html`<label class="check"><input type="checkbox" checked=${confirmed} onChange=${(/** @type {any} */ event) => setConfirmed(event.target.checked)} /> I know that it no longer runs: free its room now</label>`}
    <${Field} label="Reason" value=${reason} onInput=${setReason} />
  <//>`;
}

/** @param {{ one: any, close: () => void, reload: () => void }} props */
function Move({ one, close, reload }) {
  const url = `/v1/instances/${path(one.instance)}/migrate`;
  const [target, setTarget] = useState("");
  const body = target.trim() ? { to: target.trim() } : {};
  const plan = useRequest((signal) => post(url, { ...body, dry_run: true }, signal), [target.trim()]);
  return html`<${Confirm} title=${`Move ${one.name ?? format.short(one.instance)}?`} action="Move" disabled=${!plan.data} onClose=${close} onDo=${() => post(url, body).then(reload)}>
    <${Field} label="To node" value=${target} onInput=${setTarget} hint="The best node if empty" />
    <${ErrorBox} error=${plan.error} />
    ${plan.data && html`<p>From <strong>${plan.data.source}</strong> to <strong>${plan.data.target}</strong>: ${plan.data.message}</p>`}
  <//>`;
}
