// What is configured: quotas, pools, groups, volumes, environments, tokens, and the server itself.

import { html, useRequest, useState } from "../lib/view.js";
import { all, get, path, post, put, remove } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Card, Chip, Confirm, Copy, ErrorBox, Facts, Field, NodeLink, Opens, PageHead } from "../lib/parts.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";
import { QuotaBars } from "./mine.js";

/** @typedef {{ key: string, label: string, hint?: string, options?: [string, string][], value?: string, type?: string }} Input */

/**
 * A list of resources with what can be done to them.
 * @param {{ title: string, note?: string, url: string, query?: any, topic: string, columns: import("../lib/table.js").Column[], rowKey: (row: any) => string, may: boolean, extra?: any,
 *   create?: { label: string, inputs: Input[], send: (values: Record<string, string>) => Promise<any>, after?: (made: any) => any }, remove?: { text: (row: any) => string, send: (row: any) => Promise<any>, label?: string, fits?: (row: any) => boolean } }} props
 */
function List(props) {
  const found = useRequest((signal) => all(props.url, props.query, signal), [props.url], { topics: [props.topic, "samples"], everyMs: 1500 });
  const [made, setMade] = useState(/** @type {any} */ (undefined));
  const gone = props.remove;
  const columns = gone && props.may ? [...props.columns, { name: "", value: () => "", show: (/** @type {any} */ row) => (gone.fits?.(row) ?? true) && html`<${Opens} label=${gone.label ?? "Remove"}>${(/** @type {() => void} */ close) => html`<${Confirm}
    title=${`${gone.label ?? "Remove"} ${props.rowKey(row)}?`} action=${gone.label ?? "Remove"} danger onClose=${close} onDo=${() => gone.send(row).then(found.reload)}><p>${gone.text(row)}</p><//>`}<//>` }] : props.columns;
  return html`<${PageHead} title=${props.title} note=${props.note} tools=${props.create && props.may && html`<${Opens} label=${props.create.label} primary>${(/** @type {() => void} */ close) => html`<${Create} of=${props.create} close=${close} done=${(/** @type {any} */ one) => { setMade(one); found.reload(); }} />`}<//>`} />
    ${made && props.create?.after?.(made)}
    <${Card}><${ErrorBox} error=${found.error} /><${Table} name=${props.title} columns=${columns} rows=${found.data} rowKey=${props.rowKey} /><//>${props.extra}`;
}

/** @param {{ of: any, close: () => void, done: (made: any) => void }} props */
function Create({ of, close, done }) {
  const [values, setValues] = useState(/** @type {Record<string, string>} */ (Object.fromEntries(of.inputs.map((/** @type {Input} */ one) => [one.key, one.value ?? one.options?.[0]?.[0] ?? ""]))));
  return html`<${Confirm} title=${of.label} action="Save" onClose=${close} onDo=${async () => done(await of.send(values))}><div class="form-grid">${of.inputs.map((/** @type {Input} */ one) => html`<${Field} key=${one.key} label=${one.label} hint=${one.hint} options=${one.options} type=${one.type} value=${values[one.key]}
    onInput=${(/** @type {string} */ text) => setValues({ ...values, [one.key]: text })} />`)}</div><//>`;
}

/** Leaves out what is empty. @param {Record<string, any>} of */
const given = (of) => Object.fromEntries(Object.entries(of).filter(([, value]) => value !== "" && value !== undefined && !Number.isNaN(value)));

export function Quotas() {
  const limit = (/** @type {string} */ key, /** @type {(value: number) => string} */ show) => (/** @type {any} */ one) => `${show(one.used[key] ?? 0)} of ${one.limits[key] === undefined || one.limits[key] === null ? "no limit" : show(one.limits[key])}`;
  const columns = [
    { name: "Tenant", value: (/** @type {any} */ one) => one.tenant },
    ...[["CPU", "cpu_milli", format.cpu], ["Memory", "memory_mib", format.mib], ["Disk", "disk_mib", format.mib], ["Instances", "instances", format.count]].map(([name, key, show]) => ({ name: String(name), value: (/** @type {any} */ one) => one.used[/** @type {string} */ (key)] ?? 0, show: limit(/** @type {string} */ (key), /** @type {any} */ (show)) })),
  ];
  const own = useRequest(async (signal) => (store.isTenant ? all("/v1/quotas", {}, signal) : []), []);
  return html`<${List} title="Quotas" url="/v1/quotas" topic="quota" columns=${columns} rowKey=${(/** @type {any} */ one) => one.tenant} may=${store.mayRun}
    extra=${(own.data ?? []).map((/** @type {any} */ one) => html`<${Card} key=${one.tenant} title=${one.tenant}><${QuotaBars} of=${one} /><//>`)}
    create=${{ label: "Set a quota", inputs: [{ key: "tenant", label: "Tenant" }, { key: "cpu", label: "CPU cores", hint: "no limit if empty" }, { key: "memory", label: "Memory", hint: "512GiB" }, { key: "disk", label: "Disk" }, { key: "instances", label: "Instances" }],
      send: (/** @type {any} */ of) => put(`/v1/quotas/${path(of.tenant)}`, given({ cpu_milli: of.cpu && Math.round(Number(of.cpu) * 1000), memory_mib: of.memory && format.readMib(of.memory), disk_mib: of.disk && format.readMib(of.disk), instances: of.instances && Number(of.instances) })) }}
    remove=${{ text: (/** @type {any} */ one) => `${one.tenant} may then use as much as there is.`, send: (/** @type {any} */ one) => remove(`/v1/quotas/${path(one.tenant)}`) }} />`;
}

export function Pools() {
  const columns = [
    { name: "Pool", value: (/** @type {any} */ one) => one.id }, { name: "Kind", value: (/** @type {any} */ one) => one.kind },
    { name: "From", value: (/** @type {any} */ one) => one.first }, { name: "To", value: (/** @type {any} */ one) => one.last },
    { name: "Used", value: (/** @type {any} */ one) => one.used, number: true }, { name: "Size", value: (/** @type {any} */ one) => one.size, number: true },
    { name: "Of", value: (/** @type {any} */ one) => one.tenant ?? (one.open ? "all tenants" : "") },
    { name: "Quarantine", value: (/** @type {any} */ one) => one.quarantine_s, show: (/** @type {any} */ one) => format.duration(one.quarantine_s), number: true },
  ];
  return html`<${List} title="Pools" note="Ranges of addresses and numbers that instances take values from." url="/v1/pools" topic="pool" columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} may=${store.mayRun}
    create=${{ label: "New pool", inputs: [{ key: "id", label: "Name" }, { key: "range", label: "Range", hint: "10.0.0.0/24 or 1-4094" }, { key: "tenant", label: "Tenant", hint: "open to all if empty" }, { key: "quarantine", label: "Quarantine, seconds" }],
      send: (/** @type {any} */ of) => put(`/v1/pools/${path(of.id)}`, given({ range: of.range, tenant: of.tenant, quarantine_s: of.quarantine && Number(of.quarantine) })) }}
    remove=${{ text: (/** @type {any} */ one) => `${one.used} of its values are in use.`, send: (/** @type {any} */ one) => remove(`/v1/pools/${path(one.id)}`) }} />`;
}

export function Groups() {
  const columns = ["id", "tenant", "kind", "strength", "topology", "max_per_domain"].map((key) => ({ name: key === "id" ? "Group" : key === "max_per_domain" ? "Most in one" : key[0].toUpperCase() + key.slice(1), value: (/** @type {any} */ one) => one[key] ?? "" }));
  return html`<${List} title="Groups" note="Instances that are kept together or apart." url="/v1/groups" topic="group" columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} may=${store.mayPlace}
    create=${{ label: "New group", inputs: [{ key: "id", label: "Name" }, { key: "tenant", label: "Tenant" }, { key: "kind", label: "Kind", options: [["apart", "apart"], ["together", "together"]] }, { key: "strength", label: "Strength", options: [["hard", "hard"], ["soft", "soft"]] }, { key: "topology", label: "Of", options: [["node", "nodes"], ["rack", "racks"], ["zone", "zones"]] }, { key: "max", label: "Most in one" }],
      send: (/** @type {any} */ of) => put(`/v1/groups/${path(of.id)}`, given({ tenant: of.tenant, kind: of.kind, strength: of.strength, topology: of.topology, max_per_domain: of.max && Number(of.max) })) }}
    remove=${{ text: () => "Its members stay where they are.", send: (/** @type {any} */ one) => remove(`/v1/groups/${path(one.id)}`) }} />`;
}

export function Volumes() {
  const columns = [
    { name: "Volume", value: (/** @type {any} */ one) => one.id }, { name: "Tenant", value: (/** @type {any} */ one) => one.tenant ?? "" },
    { name: "On", value: (/** @type {any} */ one) => one.home ?? "", show: (/** @type {any} */ one) => html`<${NodeLink} id=${one.home} />` },
    { name: "Attached to", value: (/** @type {any} */ one) => one.attached_to ?? "", show: (/** @type {any} */ one) => format.short(one.attached_to) },
  ];
  return html`<${List} title="Volumes" url="/v1/volumes" topic="volume" columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} may=${store.mayRun}
    create=${{ label: "New volume", inputs: [{ key: "id", label: "Name" }, { key: "tenant", label: "Tenant" }, { key: "home", label: "Node" }], send: (/** @type {any} */ of) => put(`/v1/volumes/${path(of.id)}`, given({ tenant: of.tenant, home: of.home })) }}
    remove=${{ text: (/** @type {any} */ one) => `Berth forgets it. The data on ${one.home} is not touched.`, send: (/** @type {any} */ one) => remove(`/v1/volumes/${path(one.id)}`) }} />`;
}

export function Secrets() {
  const columns = [
    { name: "Environment", value: (/** @type {any} */ one) => one.name }, { name: "Tenant", value: (/** @type {any} */ one) => one.tenant },
    { name: "State", value: (/** @type {any} */ one) => one.state, show: (/** @type {any} */ one) => html`<${Chip} state=${one.state} />` },
    { name: "Secrets' version", value: (/** @type {any} */ one) => one.secrets_version ?? "", show: (/** @type {any} */ one) => one.secrets_version ?? html`<span class="muted">none</span>` },
    { name: "Workloads", value: (/** @type {any} */ one) => one.workloads.map((/** @type {any} */ of) => of.name).join(", ") }, { name: "Message", value: (/** @type {any} */ one) => one.message },
  ];
  return html`<${List} title="Environments" note="Berth knows the version of an environment's secrets, never the secrets." url="/v1/environments" topic="secrets" columns=${columns} rowKey=${(/** @type {any} */ one) => `${one.tenant}/${one.name}`} may=${store.mayRun}
    create=${{ label: "Set a version of secrets", inputs: [{ key: "env", label: "Environment" }, { key: "tenant", label: "Tenant" }, { key: "version", label: "Version", hint: "none if empty" }],
      send: (/** @type {any} */ of) => put(`/v1/environments/${path(of.env)}/secrets?tenant=${encodeURIComponent(of.tenant)}`, { version: of.version || null }) }} />`;
}

export function Tokens() {
  const columns = [
    { name: "Name", value: (/** @type {any} */ one) => one.name }, { name: "Id", value: (/** @type {any} */ one) => one.id, show: (/** @type {any} */ one) => html`<code>${one.id}</code>` },
    { name: "Role", value: (/** @type {any} */ one) => one.role }, { name: "Of", value: (/** @type {any} */ one) => one.node ?? (one.tenants ?? []).join(", ") },
    { name: "Created", value: (/** @type {any} */ one) => one.created_at, show: (/** @type {any} */ one) => html`<${Ago} at=${one.created_at} />` },
    { name: "Expires", value: (/** @type {any} */ one) => one.expires_at ?? "", show: (/** @type {any} */ one) => html`<${Ago} at=${one.expires_at} />` },
    { name: "State", value: (/** @type {any} */ one) => (one.revoked_at ? "revoked" : "valid"), show: (/** @type {any} */ one) => (one.revoked_at ? html`<${Chip} state="cancelled" /> <${Ago} at=${one.revoked_at} />` : html`<span class="chip good">valid</span>`) },
  ];
  return html`<${List} title="Tokens" url="/v1/tokens" topic="never" columns=${columns} rowKey=${(/** @type {any} */ one) => one.name} may=${true}
    create=${{ label: "New token", inputs: [{ key: "name", label: "Name" }, { key: "role", label: "Role", options: ["viewer", "operator", "tenant", "agent", "admin"].map((role) => /** @type {[string, string]} */ ([role, role])) }, { key: "tenants", label: "Tenants", hint: "of role tenant" }, { key: "node", label: "Node", hint: "of role agent" }, { key: "days", label: "Days until it expires", hint: "never if empty" }],
      send: (/** @type {any} */ of) => post("/v1/tokens", given({ name: of.name, role: of.role, tenants: of.tenants ? of.tenants.split(/[\s,]+/) : undefined, node: of.node, expires_in_s: of.days && Math.round(Number(of.days) * 86400) })),
      after: (/** @type {any} */ made) => html`<div class="note-box good" role="status"><strong>${made.name}</strong> was created. This is the only time that its secret is shown: <code>${made.secret}</code> <${Copy} text=${made.secret} /></div>` }}
    remove=${{ label: "Revoke", fits: (/** @type {any} */ one) => !one.revoked_at, text: (/** @type {any} */ one) => `Whoever uses ${one.name} (${one.role}) is signed out at once.`, send: (/** @type {any} */ one) => remove(`/v1/tokens/${path(one.id)}`) }} />`;
}

export function Settings() {
  const status = useRequest((signal) => get("/v1/status", {}, signal), [], { topics: ["samples"], everyMs: 5000 });
  const one = status.data;
  return html`<${PageHead} title="Server" /><${ErrorBox} error=${status.error} />
    ${one && html`<${Card} title="Status"><${Facts} rows=${[["Version", one.version], ["Ready", one.ready ? html`<span class="chip good">ready</span>` : html`<span class="chip bad">${one.reason}</span>`], ["Database", `${one.database}, answers within ${one.database_ms ?? 0} ms`], ["Schema", one.schema], ["Clock", format.clock(one.time)]]} />
      ${(one.warnings ?? []).map((/** @type {any} */ warning) => html`<div class="error" key=${warning.text}><strong>${warning.text}</strong><p>${warning.remedy}</p></div>`)}<//>`}
    <${Card} title="You"><${Facts} rows=${[["Name", store.who?.name], ["Role", store.who?.role], ["Tenants", (store.who?.tenants ?? []).join(", ")], ["Token", store.who?.token && html`<code>${store.who.token}</code>`]]} /><//>
    <${Card} title="Settings"><p>Settings are read when a server starts: <code>berth config show</code> prints them with where each comes from.</p><//>`;
}
