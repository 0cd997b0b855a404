// Requests that wait for room, and demand that found none.

import { html, useRequest } from "../lib/view.js";
import { all, get, path, remove } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Card, Chip, Confirm, ErrorBox, Opens, PageHead } from "../lib/parts.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";

/** @param {any} request */
const asked = (request) => (request.instances ?? []).map((/** @type {any} */ one) => `${one.count ?? 1} × ${format.amounts(one.resources)}`).join(", ");

export function Queue() {
  const found = useRequest((signal) => all("/v1/queue", {}, signal), [], { topics: ["queue", "instance"], everyMs: 2000 });
  const demand = useRequest(async (signal) => (store.seesFleet ? get("/v1/demand", {}, signal) : undefined), [], { topics: ["queue", "samples"], everyMs: 3000 });
  /** @type {import("../lib/table.js").Column[]} */
  const columns = [
    { name: "Place", value: (one) => one.position ?? "", number: true },
    { name: "Ticket", value: (one) => one.id, show: (one) => html`<code title=${one.id}>${format.short(one.id)}</code>` },
    { name: "Tenant", value: (one) => one.tenant },
    { name: "State", value: (one) => one.state, show: (one) => html`<${Chip} state=${one.state} />` },
    { name: "Asks for", value: (one) => asked(one.request) },
    { name: "Why it waits", value: (one) => one.problem?.code ?? "", show: (one) => html`<strong>${one.problem?.code ?? ""}</strong> <span class="muted">${one.problem?.remedy ?? ""}</span>` },
    { name: "Since", value: (one) => one.since, show: (one) => html`<${Ago} at=${one.since} />` },
    { name: "Until", value: (one) => one.deadline, show: (one) => html`<${Ago} at=${one.deadline} />` },
    { name: "Tries", value: (one) => one.tries, number: true },
    { name: "", value: () => "", show: (one) => store.mayPlace && one.state === "waiting" && html`<${Opens} label="Cancel">${(/** @type {() => void} */ close) => html`<${Confirm} title="Cancel this request?" action="Cancel the request" danger onClose=${close}
      onDo=${() => remove(`/v1/queue/${path(one.id)}`).then(found.reload)}><p>${one.tenant} no longer waits for ${asked(one.request)}.</p><//>`}<//>` },
  ];
  return html`<${PageHead} title="Queue" note="Requests that wait for room, in their order." />
    <${Card}><${ErrorBox} error=${found.error} /><${Table} name="Queue" columns=${columns} rows=${found.data} rowKey=${(/** @type {any} */ one) => one.id} empty="Nobody waits." /><//>
    ${store.seesFleet && html`<${Card} title="Demand that found no room"><${ErrorBox} error=${demand.error} /><${Table} name="Demand" columns=${DEMAND} rows=${demand.data?.items} rowKey=${(/** @type {any} */ one) => one.tenant + one.code + JSON.stringify(one.request)} /><//>`}`;
}

/** @type {import("../lib/table.js").Column[]} */
const DEMAND = [
  { name: "Tenant", value: (one) => one.tenant },
  { name: "Code", value: (one) => one.code, show: (one) => html`<strong>${one.code}</strong>` },
  { name: "Asked for", value: (one) => format.amounts(one.request.resources) },
  { name: "Times", value: (one) => one.times, number: true },
  { name: "First", value: (one) => one.first_at, show: (one) => html`<${Ago} at=${one.first_at} />` },
  { name: "Last", value: (one) => one.last_at, show: (one) => html`<${Ago} at=${one.last_at} />` },
];
