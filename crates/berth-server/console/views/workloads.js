// Workloads: what should run, what does, and the roll-out between.

import { html, useRequest, useState } from "../lib/view.js";
import { all, get, path, post, put, remove, request } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Card, Chip, Code, Confirm, ErrorBox, Facts, Field, InstanceLink, NodeLink, Opens, PageHead } from "../lib/parts.js";
import { to } from "../lib/router.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";

/** @type {import("../lib/table.js").Column[]} */
const COLUMNS = [
  { name: "Workload", value: (one) => one.name, show: (one) => html`<a href=${to("workloads", one.tenant, one.name)}>${one.name}</a>` },
  { name: "Tenant", value: (one) => one.tenant },
  { name: "State", value: (one) => one.status.state, show: (one) => html`<${Chip} state=${one.status.state} />` },
  { name: "Wanted", value: (one) => one.spec.replicas ?? 0, number: true },
  { name: "Run", value: (one) => one.status.active, number: true },
  { name: "On demand", value: (one) => one.status.on_demand, number: true },
  { name: "Spot", value: (one) => one.status.spot, number: true },
  { name: "Revision", value: (one) => one.revision, number: true },
  { name: "Size", value: (one) => one.spec.template.resources.memory_mib, show: (one) => format.amounts(one.spec.template.resources) },
  { name: "Message", value: (one) => one.status.message, show: (one) => html`<span class="muted">${one.status.message}</span>` },
];

/** @param {{ rest: string[] }} props */
export function Workloads({ rest }) {
  return rest.length === 2 ? html`<${Workload} tenant=${rest[0]} name=${rest[1]} />` : html`<${List} />`;
}

function List() {
  const found = useRequest((signal) => all("/v1/workloads", {}, signal), [], { topics: ["workload", "instance"], everyMs: 2000 });
  return html`<${PageHead} title="Workloads" tools=${store.mayPlace && html`<${Opens} label="New workload" primary>${(/** @type {() => void} */ close) => html`<${NewWorkload} close=${close} reload=${found.reload} />`}<//>`} />
    <${Card}><${ErrorBox} error=${found.error} /><${Table} name="Workloads" columns=${COLUMNS} rows=${found.data} rowKey=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} /><//>`;
}

/** @param {{ close: () => void, reload: () => void }} props */
function NewWorkload({ close, reload }) {
  const [tenant, setTenant] = useState(store.who?.tenants?.[0] ?? "");
  const [name, setName] = useState("");
  const [spec, setSpec] = useState(JSON.stringify({ replicas: 2, template: { resources: { cpu_milli: 1000, memory_mib: 2048 } }, rolling: { strategy: "rolling" } }, null, 2));
  return html`<${Confirm} title="New workload" action="Create" onClose=${close} onDo=${() => put(`/v1/workloads/${path(tenant.trim(), name.trim())}`, readJson(spec)).then(reload)} disabled=${!tenant || !name}>
    <div class="form-grid"><${Field} label="Tenant" value=${tenant} onInput=${setTenant} /><${Field} label="Name" value=${name} onInput=${setName} /></div>
    <${Field} label="What should run" type="area" value=${spec} onInput=${setSpec} hint="as PUT /v1/workloads/TENANT/NAME takes it" /><//>`;
}

/** @param {string} text */
export function readJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`this is not JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {{ tenant: string, name: string }} props */
function Workload({ tenant, name }) {
  const url = `/v1/workloads/${path(tenant, name)}`;
  const live = { topics: ["workload", "instance"], everyMs: 700 };
  const found = useRequest((signal) => get(url, {}, signal), [url], live);
  const members = useRequest((signal) => all(`${url}/members`, {}, signal), [url], live);
  const past = useRequest((signal) => get(`${url}/revisions`, {}, signal), [url], live);
  const one = found.data;
  const head = [["Workloads", to("workloads")]];
  if (!one) return html`<${PageHead} title=${name} crumbs=${head} /><${ErrorBox} error=${found.error} />`;
  const { status, spec } = one;
  const roll = status.rollout;
  return html`<${PageHead} title=${name} crumbs=${head} note=${html`<${Chip} state=${status.state} /> of ${tenant} · ${status.message}`} tools=${store.mayPlace && html`<${Actions} one=${one} url=${url} reload=${found.reload} past=${past.data?.items ?? []} />`} />
    <${ErrorBox} error=${found.error} />
    ${status.reason && html`<div class="error" role="status"><strong>${status.reason.code}</strong><p>${status.reason.message}</p><p>${status.reason.members} members, since <${Ago} at=${status.reason.since} /></p></div>`}
    <${Card} title=${`Slots · ${status.active} of ${spec.replicas ?? 0} run`}><${Slots} members=${members.data ?? []} wanted=${spec.replicas ?? 0} /><//>
    <div class="columns">
      <${Card} title="Roll-out"><p>${roll.message}</p>
        <span class="meter" role="img" aria-label=${`${roll.updated_active} of ${spec.replicas ?? 0} run revision ${roll.revision}`}><i style=${{ width: `${spec.replicas ? (100 * roll.updated_active) / spec.replicas : 100}%` }}></i></span>
        <${Facts} rows=${[["Revision", roll.revision], ["Updated", `${roll.updated}, of which ${roll.updated_active} run`], ["Old", roll.old], ["Complete", roll.complete ? "yes" : "no"], ["Strategy", spec.rolling?.strategy],
          ["At most more", spec.rolling?.max_surge], ["At most fewer", spec.rolling?.max_unavailable], ["Paused", spec.paused ? "yes" : "no"]]} />
        ${(past.data?.items ?? []).length > 0 && html`<h3>Past revisions</h3><ul>${past.data.items.map((/** @type {any} */ old) => html`<li key=${old.revision}>${old.revision}: ${old.release ?? format.amounts(old.template.resources)} ${old.template.image ?? ""}</li>`)}</ul>`}<//>
      <${Card} title="What should run"><${Code} label="Specification" text=${JSON.stringify(spec, null, 2)} /><//>
    </div>
    <${Card} class="spaced" title="Members"><${Table} compact name="Members" columns=${MEMBERS} rows=${members.data} rowKey=${(/** @type {any} */ member) => member.instance} sort="Slot" /><//>`;
}

/** @param {{ members: any[], wanted: number }} props */
function Slots({ members, wanted }) {
  const bySlot = new Map(members.map((member) => [member.slot, member]));
  const slots = Array.from({ length: Math.min(500, Math.max(wanted, ...members.map((member) => member.slot + 1), 0)) }, (_, i) => bySlot.get(i));
  return html`<div class="chips">${slots.map((member, i) => member
      ? html`<a key=${i} class=${`slot ${member.on}`} href=${to("instances", member.instance)} title=${`slot ${i}: ${member.on}, ${member.state}, revision ${member.revision}${member.node ? `, ${member.node}` : ""}`}>${i}${member.state !== "active" ? "…" : ""}</a>`
      : html`<span key=${i} class="slot waits" title=${`slot ${i} is empty`}>${i}</span>`)}</div>
    <div class="legend"><span><i class="swatch c1"></i> on-demand</span><span><i class="swatch c2"></i> spot</span><span>… not running yet</span></div>`;
}

/** @type {import("../lib/table.js").Column[]} */
const MEMBERS = [
  { name: "Slot", value: (one) => one.slot, number: true },
  { name: "Instance", value: (one) => one.instance, show: (one) => html`<${InstanceLink} id=${one.instance} />` },
  { name: "State", value: (one) => one.state, show: (one) => html`<${Chip} state=${one.state} />` },
  { name: "On", value: (one) => one.on },
  { name: "Revision", value: (one) => one.revision, number: true },
  { name: "Node", value: (one) => one.node ?? "", show: (one) => html`<${NodeLink} id=${one.node} />` },
  { name: "Deletion cost", value: (one) => one.deletion_cost, number: true },
  { name: "Since", value: (one) => one.since, show: (one) => html`<${Ago} at=${one.since} />` },
];

/** @param {{ one: any, url: string, reload: () => void, past: any[] }} props */
function Actions({ one, url, reload, past }) {
  const [replicas, setReplicas] = useState(String(one.spec.replicas ?? 0));
  const [spec, setSpec] = useState("");
  const roll = (/** @type {any} */ body) => post(`${url}/rollout`, body).then(reload);
  const version = { "If-Match": `"${one.version}"` };
  const dialog = (/** @type {string} */ label, /** @type {any} */ make, /** @type {any} */ more = {}) => html`<${Opens} key=${label} label=${label} ...${more}>${make}<//>`;
  return html`
    ${dialog("Scale", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Scale ${one.name}`} action="Scale" onClose=${close} onDo=${() => post(`${url}/scale`, { replicas: Number(replicas) }).then(reload)}>
      <${Field} label="Replicas" type="number" value=${replicas} onInput=${setReplicas} />
      <p>${Number(replicas) > one.spec.replicas ? `${Number(replicas) - one.spec.replicas} more are placed.` : Number(replicas) < one.spec.replicas ? `${one.spec.replicas - Number(replicas)} are released, those of the lowest deletion cost first.` : "Nothing changes."}</p><//>`)}
    ${dialog("Change…", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Change ${one.name}`} action="Roll out" onClose=${close} onDo=${() => request("PUT", url, { body: readJson(spec || JSON.stringify(one.spec)), headers: version }).then(reload)}>
      <p>A change of the template is a new revision, and is rolled out in steps (${one.spec.rolling?.strategy}).</p>
      <${Field} label="What should run" type="area" value=${spec || JSON.stringify(one.spec, null, 2)} onInput=${setSpec} /><//>`)}
    ${one.spec.paused ? dialog("Resume", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Resume ${one.name}?`} action="Resume" onClose=${close} onDo=${() => roll({ action: "resume" })}><p>The roll-out goes on where it stopped.</p><//>`)
      : dialog("Pause", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Pause ${one.name}?`} action="Pause" onClose=${close} onDo=${() => roll({ action: "pause" })}><p>Nothing is placed or released until it is resumed.</p><//>`)}
    ${dialog("Restart…", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Restart ${one.name}?`} action="Restart" danger onClose=${close} onDo=${() => roll({ action: "restart" })}><p>All ${one.status.placed} instances are replaced, in steps (${one.spec.rolling?.strategy}).</p><//>`)}
    ${past.length > 0 && dialog("Undo…", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Undo the last roll-out of ${one.name}?`} action="Undo" danger onClose=${close} onDo=${() => roll({ action: "undo" })}><p>It goes back to revision ${past[0].revision}: ${past[0].release ?? format.amounts(past[0].template.resources)} ${past[0].template.image ?? ""}. ${one.status.placed} instances are replaced.</p><//>`)}
    ${dialog("Delete…", (/** @type {() => void} */ close) => html`<${Confirm} title=${`Delete ${one.name}?`} action="Delete" danger onClose=${close} onDo=${() => remove(url).then(reload)}><p>Its ${one.status.placed} instances are released, and it is gone when they are.</p><//>`, { danger: true })}`;
}
