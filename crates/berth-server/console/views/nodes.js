// Nodes: the list, and one of them.

import { Fragment, html, useMemo, useRequest, useSlowTopics, useState } from "../lib/view.js";
import { get, patch, path, post } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Bar, Card, Chip, Confirm, DecisionLink, ErrorBox, Facts, Field, InstanceLink, NodeLink, Opens, PageHead, Pairs } from "../lib/parts.js";
import { to } from "../lib/router.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";
import { useSelector } from "./fleet.js";
import { SelectorInput } from "../lib/selector.js";
import { EventList } from "./timeline.js";

const share = (/** @type {any} */ node, /** @type {string} */ key) => (node.limits[key] > 0 ? Math.round((100 * node.used[key]) / node.limits[key]) : 0);

/** @type {import("../lib/table.js").Column[]} */
const COLUMNS = [
  { name: "Node", value: (node) => node.facts.id, show: (node) => html`<${NodeLink} id=${node.facts.id} />` },
  { name: "State", value: (node) => node.facts.state, show: (node) => html`<${Chip} state=${node.facts.state} />` },
  { name: "Zone", value: (node) => node.facts.zone ?? "" },
  { name: "Rack", value: (node) => node.facts.rack ?? "" },
  { name: "Kind", value: (node) => node.facts.capacity_type },
  { name: "Instances", value: (node) => node.instances, number: true },
  { name: "CPU %", value: (node) => share(node, "cpu_milli"), number: true },
  { name: "Memory %", value: (node) => share(node, "memory_mib"), number: true },
  { name: "Disk %", value: (node) => share(node, "disk_mib"), number: true },
  { name: "Memory free", value: (node) => node.limits.memory_mib - node.used.memory_mib, show: (node) => format.mib(node.limits.memory_mib - node.used.memory_mib), number: true },
  { name: "Platform", value: (node) => node.facts.platform?.version ?? "" },
];

/** @param {{ only?: Set<string> }} props */
export function NodeTable({ only }) {
  useSlowTopics(1000, "nodes");
  const rows = [...store.nodes.values()].filter((node) => !only || only.has(node.facts.id));
  return html`<${Table} name="Nodes" columns=${COLUMNS} rows=${rows} rowKey=${(/** @type {any} */ node) => node.facts.id} sort="Node" />`;
}

/** @param {{ rest: string[] }} props */
export function Nodes({ rest }) {
  return rest[0] ? html`<${Node} id=${rest[0]} />` : html`<${List} />`;
}

function List() {
  const [where, setWhere] = useState("");
  const { ids, error } = useSelector(where);
  return html`<${PageHead} title="Nodes" />
    <${Card}><div class="filter-row"><${SelectorInput} id="where" label="Only nodes where" value=${where} onInput=${setWhere} error=${error} /></div>
    <${NodeTable} only=${ids} /><//>`;
}

/** @param {{ id: string }} props */
function Node({ id }) {
  const found = useRequest((signal) => get(`/v1/nodes/${path(id)}/explain`, {}, signal), [id], { topics: ["node", "instance"], everyMs: 1000 });
  const node = found.data?.node;
  const draining = node?.facts.state === "draining";
  const drain = useRequest(async (signal) => (draining ? get(`/v1/nodes/${path(id)}/drain`, {}, signal) : undefined), [id, draining], { topics: ["node", "instance"], everyMs: 1000 });
  if (!node) return html`<${PageHead} title=${id} crumbs=${[["Nodes", to("nodes")]]} /><${ErrorBox} error=${found.error} />${!found.error && html`<p class="muted">Reading…</p>`}`;
  const facts = node.facts;
  return html`<${PageHead} title=${id} crumbs=${[["Nodes", to("nodes")]]}
      note=${html`<${Chip} state=${facts.state} /> ${[facts.zone, facts.rack, facts.capacity_type].filter(Boolean).join(" · ")} ${node.state_message && `· ${node.state_message}`}`}
      tools=${store.mayRun && html`<${Actions} node=${node} reload=${found.reload} />`} />
    <${ErrorBox} error=${found.error} />
    ${drain.data?.moves?.length > 0 && html`<${Card} title=${`Drain: ${drain.data.message}`}><${Moves} drain=${drain.data} /><//>`}
    <div class="columns">
      <${Card} title="Resources"><${Resources} node=${node} /><//>
      <${Card} title="What keeps instances away">
        ${found.data.obstacles.length === 0 ? html`<p class="note-box good">Nothing: it takes instances that fit.</p>` : html`<ul>${found.data.obstacles.map((/** @type {string} */ one) => html`<li key=${one}>${one}</li>`)}</ul>`}
        <ul class="muted">${found.data.room.map((/** @type {string} */ one) => html`<li key=${one}>${one}</li>`)}</ul>
        ${node.evacuation && html`<p><strong>${node.evacuation.can_be_emptied ? "Can be emptied" : "Cannot be emptied"}</strong>: ${node.evacuation.message}</p>`}
      <//>
    </div>
    <${Card} title=${`Instances · ${found.data.guests.length}`} class="spaced"><${Guests} guests=${found.data.guests} /><//>
    <div class="columns">
      <${Card} title="Facts" tools=${store.mayRun && html`<${EditFacts} node=${node} reload=${found.reload} />`}><${NodeFacts} node=${node} /><//>
      <${Card} title="History"><${History} id=${id} /><//>
    </div>`;
}

/** @param {{ node: any }} props */
function Resources({ node }) {
  const { account, limits, used } = node;
  const parts = (/** @type {any} */ one) => [
    { name: "system", value: one.system, tone: "c6" },
    { name: "others", value: one.other, tone: "c5" },
    { name: "reserved by instances", value: one.reserved, tone: "c1" },
    { name: "buffer", value: one.buffer, tone: "c3" },
    { name: "pressure", value: Math.max(0, one.capacity_pressure - one.pressure_accounted_for), tone: "c4" },
  ];
  const rest = [["Disk", "disk_mib", format.mib], ["Bandwidth", "bandwidth_mbps", format.bandwidth]];
  return html`${account && html`
      <${Bar} label="Memory" whole=${account.memory.total} parts=${parts(account.memory)} mark=${account.memory.watermark} show=${format.mib} text=${`${format.mib(used.memory_mib)} of ${format.mib(limits.memory_mib)}`} />
      <${Bar} label="CPU" whole=${account.cpu.total} parts=${parts(account.cpu)} mark=${account.cpu.watermark} show=${format.cpu} text=${`${format.cpu(used.cpu_milli)} of ${format.cpu(limits.cpu_milli)}`} />`}
    ${rest.map(([label, key, show]) => html`<${Bar} key=${key} label=${label} whole=${limits[/** @type {string} */ (key)]} show=${show} parts=${[{ name: "used", value: used[/** @type {string} */ (key)], tone: "c1" }]}
      text=${`${/** @type {any} */ (show)(used[/** @type {string} */ (key)])} of ${/** @type {any} */ (show)(limits[/** @type {string} */ (key)])}`} />`)}
    <div class="legend">${[["system", "c6"], ["others", "c5"], ["instances", "c1"], ["buffer", "c3"], ["pressure", "c4"]].map(([name, tone]) => html`<span key=${name}><i class=${`swatch ${tone}`}></i> ${name}</span>`)}<span>| watermark</span></div>`;
}

/** @type {import("../lib/table.js").Column[]} */
const GUESTS = [
  { name: "Instance", value: (one) => one.claim.name ?? one.claim.instance, show: (one) => html`<${InstanceLink} id=${one.claim.instance} name=${one.claim.name} />` },
  { name: "Tenant", value: (one) => one.claim.tenant },
  { name: "Workload", value: (one) => one.claim.workload ?? "" },
  { name: "State", value: (one) => one.claim.state, show: (one) => html`<${Chip} state=${one.claim.state} />` },
  { name: "CPU", value: (one) => one.claim.resources.cpu_milli, show: (one) => format.cpu(one.claim.resources.cpu_milli), number: true },
  { name: "Memory", value: (one) => one.claim.resources.memory_mib, show: (one) => format.mib(one.claim.resources.memory_mib), number: true },
  { name: "Why here", value: (one) => one.why, show: (one) => html`<span class="muted">${one.why}</span> ${one.decision && html`<${DecisionLink} id=${one.decision} />`}` },
];

/** @param {{ guests: any[] }} props */
const Guests = ({ guests }) => html`<${Table} compact name="Instances of the node" columns=${GUESTS} rows=${guests} rowKey=${(/** @type {any} */ one) => one.claim.instance + one.claim.role} empty="It is empty." />`;

/** @param {{ node: any }} props */
function NodeFacts({ node }) {
  const { facts } = node;
  return html`<${Facts} rows=${[
    ["Platform", facts.platform && html`${facts.platform.version}, built <${Ago} at=${facts.platform.built_at} />`],
    ["Hardware class", facts.hardware_class],
    ["Capacity kind", facts.capacity_type],
    ["Last boot", html`<${Ago} at=${facts.last_boot} />`],
    ["Next reboot", html`<${Ago} at=${facts.next_reboot} />`],
    ["Heard from", html`<${Ago} at=${node.heard_at} />`],
    ["Reserved", facts.reserved ? "yes" : "no"],
    ["Ratios", `CPU ${facts.ratios.cpu_permille / 1000}, memory ${facts.ratios.memory_permille / 1000}, disk ${facts.ratios.disk_permille / 1000}`],
    ["Labels", html`<${Pairs} of=${facts.labels} />`],
    ["Traits", html`<${Pairs} of=${facts.traits} />`],
    ["Networks", facts.networks.map((/** @type {any} */ one) => `${one.tag} (${one.link})`).join(", ")],
    ["Images", facts.cached_images.join(", ")],
    ["Set by an operator", Object.keys(node.set ?? {}).join(", ")],
  ]} />`;
}

/** @param {{ node: any, reload: () => void }} props */
function EditFacts({ node, reload }) {
  return html`<${Opens} label="Edit">${(/** @type {() => void} */ close) => html`<${FactsDialog} node=${node} close=${close} reload=${reload} />`}<//>`;
}

/** @param {{ node: any, close: () => void, reload: () => void }} props */
function FactsDialog({ node, close, reload }) {
  const { facts } = node;
  const [labels, setLabels] = useState(Object.entries(facts.labels).map(([key, value]) => `${key}=${value}`).join("\n"));
  const [reboot, setReboot] = useState(facts.next_reboot ? new Date(facts.next_reboot * 1000).toISOString().slice(0, 16) : "");
  const [reserved, setReserved] = useState(facts.reserved);
  const change = useMemo(() => {
    const next = Object.fromEntries(labels.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => [line.split("=")[0], line.split("=").slice(1).join("=")]));
    // In a merge patch, null takes away.
    const gone = Object.keys(facts.labels).filter((key) => !(key in next)).map((key) => [key, null]);
    return { labels: { ...next, ...Object.fromEntries(gone) }, next_reboot: reboot ? Math.round(Date.parse(`${reboot}Z`) / 1000) : null, reserved };
  }, [labels, reboot, reserved]);
  const save = async () => {
    await patch(`/v1/nodes/${path(facts.id)}`, change);
    reload();
  };
  return html`<${Confirm} title=${`Facts of ${facts.id}`} action="Save" onDo=${save} onClose=${close}>
    <${Field} label="Labels, one a line" type="area" value=${labels} onInput=${setLabels} hint="key=value" />
    <${Field} label="Next reboot (UTC)" type="datetime-local" value=${reboot} onInput=${setReboot} />
    <label class="check"><input type="checkbox" checked=${reserved} onChange=${(/** @type {any} */ event) => setReserved(event.target.checked)} /> Reserved: takes nothing new</label>
    <p class="muted">What is set here wins over what the node's agent reports.</p>
  <//>`;
}

/** @param {{ node: any, reload: () => void }} props */
function Actions({ node, reload }) {
  const id = node.facts.id;
  const url = `/v1/nodes/${path(id)}`;
  const state = node.facts.state;
  const [error, setError] = useState(/** @type {any} */ (undefined));
  const run = async (/** @type {string} */ what, /** @type {any} */ body) => {
    setError(undefined);
    try {
      await post(`${url}/${what}`, body);
      reload();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Fragment}>
    ${state === "active" && html`<${Opens} label="Cordon">${(/** @type {() => void} */ close) => html`<${Reasoned} title=${`Cordon ${id}?`} action="Cordon" text="It takes nothing new. What runs there stays." close=${close} onDo=${(/** @type {string} */ reason) => post(`${url}/cordon`, reason ? { reason } : {}).then(reload)} />`}<//>`}
    ${state === "cordoned" && html`<button onClick=${() => run("uncordon", {})}>Uncordon</button>`}
    ${state === "draining" ? html`<${Opens} label="Stop draining">${(/** @type {() => void} */ close) => html`<${Confirm} title=${`Stop draining ${id}?`} action="Stop draining" onClose=${close} onDo=${() => post(`${url}/drain/cancel`).then(reload)}><p>Instances that have not moved stay, and the node takes new ones again.</p><//>`}<//>`
      : html`<${Opens} label="Drain…" danger>${(/** @type {() => void} */ close) => html`<${DrainDialog} id=${id} close=${close} reload=${reload} />`}<//>`}
    <${ErrorBox} error=${error} />
  <//>`;
}

/** @param {{ title: string, action: string, text: string, close: () => void, onDo: (reason: string) => Promise<any> }} props */
function Reasoned({ title, action, text, close, onDo }) {
  const [reason, setReason] = useState("");
  return html`<${Confirm} title=${title} action=${action} onClose=${close} onDo=${() => onDo(reason.trim())}><p>${text}</p><${Field} label="Reason" value=${reason} onInput=${setReason} /><//>`;
}

/** What a drain would do, before it is begun. @param {{ id: string, close: () => void, reload: () => void }} props */
function DrainDialog({ id, close, reload }) {
  const [reason, setReason] = useState("");
  const url = `/v1/nodes/${path(id)}/drain`;
  const plan = useRequest((signal) => post(url, { dry_run: true }, signal), [id]);
  const start = () => post(url, reason.trim() ? { reason: reason.trim() } : {}).then(reload);
  return html`<${Confirm} title=${`Drain ${id}?`} action="Drain" danger disabled=${!plan.data} onClose=${close} onDo=${start}>
    <${ErrorBox} error=${plan.error} />
    ${!plan.data && !plan.error && html`<p class="muted" role="status">Working out every move…</p>`}
    ${plan.data && html`<p><strong>${plan.data.message}</strong></p><${Moves} drain=${plan.data} />`}
    <${Field} label="Reason" value=${reason} onInput=${setReason} />
  <//>`;
}

/** @type {import("../lib/table.js").Column[]} */
const MOVES = [
  { name: "Instance", value: (move) => move.instance, show: (move) => html`<${InstanceLink} id=${move.instance} />` },
  { name: "Tenant", value: (move) => move.tenant },
  { name: "To", value: (move) => move.to ?? "", show: (move) => html`<${NodeLink} id=${move.to} />` },
  { name: "State", value: (move) => move.state, show: (move) => html`<${Chip} state=${move.state} />` },
  { name: "What happens", value: (move) => move.message },
];

/** @param {{ drain: any }} props */
export const Moves = ({ drain }) => html`<${Table} compact name="Moves" columns=${MOVES} rows=${drain.moves} rowKey=${(/** @type {any} */ move) => move.instance} empty="Nothing has to move." />`;

/** @param {{ id: string }} props */
function History({ id }) {
  const found = useRequest(async (signal) => {
    const page = await get("/v1/events", { order: "newest", limit: 1000, kinds: "node,instance,lease" }, signal);
    return page.items.filter((/** @type {any} */ event) => event.body.node_id === id || event.body.facts?.id === id || event.body.node?.id === id).slice(0, 25);
  }, [id], { topics: ["node", "instance"], everyMs: 3000 });
  return html`<${ErrorBox} error=${found.error} /><${EventList} events=${found.data} empty="Nothing in the newest 1,000 events of nodes and instances." />`;
}
