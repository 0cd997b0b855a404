// What a tenant has: its instances, its quota, its workloads; nothing of others.

import { html, useRequest } from "../lib/view.js";
import { all, get } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Bar, Card, Chip, ErrorBox, PageHead, Tile } from "../lib/parts.js";
import { to } from "../lib/router.js";
import { store } from "../lib/store.js";
import { EventList } from "./timeline.js";

export function Mine() {
  const instances = useRequest((signal) => all("/v1/instances", {}, signal, { most: 5000 }), [], { topics: ["instance"], everyMs: 1500 });
  const quotas = useRequest((signal) => get("/v1/quotas", {}, signal), [], { topics: ["instance", "quota"], everyMs: 3000 });
  const workloads = useRequest((signal) => all("/v1/workloads", {}, signal), [], { topics: ["workload", "instance"], everyMs: 3000 });
  const events = useRequest((signal) => get("/v1/events", { order: "newest", limit: 12 }, signal), [], { topics: ["events"], everyMs: 2000 });
  const mine = instances.data ?? [];
  const sum = (/** @type {string} */ key) => mine.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + one.resources[key], 0);
  return html`<${PageHead} title=${(store.who?.tenants ?? []).join(", ") || "Overview"} note="What is yours." tools=${html`<a class="button" href="/ui/place">Place instances</a>`} />
    <${ErrorBox} error=${instances.error} />
    <div class="tiles">
      <${Tile} label="Instances" value=${format.count(mine.length)} note=${html`<a href="/ui/instances">all of them</a>`} />
      <${Tile} label="CPU" value=${format.count(sum("cpu_milli") / 1000)} note="cores" />
      <${Tile} label="Memory" value=${format.mib(sum("memory_mib"))} />
      <${Tile} label="Disk" value=${format.mib(sum("disk_mib"))} />
      <${Tile} label="Waiting" value=${store.waiting} note=${html`<a href="/ui/queue">the queue</a>`} />
    </div>
    <div class="columns">
      <${Card} title="Quota">${(quotas.data?.items ?? []).length === 0 ? html`<p class="muted">No limit is set.</p>` : quotas.data.items.map((/** @type {any} */ one) => html`<${QuotaBars} key=${one.tenant} of=${one} />`)}<//>
      <${Card} title="Workloads">${(workloads.data ?? []).length === 0 ? html`<p class="muted">None.</p>` : html`<ul class="rank">${(workloads.data ?? []).map((/** @type {any} */ one) => html`<li key=${one.name}><a href=${to("workloads", one.tenant, one.name)}>${one.name}</a><${Chip} state=${one.status.state} /><span class="muted">${one.status.message}</span></li>`)}</ul>`}<//>
      <${Card} title="What happened"><${EventList} events=${events.data?.items} /><//>
    </div>`;
}

/** @param {{ of: any }} props */
export function QuotaBars({ of }) {
  const rows = [["CPU", "cpu_milli", format.cpu], ["Memory", "memory_mib", format.mib], ["Disk", "disk_mib", format.mib], ["Instances", "instances", format.count]];
  return html`${rows.map(([label, key, show]) => {
    const most = of.limits[/** @type {string} */ (key)];
    const used = of.used[/** @type {string} */ (key)] ?? 0;
    const text = /** @type {(value: number) => string} */ (show);
    if (most === undefined || most === null) return html`<p key=${key} class="bar-head"><span>${label}</span><span class="muted">${text(used)}, no limit</span></p>`;
    return html`<${Bar} key=${key} label=${label} whole=${most} show=${text} text=${`${text(used)} of ${text(most)}`} parts=${[{ name: "used", value: used, tone: used > most ? "c4" : "c1" }]} />`;
  })}`;
}
