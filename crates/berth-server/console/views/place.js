// Placing instances, with a dry run that follows the form.

import { html, useCallback, useEffect, useMemo, useRef, useRequest, useState, useTopics } from "../lib/view.js";
import { get, post, request as send } from "../lib/api.js";
import * as format from "../lib/format.js";
import { FleetMap } from "../lib/map.js";
import { MEASURES } from "../lib/measures.js";
import { Card, Code, DecisionLink, ErrorBox, Field, InstanceLink, NodeLink, PageHead } from "../lib/parts.js";
import { EMPTY, apply, body, check, command, curl, fixText } from "../lib/request.js";
import { SelectorInput } from "../lib/selector.js";
import { store } from "../lib/store.js";
import { Terms } from "./choice.js";

const NODES_MOST = 20_000;

/** The form as the URL has it, so that it can be shared. */
function fromUrl() {
  const query = new URLSearchParams(window.location.search);
  return Object.fromEntries(Object.entries(EMPTY).map(([key, value]) => [key, query.get(key) ?? value]));
}

/** A value that has not changed for a while. @template T @param {T} value @param {number} ms */
function useSettled(value, ms) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

export function Place() {
  useTopics("nodes-never");
  const [form, setForm] = useState(fromUrl);
  const set = useCallback((/** @type {Record<string, string>} */ changes) => setForm((/** @type {any} */ old) => ({ ...old, ...changes })), []);
  const wrong = useMemo(() => check(form), [form]);
  const settled = useSettled(form, 300);
  const [step, setStep] = useState(-1);
  useEffect(() => {
    const changed = Object.entries(settled).filter(([key, value]) => value !== EMPTY[key]);
    const text = new URLSearchParams(/** @type {[string, string][]} */ (changed)).toString();
    history.replaceState(null, "", window.location.pathname + (text && `?${text}`));
  }, [settled]);
  const needsTenant = !store.isTenant && !form.tenant.trim();
  const ready = Object.keys(check(settled)).length === 0 && (store.isTenant || settled.tenant.trim());
  const dry = useDryRun(settled, Boolean(ready));
  return html`<${PageHead} title="Place" note="While you type, the answer is what the server would decide now. Nothing is claimed before you place." />
    <div class="split form-left">
      <div><${Card} title="Request"><${RequestForm} form=${form} set=${set} wrong=${wrong} serverError=${dry.error} /><//></div>
      <div>
        <${Outcome} dry=${dry} form=${form} set=${set} disabled=${needsTenant || Object.keys(wrong).length > 0} hint=${needsTenant ? "Name a tenant to begin." : ""} />
        ${store.seesFleet && dry.verdicts && html`<${Funnel} verdicts=${dry.verdicts} step=${step} setStep=${setStep} />`}
        ${Object.keys(wrong).length === 0 && html`<${Card} title="The same without the console"><${Code} label="Command" text=${command(form)} /><${Code} label="curl" text=${curl(form)} /><//>`}
      </div>
    </div>`;
}

/** What the server would decide, and each node's verdict. @param {any} form @param {boolean} ready */
function useDryRun(form, ready) {
  const asked = JSON.stringify(body(form));
  const answer = useRequest(async (signal) => (ready ? post("/v1/placements", { ...JSON.parse(asked), mode: form.mode === "wait" ? "all_or_nothing" : form.mode, dry_run: true, explain: "full" }, signal) : undefined), [asked, ready], { topics: ["instance", "node"], everyMs: 4000 });
  const verdicts = useRequest(async (signal) => (ready && store.seesFleet ? explainAll(JSON.parse(asked), signal) : undefined), [asked, ready]);
  return { placed: answer.data, error: answer.error, loading: answer.loading, verdicts: verdicts.data };
}

/** @param {any} asked @param {AbortSignal} signal */
async function explainAll(asked, signal) {
  let cursor;
  let first;
  /** @type {any[]} */
  const items = [];
  do {
    const page = await send("POST", "/v1/placements/explain", { query: { limit: 1000, cursor }, body: asked, signal });
    first ??= page;
    items.push(...page.items);
    cursor = page.next;
  } while (cursor && items.length < NODES_MOST);
  return { ...first, items };
}

/** @param {{ form: any, set: (changes: any) => void, wrong: Record<string, string>, serverError: any }} props */
function RequestForm({ form, set, wrong, serverError }) {
  const fields = Object.fromEntries((serverError?.body?.fields ?? []).map((/** @type {any} */ field) => [field.field.split(".").at(-1), field.accepted]));
  const field = (/** @type {string} */ key, /** @type {string} */ label, /** @type {any} */ more = {}) =>
    html`<${Field} key=${key} id=${`place-${key}`} label=${label} value=${form[key]} error=${wrong[key] ?? fields[key]} ...${more} onInput=${(/** @type {string} */ text) => set({ [key]: text })} />`;
  const tenants = useRequest((signal) => get("/v1/quotas", { limit: 1000 }, signal), []);
  const known = (tenants.data?.items ?? []).map((/** @type {any} */ one) => one.tenant);
  return html`<form class="form-grid" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <datalist id="tenants">${known.map((/** @type {string} */ one) => html`<option key=${one} value=${one} />`)}</datalist>
    ${!store.isTenant && field("tenant", "Tenant", { list: "tenants", required: true })}
    ${field("name", "Name")}
    ${field("cpu", "CPU cores")}${field("memory", "Memory")}
    ${field("disk", "Disk", { placeholder: "4GiB" })}${field("bandwidth", "Mbit/s", { placeholder: "0" })}
    ${field("count", "How many", { type: "number" })}
    ${field("mode", "If not all fit", { options: [["all_or_nothing", "none"], ["best_effort", "as many as fit"], ["wait", "wait for room"]] })}
    ${field("capacity", "Capacity", { options: [["", "any"], ["on-demand", "on-demand"], ["spot", "spot"]] })}
    ${field("image", "Image")}
    <div class="whole">${store.seesFleet ? html`<${SelectorInput} id="place-where" label="Only nodes where" value=${form.where} error=${fields.where ? { message: fields.where } : undefined} onInput=${(/** @type {string} */ where) => set({ where })} />` : ""}</div>
    ${field("traits", "Traits", { placeholder: "ssd cpu=amd" })}${field("tags", "Tags", { placeholder: "role=web" })}
    ${field("affinity", "Affinity rules", { placeholder: "role!=web" })}${field("priority", "Priority", { type: "number" })}
    ${field("near", "Near", { placeholder: "role=db, or an instance" })}${field("far", "Far from", { placeholder: "role=web" })}
    ${field("workload", "Workload")}
  </form>`;
}

/** @param {{ dry: any, form: any, set: (changes: any) => void, disabled: boolean, hint: string }} props */
function Outcome({ dry, form, set, disabled, hint }) {
  const [done, setDone] = useState(/** @type {any} */ (undefined));
  const [error, setError] = useState(/** @type {any} */ (undefined));
  const [busy, setBusy] = useState(false);
  useEffect(() => setError(undefined), [form]);
  // A retry after a lost answer must not place twice.
  const key = useRef("");
  const asked = JSON.stringify(body(form));
  useEffect(() => {
    key.current = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
  }, [asked, done]);
  const place = async () => {
    setBusy(true);
    setError(undefined);
    try {
      setDone(await send("POST", "/v1/placements", { body: JSON.parse(asked), headers: { "Idempotency-Key": key.current } }));
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  const { placed } = dry;
  const refusal = dry.error?.body?.refusals?.[0];
  const waits = form.mode === "wait";
  return html`<${Card} class="outcome" title=${refusal ? "It would be refused" : placed ? "It would be placed" : "Outcome"}
      tools=${html`<button class="primary" disabled=${disabled || busy || (!placed && !(waits && refusal))} onClick=${place}>${busy ? "Placing…" : refusal && waits ? "Wait for room" : "Place"}</button>`}>
    <div aria-live="polite">
      ${hint && html`<p class="muted">${hint}</p>`}
      ${done && html`<${Done} done=${done} />`}
      <${ErrorBox} error=${error} />
      ${dry.error && !refusal && html`<${ErrorBox} error=${dry.error} />`}
      ${dry.error && html`<${Fixes} fixes=${refusal?.fixes ?? dry.error.body?.fixes ?? []} form=${form} set=${set} refusal=${refusal} problem=${dry.error.body} />`}
      ${placed && html`<${Granted} placed=${placed} />`}
    </div>
  <//>`;
}

/** @param {{ done: any }} props */
function Done({ done }) {
  if (done.state === "waiting") return html`<p class="note-box good">It waits for room, at place ${done.position} of the <a href="/ui/queue">queue</a>.</p>`;
  const instances = done.instances ?? done.placed?.instances ?? [];
  return html`<div class="note-box good" role="status"><strong>Placed.</strong> ${instances.slice(0, 6).map((/** @type {any} */ one, /** @type {number} */ i) => html`${i > 0 && ", "}<span key=${one.instance}><${InstanceLink} id=${one.instance} name=${one.name} />${one.node && html` on ${store.seesFleet ? html`<${NodeLink} id=${one.node} />` : one.node}`}</span>`)}
    ${instances.length > 6 && ` and ${instances.length - 6} more`}${done.decision && html`; decision <${DecisionLink} id=${done.decision} />`}</div>`;
}

/** @param {{ placed: any }} props */
function Granted({ placed }) {
  const nodes = [...new Set(placed.instances.map((/** @type {any} */ one) => one.node).filter(Boolean))];
  const others = useMemo(() => (placed.explanation?.table ?? []).filter((/** @type {any} */ one) => one.kind === "scored")
    .sort((/** @type {any} */ one, /** @type {any} */ other) => other.total - one.total).slice(0, 5), [placed]);
  const { winner, runner_up: second } = placed.explanation ?? {};
  const best = winner ? [winner, ...[second, ...others].filter((one, i, all) => one && one.node !== winner.node && all.findIndex((other) => other?.node === one.node) === i).slice(0, 4)] : [];
  return html`<p><strong>${placed.instances.length} ${placed.instances.length === 1 ? "instance" : "instances"}</strong>${nodes.length > 0 && html` on ${nodes.slice(0, 8).map((node, i) => html`${i > 0 && ", "}<${NodeLink} key=${node} id=${node} />`)}`}${nodes.length > 8 && ` and ${nodes.length - 8} more`}</p>
    ${placed.refusals?.length > 0 && html`<p class="muted">Not all: ${placed.refusals[0].remedy}</p>`}
    ${best.length > 0 && html`<h3>Why the first goes to ${winner.node}</h3><${Terms} best=${best} />`}`;
}

/** @param {{ fixes: any[], form: any, set: (changes: any) => void, refusal: any, problem: any }} props */
export function Fixes({ fixes, form, set, refusal, problem }) {
  return html`${refusal && html`<div class="error" role="alert"><strong>${refusal.code}</strong><p>${problem?.detail ?? refusal.remedy}</p>
      <p>${refusal.waiting_may_help ? "Waiting may help." : "Waiting does not help."}</p></div>
    ${store.seesFleet && html`<h3>Nearest misses</h3><ul>${refusal.nearest.map((/** @type {any} */ miss, /** @type {number} */ i) => html`<li key=${i}><strong>${miss.filter}</strong>${miss.node && html` on <${NodeLink} id=${miss.node} />`}: ${format.evidence(miss.evidence)}</li>`)}</ul>`}`}
    ${fixes.length > 0 && html`<h3>What would help</h3><ul class="fixes">${fixes.map((fix, i) => {
      const changes = form && apply(fix, form);
      return html`<li key=${i}><span>${fixText(fix)}</span>${changes && html`<button class="primary" onClick=${() => set(changes)}>Apply</button>`}</li>`;
    })}</ul>`}`;
}

/** What remains after each filter, step by step. @param {{ verdicts: any, step: number, setStep: (step: number) => void }} props */
function Funnel({ verdicts, step, setStep }) {
  const steps = useMemo(() => {
    const removed = new Map(verdicts.counts.map((/** @type {any} */ one) => [one.filter, one.removed]));
    let left = verdicts.nodes;
    const found = [{ filter: "every node", removed: 0, left }];
    for (const filter of verdicts.filters) {
      if (!removed.get(filter)) continue;
      left -= removed.get(filter);
      found.push({ filter, removed: removed.get(filter), left });
    }
    return found;
  }, [verdicts]);
  const at = step < 0 || step >= steps.length ? steps.length - 1 : step;
  const { reading, dimmed, marked } = useMemo(() => funnelMap(verdicts, steps, at), [verdicts, steps, at]);
  return html`<${Card} title="What each filter leaves" tools=${html`<button class="quiet" disabled=${at === 0} onClick=${() => setStep(at - 1)}>Back</button><button class="quiet" disabled=${at === steps.length - 1} onClick=${() => setStep(at + 1)}>Next filter</button>`}>
    <ol class="funnel">${steps.map((one, i) => html`<li key=${one.filter}><button aria-pressed=${i === at} onClick=${() => setStep(i)}>
      <span>${one.filter}</span><span class="bar" aria-hidden="true"><i class="c1" style=${{ width: `${(100 * one.left) / Math.max(1, verdicts.nodes)}%` }}></i></span>
      <span>${one.left}${one.removed > 0 && html` <small class="muted">−${one.removed}</small>`}</span></button></li>`)}</ol>
    <div class="spaced"><${FleetMap} label="Nodes that remain" reading=${reading} dimmed=${dimmed} marked=${marked} version=${at} />
    <div class="legend"><span>worst score</span><i class="ramp good"></i><span>best score</span><span class="grow"></span><span>outlined: the winner</span></div></div><//>`;
}

/** @param {any} verdicts @param {{ filter: string, left: number }[]} steps @param {number} at */
function funnelMap(verdicts, steps, at) {
  const passed = new Set(steps.slice(0, at + 1).map((one) => one.filter));
  /** @type {Map<string, any>} */
  const byNode = new Map(verdicts.items.map((/** @type {any} */ one) => [one.node, one]));
  const totals = verdicts.items.filter((/** @type {any} */ one) => one.kind === "scored").map((/** @type {any} */ one) => one.total);
  const low = Math.min(...totals);
  const range = Math.max(1, Math.max(...totals) - low);
  const reading = (/** @type {any} */ node) => {
    const verdict = byNode.get(node.facts.id);
    if (!verdict) return { tone: "none", text: "not looked at" };
    if (verdict.kind === "scored") return { share: 0.08 + 0.42 * ((verdict.total - low) / range), text: `${format.points(verdict.total)} points` };
    const memory = MEASURES.memory.read(node, {});
    return { tone: "none", text: `${verdict.filter}: ${format.evidence(verdict.evidence)}`, share: passed.has(verdict.filter) ? undefined : Math.min(0.1, memory.share ?? 0) };
  };
  const dimmed = (/** @type {string} */ id) => {
    const verdict = byNode.get(id);
    return verdict?.kind === "removed" && passed.has(verdict.filter);
  };
  const marked = new Map(verdicts.winner && at === steps.length - 1 ? [[verdicts.winner.node, "the winner"]] : []);
  return { reading, dimmed, marked };
}
