// What moves, and what could: migrations, drains, pressure, rebalancing, planned reboots.

import { html, useRequest, useState, useTopics } from "../lib/view.js";
import { all, get, path, post } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Bar, Card, Chip, Confirm, ErrorBox, Field, InstanceLink, NodeLink, Opens, PageHead } from "../lib/parts.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";
import { Moves as DrainMoves } from "./nodes.js";

const OPEN = ["planned", "target_held", "copying", "switched"];

export function Moves() {
  const live = { topics: ["instance", "node", "samples"], everyMs: 1500 };
  const migrations = useRequest((signal) => all("/v1/migrations", {}, signal, { most: 1000 }), [], live);
  const drains = useRequest((signal) => all("/v1/drains", {}, signal), [], live);
  const pressure = useRequest((signal) => get("/v1/pressure", {}, signal), [], live);
  const open = (migrations.data ?? []).filter((/** @type {any} */ one) => OPEN.includes(one.state)).length;
  return html`<${PageHead} title="Moves" note=${`${open} migrations under way`} />
    <${Rebalance} />
    ${(drains.data ?? []).map((/** @type {any} */ drain) => html`<${Card} key=${drain.node} title=${html`Drain of <${NodeLink} id=${drain.node} />: ${drain.message}`}>
      <span class="meter" role="img" aria-label=${`${drain.total - drain.left} of ${drain.total} have left`}><i style=${{ width: `${drain.total ? (100 * (drain.total - drain.left)) / drain.total : 100}%` }}></i></span><${DrainMoves} drain=${drain} /><//>`)}
    <${Card} title="Migrations"><${ErrorBox} error=${migrations.error} /><${Table} name="Migrations" columns=${columns(migrations.reload)} rows=${migrations.data} rowKey=${(/** @type {any} */ one) => one.id} sort="Since" descending /><//>
    <div class="columns">
      <${Card} title="Pressure and relief"><${ErrorBox} error=${pressure.error} />${pressure.data && html`<${Pressure} of=${pressure.data} />`}<//>
      <${Card} title="Planned reboots"><${Calendar} /><//>
    </div>`;
}

/** @param {() => void} reload @returns {import("../lib/table.js").Column[]} */
const columns = (reload) => [
  { name: "Instance", value: (one) => one.instance, show: (one) => html`<${InstanceLink} id=${one.instance} />` },
  { name: "Tenant", value: (one) => one.tenant },
  { name: "From", value: (one) => one.source, show: (one) => html`<${NodeLink} id=${one.source} />` },
  { name: "To", value: (one) => one.target, show: (one) => html`<${NodeLink} id=${one.target} />` },
  { name: "State", value: (one) => one.state, show: (one) => html`<${Chip} state=${one.state} />` },
  { name: "Why", value: (one) => one.reason },
  { name: "Copied %", value: (one) => Math.round((one.copied_permille ?? 0) / 10), number: true },
  { name: "Frees", value: (one) => one.frees.memory_mib, show: (one) => format.amounts(one.frees) },
  { name: "Costs", value: (one) => one.cost, show: (one) => format.mib(one.cost), number: true },
  { name: "Message", value: (one) => one.message, show: (one) => html`<span class="muted">${one.message}</span>` },
  { name: "Since", value: (one) => one.since, show: (one) => html`<${Ago} at=${one.since} />` },
  { name: "", value: () => "", show: (one) => store.mayRun && ["planned", "target_held", "copying"].includes(one.state) && html`<${Opens} label="Cancel">${(/** @type {() => void} */ close) => html`<${Confirm} title="Cancel this migration?" action="Cancel the migration" danger onClose=${close}
    onDo=${() => post(`/v1/migrations/${path(one.id)}/cancel`).then(reload)}><p>The instance stays on ${one.source}; ${one.target} frees what it held for it.</p><//>`}<//>` },
];

/** @param {{ of: any }} props */
function Pressure({ of }) {
  const shed = of.nodes.filter((/** @type {any} */ one) => one.must_shed);
  return html`<${Bar} label="Memory that is wanted" whole=${Math.max(1, of.memory.capacity_pressure, of.memory.accounted_for)} show=${format.mib} text=${`${format.mib(of.memory.capacity_pressure)}, moves under way free ${format.mib(of.memory.accounted_for)}`}
      parts=${[{ name: "accounted for", value: Math.min(of.memory.accounted_for, of.memory.capacity_pressure), tone: "c1" }, { name: "not yet", value: Math.max(0, of.memory.capacity_pressure - of.memory.accounted_for), tone: "c4" }]} />
    <p>${shed.length === 0 ? "No node must shed instances." : html`${shed.length} nodes must shed instances: ${shed.slice(0, 12).map((/** @type {any} */ one, /** @type {number} */ i) => html`${i > 0 && ", "}<${NodeLink} key=${one.node} id=${one.node} />`)}`}</p>
    <p class="muted">${of.nodes.length} nodes are under pressure or above their watermark.</p>`;
}

/** Reboots by day. */
function Calendar() {
  useTopics("layout");
  /** @type {Map<string, string[]>} */
  const days = new Map();
  for (const { facts } of store.nodes.values()) {
    if (!facts.next_reboot) continue;
    const day = new Date(facts.next_reboot * 1000).toISOString().slice(0, 10);
    days.set(day, [...(days.get(day) ?? []), facts.id]);
  }
  const sorted = [...days].sort(([one], [other]) => one.localeCompare(other)).slice(0, 14);
  if (sorted.length === 0) return html`<p class="muted">No reboot is planned.</p>`;
  return html`<dl class="facts">${sorted.map(([day, nodes]) => html`<dt key=${day}>${day}</dt><dd key=${`${day} nodes`}>${nodes.slice(0, 6).map((id, i) => html`${i > 0 && ", "}<${NodeLink} key=${id} id=${id} />`)}${nodes.length > 6 && ` and ${nodes.length - 6} more`}</dd>`)}</dl>`;
}

/** @type {import("../lib/table.js").Column[]} */
const STEPS = [
  { name: "Instance", value: (one) => one.name ?? one.instance, show: (one) => html`<${InstanceLink} id=${one.instance} name=${one.name} />` },
  { name: "Tenant", value: (one) => one.tenant },
  { name: "From", value: (one) => one.from, show: (one) => html`<${NodeLink} id=${one.from} />` },
  { name: "To", value: (one) => one.to, show: (one) => html`<${NodeLink} id=${one.to} />` },
  { name: "Gains", value: (one) => one.gain, number: true, show: (one) => format.count(one.gain) },
  { name: "Costs", value: (one) => one.cost, number: true, show: (one) => format.mib(one.cost) },
  { name: "Why", value: (one) => one.why, show: (one) => html`<span class="muted">${one.why}</span>` },
];

function Rebalance() {
  const [goal, setGoal] = useState("consolidate");
  const [plan, setPlan] = useState(/** @type {{ busy?: boolean, data?: any, error?: any, done?: any }} */ ({}));
  const propose = async () => {
    setPlan({ busy: true });
    try {
      setPlan({ data: await post("/v1/rebalance/plan", { goal }) });
    } catch (error) {
      setPlan({ error });
    }
  };
  const moves = plan.data?.moves ?? [];
  return html`<${Card} title="Rebalance" tools=${html`<${Field} label="Goal" value=${goal} onInput=${setGoal} options=${[["consolidate", "empty nodes"], ["spread", "even out load"]]} /><button onClick=${propose} disabled=${plan.busy}>${plan.busy ? "Working it out…" : "Propose moves"}</button>`}>
    <${ErrorBox} error=${plan.error} />
    ${plan.done && html`<p class="note-box good" role="status">${plan.done.message}</p>`}
    ${plan.data ? html`<p role="status"><strong>${plan.data.message}</strong></p>
      ${moves.length > 0 && html`<${Table} compact name="Proposed moves" columns=${STEPS} rows=${moves} rowKey=${(/** @type {any} */ one) => one.instance} />
        ${store.mayRun && html`<${Opens} label=${`Start ${moves.length} moves…`} primary>${(/** @type {() => void} */ close) => html`<${Confirm} title=${`Start ${moves.length} moves?`} action="Start" onClose=${close}
          onDo=${async () => setPlan({ done: await post("/v1/rebalance/apply", { goal: plan.data.goal, moves: moves.map((/** @type {any} */ one) => ({ instance: one.instance, from: one.from, to: one.to })) }) })}><p>${plan.data.message}.</p><//>`}<//>`}`}`
      : html`<p class="muted">Proposes moves with their gain and cost; nothing moves before you start them.</p>`}<//>`;
}
