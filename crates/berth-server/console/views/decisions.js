// Decisions: the list, and one of them as a grid of nodes and rules, with its terms and its replay.

import { html, useMemo, useRequest, useState, useTopics } from "../lib/view.js";
import { get, path } from "../lib/api.js";
import * as format from "../lib/format.js";
import { Ago, Card, Chip, Code, DecisionLink, ErrorBox, Facts, Field, InstanceLink, NodeLink, PageHead } from "../lib/parts.js";
import { location, setQuery, to } from "../lib/router.js";
import { store } from "../lib/store.js";
import { Table } from "../lib/table.js";
import { Choice, WhenAsked } from "./choice.js";
import { Fixes } from "./place.js";

/** @type {import("../lib/table.js").Column[]} */
const COLUMNS = [
  { name: "Decision", value: (one) => one.id, show: (one) => html`<${DecisionLink} id=${one.id} />` },
  { name: "When", value: (one) => one.at, show: (one) => html`<${Ago} at=${one.at} />` },
  { name: "Tenant", value: (one) => one.tenant },
  { name: "Outcome", value: (one) => one.outcome, show: (one) => html`<${Chip} state=${one.outcome} />` },
  { name: "Instances", value: (one) => one.asked, number: true },
  { name: "Where, or why not", value: (one) => one.code ?? one.placed?.map((/** @type {any} */ at) => at.node ?? "").join(" ") ?? "", show: (one) => (one.code ? html`<strong>${one.code}</strong>` : html`<span class="muted">${(one.placed ?? []).slice(0, 3).map((/** @type {any} */ at) => at.node ?? "a node").join(", ")}${(one.placed?.length ?? 0) > 3 ? ` and ${one.placed.length - 3} more` : ""}</span>`) },
  { name: "Policy", value: (one) => one.policy, show: (one) => html`<code>${one.policy.slice(0, 8)}</code>` },
  { name: "Request", value: (one) => one.request_id, show: (one) => html`<code>${format.short(one.request_id)}</code>` },
];

/** @param {{ rest: string[] }} props */
export function Decisions({ rest }) {
  return rest[0] ? html`<${Decision} id=${rest[0]} />` : html`<${List} />`;
}

function List() {
  useTopics("location");
  const { query } = location();
  const wanted = { tenant: query.get("tenant") ?? "", outcome: query.get("outcome") ?? "", code: query.get("code") ?? "" };
  const found = useRequest((signal) => get("/v1/decisions", { ...wanted, limit: 500 }, signal), Object.values(wanted), { topics: ["instance"], everyMs: 4000 });
  return html`<${PageHead} title="Decisions" note="The newest 500. Each can be derived again from the log, and must come out the same." />
    <${Card}><div class="filter-row">
      ${store.seesFleet && html`<${Field} label="Tenant" value=${wanted.tenant} placeholder="any" onInput=${(/** @type {string} */ tenant) => setQuery({ tenant })} />`}
      <${Field} label="Outcome" value=${wanted.outcome} options=${[["", "any"], ["granted", "granted"], ["refused", "refused"]]} onInput=${(/** @type {string} */ outcome) => setQuery({ outcome })} />
      <${Field} label="Code" value=${wanted.code} placeholder="no_capacity_memory" onInput=${(/** @type {string} */ code) => setQuery({ code })} /></div>
    <${ErrorBox} error=${found.error} />
    <${Table} name="Decisions" columns=${COLUMNS} rows=${found.data?.items} rowKey=${(/** @type {any} */ one) => one.id} /><//>`;
}

/** @param {{ id: string }} props */
function Decision({ id }) {
  const url = `/v1/decisions/${path(id)}`;
  const found = useRequest((signal) => get(url, {}, signal), [id]);
  const one = found.data;
  const instances = one?.placed ?? [];
  const [chosen, setChosen] = useState("");
  const instance = chosen || instances[0]?.instance || one?.refusals?.[0]?.instance;
  const head = [["Decisions", to("decisions")]];
  if (!one) return html`<${PageHead} title=${id} crumbs=${head} /><${ErrorBox} error=${found.error} />`;
  return html`<${PageHead} title=${html`<code class="title">${id}</code>`} crumbs=${head}
      note=${html`<${Chip} state=${one.outcome} /> for ${one.tenant}, <${Ago} at=${one.at} />`} />
    <div class="columns">
      <${Card} title="Receipt"><${Facts} rows=${[
        ["Request", html`<code>${one.request_id}</code>`], ["Tenant", one.tenant], ["When", format.clock(one.at)],
        ["Outcome", `${one.outcome}${one.code ? `: ${one.code}` : ""}`], ["Reason", one.reason], ["Instances", one.asked],
        ["Policy", store.seesFleet ? html`<a href=${to("policy", one.policy)}><code>${one.policy}</code></a>` : html`<code>${one.policy}</code>`], ["Fleet as of", `event ${one.fleet_version}`],
        ["Preempted", (one.preempted ?? []).join(", ")],
      ]} />${store.seesFleet && html`<${Replay} url=${url} />`}<//>
      <${Card} title="What was asked for"><${Code} label="Request" text=${JSON.stringify(one.requests?.length === 1 ? one.requests[0] : one.requests, null, 2)} /><//>
    </div>
    ${one.outcome === "refused" && html`<${Card} class="spaced" title="Why not"><${Fixes} fixes=${one.refusals?.[0]?.fixes ?? one.fixes ?? []} refusal=${one.refusals?.[0]} /><//>`}
    ${instances.length > 0 && html`<${Card} class="spaced" title=${`Placed · ${instances.length}`}><${Table} compact name="Placed instances" columns=${PLACED} rows=${instances} rowKey=${(/** @type {any} */ at) => at.instance} /><//>`}
    <${Card} class="spaced" title="Nodes and rules" tools=${instances.length > 1 && html`<${Field} label="Instance" value=${instance} onInput=${setChosen} options=${instances.map((/** @type {any} */ at) => [at.instance, at.name ?? format.short(at.instance)])} />`}>
      <${WhenAsked} events=${one.fleet_version}>${() => html`<${Derived} url=${url} instance=${instance} />`}<//>
    <//>`;
}

/** @type {import("../lib/table.js").Column[]} */
const PLACED = [
  { name: "Instance", value: (at) => at.name ?? at.instance, show: (at) => html`<${InstanceLink} id=${at.instance} name=${at.name} />` },
  { name: "Node", value: (at) => at.node ?? "", show: (at) => html`<${NodeLink} id=${at.node} />` },
  { name: "Points", value: (at) => at.score, show: (at) => format.points(at.score), number: true },
];

/** @param {{ url: string }} props */
function Replay({ url }) {
  const [state, setState] = useState(/** @type {{ busy: boolean, data?: any, error?: any }} */ ({ busy: false }));
  const run = async () => {
    setState({ busy: true });
    try {
      setState({ busy: false, data: await get(`${url}/replay`) });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return html`<p><button onClick=${run} disabled=${state.busy}>${state.busy ? "Replaying…" : "Replay from the log"}</button></p>
    <${ErrorBox} error=${state.error} />
    <div role="status">${state.data && html`<div class=${state.data.outcome === "identical" ? "note-box good" : "note-box"}><${Chip} state=${state.data.outcome} /> ${state.data.note}</div>`}</div>`;
}

const GRID_NODES = 300;

/** @param {{ url: string, instance: string }} props */
function Derived({ url, instance }) {
  const found = useRequest((signal) => get(`${url}/explain`, { instance, limit: GRID_NODES }, signal), [url, instance]);
  const explanation = found.data?.explanation;
  if (found.error) return html`<${ErrorBox} error=${found.error} />`;
  if (!found.data) return html`<p class="muted" role="status">Deriving the decision from the log…</p>`;
  return html`<p class="muted">${found.data.note}</p>${explanation && html`<${Choice} of=${explanation} /><${Grid} of=${explanation} />`}`;
}

/** Each node with each filter, and each term of its points. @param {{ of: any }} props */
function Grid({ of }) {
  const [all, setAll] = useState(false);
  const { filters, scorers, rows } = useMemo(() => {
    const removing = new Set(of.items.flatMap((/** @type {any} */ one) => (one.kind === "removed" ? [one.filter, ...one.others.map((/** @type {any} */ other) => other[0])] : [])));
    const scored = of.items.filter((/** @type {any} */ one) => one.kind === "scored").sort((/** @type {any} */ one, /** @type {any} */ other) => other.total - one.total);
    const names = (scored[0]?.terms ?? []).map((/** @type {any} */ term) => term.scorer);
    const pointsOf = (/** @type {any} */ one, /** @type {number} */ i) => one.terms[i]?.points;
    return {
      filters: of.filters.filter((/** @type {string} */ filter) => all || removing.has(filter)),
      scorers: names.map((/** @type {string} */ name, /** @type {number} */ i) => ({ name, i })).filter((/** @type {any} */ { i }) => all || scored.some((/** @type {any} */ one) => pointsOf(one, i) !== pointsOf(scored[0], i))),
      rows: [...scored, ...of.items.filter((/** @type {any} */ one) => one.kind === "removed")],
    };
  }, [of, all]);
  if (rows.length === 0) return null;
  return html`<div class="table-tools spaced"><label class="check"><input type="checkbox" checked=${all} onChange=${(/** @type {any} */ event) => setAll(event.target.checked)} /> Also filters that every node passes, and terms that are the same for all</label>
      ${of.next && html`<span class="muted">The first ${of.items.length} of ${of.nodes} nodes.</span>`}</div>
    <div class="scroll verdict-scroll" tabindex="0" role="region" aria-label="Nodes and rules"><table class="verdicts plain">
    <thead><tr><th scope="col">Node</th>${filters.map((/** @type {string} */ filter) => html`<th key=${filter} scope="col" class="turned"><span>${filter}</span></th>`)}
      <th scope="col" class="number">Points</th>${scorers.map((/** @type {any} */ one) => html`<th key=${one.name} scope="col" class="turned"><span>${one.name}</span></th>`)}</tr></thead>
    <tbody>${rows.map((/** @type {any} */ row) => html`<tr key=${row.node}><th scope="row"><${NodeLink} id=${row.node} />${of.winner?.node === row.node && html` <span class="chip good">won</span>`}</th>
      ${filters.map((/** @type {string} */ filter) => html`<${Verdict} key=${filter} row=${row} filter=${filter} />`)}
      <td class="number">${row.kind === "scored" ? format.points(row.total) : html`<span class="muted">–</span>`}</td>
      ${scorers.map((/** @type {any} */ one) => html`<td key=${one.name} class="term">${row.kind === "scored" ? (row.terms[one.i].points / 1e6).toFixed(2) : ""}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** @param {{ row: any, filter: string }} props */
function Verdict({ row, filter }) {
  const other = row.kind === "removed" && (row.filter === filter ? row.evidence : row.others.find((/** @type {any} */ one) => one[0] === filter)?.[1]);
  if (!other) return html`<td class="mark pass" title=${`${filter}: passed`}>✓<span class="unseen">passed</span></td>`;
  const text = format.evidence(other);
  return html`<td class="mark fail" title=${`${filter}: ${text}`}>✕<span class="unseen">${text}</span></td>`;
}
