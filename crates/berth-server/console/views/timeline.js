// Events as people read them.

import { html } from "../lib/view.js";
import * as format from "../lib/format.js";
import { Ago, Chip, InstanceLink, NodeLink } from "../lib/parts.js";

/** One event in a line. @param {any} event */
export function sentence(event) {
  const { kind, body } = event;
  const who = body.instance_id && html`<${InstanceLink} id=${body.instance_id} name=${body.name} />`;
  const node = body.node_id && html`<${NodeLink} id=${body.node_id} />`;
  switch (kind) {
    case "instance.allocated":
      return html`${who} was given ${node}${body.role && body.role !== "primary" ? ` as ${body.role.replace("_", " ")}` : ""}, ${format.amounts(body.resources)}`;
    case "instance.state":
      return html`${who} is <${Chip} state=${body.state} /> on ${node}`;
    case "instance.permit":
      return html`${who} may use ${format.amounts(body.permit?.granted)}`;
    case "instance.resized":
      return html`${who} is charged ${format.amounts(body.resources)}`;
    case "instance.released":
      return html`${who} left ${node}: ${body.reason ?? "released"}`;
    case "lease.expired":
      return html`the lease of ${who} on ${node} ended`;
    case "node.state":
      return html`${node} is <${Chip} state=${body.state ?? ""} /> ${body.reason ?? ""}`;
    case "node.changed":
      return html`facts of ${body.facts ? html`<${NodeLink} id=${body.facts.id} />` : node} changed`;
    case "workload.changed":
      return html`workload ${body.tenant}/${body.name} ${body.workload ? `is at revision ${body.revision}` : "was removed"}`;
    case "policy.changed":
      return "another policy is active";
    default:
      return html`<code>${JSON.stringify(body).slice(0, 160)}</code>`;
  }
}

/** @param {{ events: any[] | undefined, empty?: string }} props */
export function EventList({ events, empty }) {
  if (!events) return html`<p class="muted">Reading…</p>`;
  if (events.length === 0) return html`<p class="muted">${empty ?? "Nothing happened."}</p>`;
  return html`<ol class="timeline">${events.map((event) => html`<li key=${event.seq}>${sentence(event)} <span class="muted">· <${Ago} at=${event.at} /></span></li>`)}</ol>`;
}
