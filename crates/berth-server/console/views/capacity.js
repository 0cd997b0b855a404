// Capacity and what-if: can these nodes be emptied, how many more of this would fit.

import { html, useState } from "../lib/view.js";
import { post } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Card, ErrorBox, Field, NodeLink, PageHead } from "../lib/parts.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";
import { Moves } from "./nodes.js";

export function Capacity() {
  return html`<${PageHead} title="Capacity and what-if" note="Questions about the fleet as it is now. Nothing is claimed or moved." />
    ${store.mayPlace && html`<${Fits} />`}<${Evacuate} /><${Zones} />`;
}

function Fits() {
  const [form, setForm] = useState({ tenant: "", cpu: "2", memory: "8GiB", disk: "", where: "", most: "200" });
  const [answer, setAnswer] = useState(/** @type {{ busy?: boolean, fits?: number, most?: boolean, error?: any, refusal?: any }} */ ({}));
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setAnswer({ busy: true });
    const most = Math.max(1, Math.min(1000, Number(form.most) || 1));
    const resources = { cpu_milli: Math.round(Number(form.cpu) * 1000), memory_mib: format.readMib(form.memory), ...(form.disk && { disk_mib: format.readMib(form.disk) }) };
    try {
      const placed = await post("/v1/placements", { tenant: form.tenant.trim() || undefined, mode: "best_effort", dry_run: true, instances: [{ count: most, resources, ...(form.where && { where: form.where }) }] });
      setAnswer({ fits: placed.instances.length, most: placed.instances.length === most, refusal: placed.refusals?.[0] });
    } catch (error) {
      const refusal = /** @type {any} */ (error).body?.refusals?.[0];
      setAnswer(refusal ? { fits: 0, refusal } : { error });
    }
  };
  const field = (/** @type {keyof typeof form} */ key, /** @type {string} */ label) => html`<${Field} key=${key} label=${label} value=${form[key]} onInput=${(/** @type {string} */ text) => setForm({ ...form, [key]: text })} />`;
  return html`<${Card} title="How many more would fit?"><form class="filter-row" onSubmit=${ask}>${field("tenant", "Tenant")}${field("cpu", "CPU cores")}${field("memory", "Memory")}${field("disk", "Disk")}${field("where", "Only nodes where")}${field("most", "Ask for up to")}<button class="primary" disabled=${answer.busy || (!form.tenant && !store.isTenant)}>${answer.busy ? "Asking…" : "Ask"}</button></form>
    <${ErrorBox} error=${answer.error} />
    <div role="status">${answer.fits !== undefined && html`<p><strong>${answer.most ? `${format.count(answer.fits)} or more` : format.count(answer.fits)}</strong> would fit now, by the policy in force${answer.refusal ? html`; the next is refused by <strong>${answer.refusal.code}</strong>: ${answer.refusal.remedy}` : "."}</p>`}</div><//>`;
}

function Evacuate() {
  const [kind, setKind] = useState("nodes");
  const [names, setNames] = useState("");
  const [answer, setAnswer] = useState(/** @type {{ busy?: boolean, data?: any, error?: any }} */ ({}));
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setAnswer({ busy: true });
    const query = kind === "nodes" ? { nodes: names.split(/[\s,]+/).filter(Boolean) } : kind === "all" ? { all: true } : { [kind]: names.trim() };
    try {
      setAnswer({ data: await post("/v1/evacuations/check", query) });
    } catch (error) {
      setAnswer({ error });
    }
  };
  return html`<${Card} title="Can it be emptied?"><form class="filter-row" onSubmit=${ask}>
      <${Field} label="What" value=${kind} onInput=${setKind} options=${[["nodes", "nodes together"], ["rack", "a rack"], ["zone", "a zone"], ["all", "each node by itself"]]} />
      ${kind !== "all" && html`<${Field} label="Names" value=${names} onInput=${setNames} placeholder=${kind === "nodes" ? "node-000001 node-000002" : kind === "rack" ? "rack-0000" : "zone-0"} />`}
      <button class="primary" disabled=${answer.busy || (kind !== "all" && !names.trim())}>${answer.busy ? "Working it out…" : "Check"}</button></form>
    <${ErrorBox} error=${answer.error} />
    <div role="status">${answer.data && (answer.data.items.length > 1
      ? html`<${Table} compact name="Evacuations" columns=${EVACUATIONS} rows=${answer.data.items} rowKey=${(/** @type {any} */ one) => one.nodes.join()} />`
      : answer.data.items.map((/** @type {any} */ one) => html`<div key="one" class=${one.can_be_emptied ? "note-box good" : "error"}><strong>${one.can_be_emptied ? "Yes" : "No"}</strong>: ${one.message}</div>${one.moves && html`<${Moves} drain=${one} />`}`))}</div><//>`;
}

/** @type {import("../lib/table.js").Column[]} */
const EVACUATIONS = [
  { name: "Node", value: (one) => one.nodes.join(" "), show: (one) => one.nodes.map((/** @type {string} */ id) => html`<${NodeLink} key=${id} id=${id} />`) },
  { name: "Can be emptied", value: (one) => (one.can_be_emptied ? "yes" : "no") },
  { name: "Instances", value: (one) => one.instances, number: true },
  { name: "Message", value: (one) => one.message },
];

/** Use by zone and capacity kind. */
function Zones() {
  /** @type {Map<string, any>} */
  const zones = new Map();
  for (const node of store.nodes.values()) {
    const key = `${node.facts.zone ?? "no zone"} ${node.facts.capacity_type}`;
    const sum = zones.get(key) ?? { zone: node.facts.zone ?? "no zone", kind: node.facts.capacity_type, nodes: 0, cpu: 0, cpuMost: 0, memory: 0, memoryMost: 0 };
    sum.nodes += 1;
    sum.cpu += node.used.cpu_milli;
    sum.cpuMost += node.limits.cpu_milli;
    sum.memory += node.used.memory_mib;
    sum.memoryMost += node.limits.memory_mib;
    zones.set(key, sum);
  }
  return html`<${Card} title="Use by zone"><${Table} compact name="Use by zone" columns=${ZONES} rows=${[...zones.values()]} rowKey=${(/** @type {any} */ one) => one.zone + one.kind} sort="Zone" /><//>`;
}

/** @type {import("../lib/table.js").Column[]} */
const ZONES = [
  { name: "Zone", value: (one) => one.zone }, { name: "Kind", value: (one) => one.kind },
  { name: "Nodes", value: (one) => one.nodes, number: true },
  { name: "Memory %", value: (one) => Math.round((100 * one.memory) / Math.max(1, one.memoryMost)), number: true },
  { name: "Memory free", value: (one) => one.memoryMost - one.memory, show: (one) => format.mib(one.memoryMost - one.memory), number: true },
  { name: "CPU %", value: (one) => Math.round((100 * one.cpu) / Math.max(1, one.cpuMost)), number: true },
  { name: "CPU free", value: (one) => one.cpuMost - one.cpu, show: (one) => format.cpu(one.cpuMost - one.cpu), number: true },
];
