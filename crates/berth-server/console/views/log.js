// The event log and the audit log.

import { html, useRequest, useState, useTopics } from "../lib/view.js";
import { get } from "../lib/api.js";
import { Ago, Card, ErrorBox, Field, PageHead } from "../lib/parts.js";
import { location, setQuery } from "../lib/router.js";
import { Table } from "../lib/table.js";
import { sentence } from "./timeline.js";

/** @type {import("../lib/table.js").Column[]} */
const EVENTS = [
  { name: "Number", value: (one) => one.seq, number: true },
  { name: "When", value: (one) => one.at, show: (one) => html`<${Ago} at=${one.at} />` },
  { name: "Kind", value: (one) => one.kind, show: (one) => html`<code>${one.kind}</code>` },
  { name: "Tenant", value: (one) => one.body.tenant ?? "" },
  { name: "What", value: (one) => JSON.stringify(one.body), show: (one) => sentence(one) },
];

export function Events() {
  useTopics("location");
  const { query } = location();
  const kinds = query.get("kinds") ?? "";
  const [still, setStill] = useState(false);
  const found = useRequest((signal) => get("/v1/events", { order: "newest", limit: 300, kinds }, signal), [kinds], still ? {} : { topics: ["events"], everyMs: 2000 });
  return html`<${PageHead} title="Events" note="The newest 300 of the log." tools=${html`<button aria-pressed=${still} onClick=${() => setStill(!still)}>${still ? "Go on" : "Hold still"}</button>`} />
    <${Card}><div class="filter-row"><${Field} label="Kinds" value=${kinds} placeholder="instance,node.state" onInput=${(/** @type {string} */ text) => setQuery({ kinds: text })} hint="a part before a dot means all that begin with it" /></div>
    <${ErrorBox} error=${found.error} /><${Table} compact name="Events" columns=${EVENTS} rows=${found.data?.items} rowKey=${(/** @type {any} */ one) => String(one.seq)} /><//>`;
}

/** @type {import("../lib/table.js").Column[]} */
const AUDIT = [
  { name: "Number", value: (one) => one.n, number: true },
  { name: "When", value: (one) => one.at, show: (one) => html`<${Ago} at=${one.at} />` },
  { name: "Who", value: (one) => one.actor },
  { name: "From", value: (one) => one.origin },
  { name: "Action", value: (one) => one.action, show: (one) => html`<code>${one.action}</code>` },
  { name: "Subject", value: (one) => one.subject },
  { name: "Request", value: (one) => one.request_id ?? "" },
];

export function Audit() {
  useTopics("location");
  const { query } = location();
  const wanted = Object.fromEntries(["actor", "action", "subject"].map((key) => [key, query.get(key) ?? ""]));
  const found = useRequest((signal) => get("/v1/audit", { ...wanted, limit: 500 }, signal), Object.values(wanted), { topics: ["node", "workload", "policy", "quota"], everyMs: 3000 });
  return html`<${PageHead} title="Audit" note="Who changed what, newest first." /><${Card}>
    <div class="filter-row">${["actor", "action", "subject"].map((key) => html`<${Field} key=${key} label=${key[0].toUpperCase() + key.slice(1)} value=${wanted[key]} placeholder="any" onInput=${(/** @type {string} */ text) => setQuery({ [key]: text })} />`)}</div>
    <${ErrorBox} error=${found.error} /><${Table} compact name="Audit" columns=${AUDIT} rows=${found.data?.items} rowKey=${(/** @type {any} */ one) => String(one.n)} /><//>`;
}
