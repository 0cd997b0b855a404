// The form of a placement, as the request that it stands for, as a command and as curl; and what a fix
// does to it.

import { amounts, readMib } from "./format.js";

/** @typedef {Record<string, any>} Form */

/** @type {Form} */
export const EMPTY = {
  tenant: "", name: "", count: "1", cpu: "2", memory: "4GiB", disk: "", bandwidth: "", capacity: "", where: "", traits: "", tags: "",
  affinity: "", image: "", workload: "", priority: "", near: "", far: "", mode: "all_or_nothing",
};

/** Words with commas or spaces between. @param {string} text */
const words = (text) => text.split(/[\s,]+/).filter(Boolean);

/** `key=value` pairs; a key alone is true. @param {string} text @param {any} alone */
const pairs = (text, alone) => Object.fromEntries(words(text).map((word) => {
  const [key, ...value] = word.split("=");
  return [key, value.length ? value.join("=") : alone];
}));

/** A hint of locality: an instance's id, or a tag. @param {string} text */
const hints = (text) => words(text).map((word) => (/^[0-9a-f-]{36}$/i.test(word) ? { instance: word } : { tag: [word.split("=")[0], word.split("=").slice(1).join("=")] }));

/**
 * What is wrong with the form before the server is asked.
 * @param {Form} form @returns {Record<string, string>}
 */
export function check(form) {
  /** @type {Record<string, string>} */
  const wrong = {};
  if (readMib(form.memory) === undefined) wrong.memory = "an amount such as 4GiB or 512MiB";
  if (form.disk && readMib(form.disk) === undefined) wrong.disk = "an amount such as 20GiB";
  if (!(Number(form.cpu) >= 0) || form.cpu === "") wrong.cpu = "a number of cores, such as 2 or 0.5";
  if (!(Number(form.count) >= 1)) wrong.count = "1 to 1000";
  return wrong;
}

/** The body of `POST /v1/placements`. @param {Form} form */
export function body(form) {
  /** @type {Record<string, any>} */
  const resources = { cpu_milli: Math.round(Number(form.cpu) * 1000), memory_mib: readMib(form.memory) };
  if (form.disk) resources.disk_mib = readMib(form.disk);
  if (form.bandwidth) resources.bandwidth_mbps = Number(form.bandwidth);
  /** @type {Record<string, any>} */
  const instance = { resources };
  if (Number(form.count) > 1) instance.count = Number(form.count);
  for (const key of ["name", "image", "workload"]) if (form[key].trim()) instance[key] = form[key].trim();
  if (form.capacity) instance.capacity_type = form.capacity;
  if (form.where.trim()) instance.where = form.where.trim();
  if (form.traits.trim()) instance.traits = pairs(form.traits, true);
  if (form.tags.trim()) instance.tags = pairs(form.tags, "");
  if (form.affinity.trim()) instance.affinity = words(form.affinity);
  if (form.priority) instance.priority = Number(form.priority);
  const near = hints(form.near);
  const far = hints(form.far);
  if (near.length || far.length) instance.locality = { ...(near.length && { near }), ...(far.length && { far }) };
  /** @type {Record<string, any>} */
  const request = { instances: [instance] };
  if (form.tenant.trim()) request.tenant = form.tenant.trim();
  if (form.mode !== "all_or_nothing") request.mode = form.mode;
  return request;
}

/** A word of a shell. @param {string} text */
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The same as a command. @param {Form} form */
export function command(form) {
  const parts = ["berth place"];
  const add = (/** @type {string} */ flag, /** @type {any} */ value) => value && parts.push(`--${flag} ${quoted(String(value))}`);
  add("tenant", form.tenant.trim());
  add("name", form.name.trim());
  if (Number(form.count) > 1) add("count", form.count);
  add("cpu", form.cpu);
  add("memory", form.memory.replaceAll(" ", ""));
  add("disk", form.disk.replaceAll(" ", ""));
  add("bandwidth", form.bandwidth && `${form.bandwidth}Mbit`);
  add("capacity", form.capacity);
  add("where", form.where.trim());
  words(form.traits).forEach((word) => add("trait", word));
  words(form.tags).forEach((word) => add("tag", word));
  words(form.affinity).forEach((word) => add("affinity", word));
  words(form.near).forEach((word) => add("near", word));
  words(form.far).forEach((word) => add("far", word));
  add("image", form.image.trim());
  add("workload", form.workload.trim());
  add("priority", form.priority);
  if (form.mode === "wait") parts.push("--wait");
  if (form.mode === "best_effort") parts.push("--best-effort");
  return parts.join(" \\\n  ");
}

/** The same with curl. @param {Form} form */
export function curl(form) {
  return `curl -X POST ${window.location.origin}/v1/placements \\\n  -H "Authorization: Bearer $BERTH_TOKEN" -H 'Content-Type: application/json' \\\n  -d ${quoted(JSON.stringify(body(form)))}`;
}

/** Memory as the form has it. @param {number} mib */
const asMemory = (mib) => (mib % 1024 === 0 ? `${mib / 1024}GiB` : `${mib}MiB`);

/**
 * What a fix changes in the form; undefined if it is not about the request.
 * @param {any} fix @param {Form} form @returns {Partial<Form> | undefined}
 */
export function apply(fix, form) {
  if (fix.kind === "shrink") {
    const { cpu_milli, memory_mib, disk_mib, bandwidth_mbps } = fix.resources;
    return { cpu: String(cpu_milli / 1000), memory: asMemory(memory_mib), disk: asMemory(disk_mib), bandwidth: bandwidth_mbps ? String(bandwidth_mbps) : "" };
  }
  if (fix.kind === "fewer" || fix.kind === "count") return { count: String(fix.count) };
  if (fix.kind === "relax") return relax(fix.change, form);
  if (fix.kind === "combined") {
    // Each change is made to what the one before left.
    let next = form;
    for (const one of fix.changes) {
      const changes = apply(one, next);
      if (!changes) return undefined;
      next = { ...next, ...changes };
    }
    return next;
  }
  return undefined;
}

/** Parts of a selector that `and` joins outside of brackets. @param {string} text */
function conjuncts(text) {
  const parts = [""];
  let depth = 0;
  for (const token of text.split(/(\s+and\s+|[()])/i)) {
    if (token === "(") depth += 1;
    if (token === ")") depth -= 1;
    if (depth === 0 && /^\s+and\s+$/i.test(token)) parts.push("");
    else parts[parts.length - 1] += token;
  }
  return parts.map((part) => part.trim());
}

/** A change in the words of the API, made to the form. @param {string} change @param {Form} form @returns {Partial<Form> | undefined} */
function relax(change, form) {
  const same = (/** @type {string} */ one, /** @type {string} */ other) => one.replace(/\s+/g, "") === other.replace(/\s+/g, "");
  const without = (/** @type {string} */ text, /** @type {string} */ gone) => {
    const kept = words(text).filter((word) => word !== gone && word.split("=")[0] !== gone);
    return kept.length < words(text).length ? kept.join(" ") : undefined;
  };
  const [, place] = /^drop where (.*)$/.exec(change) ?? [];
  if (place) {
    if (same(place, form.where)) return { where: "" };
    const parts = conjuncts(form.where);
    const kept = parts.filter((part) => !same(part, place));
    return kept.length < parts.length ? { where: kept.join(" and ") } : undefined;
  }
  const [, dropped] = /^drop trait (.*)$/.exec(change) ?? [];
  if (dropped) {
    const traits = without(form.traits, dropped);
    return traits === undefined ? undefined : { traits };
  }
  const [, asked] = /^ask for trait (.*)$/.exec(change) ?? [];
  if (asked) return { traits: `${form.traits} ${asked.replace(/=true$/, "")}`.trim() };
  const [, rule] = /^make (.*) soft with ~, or drop it$/.exec(change) ?? [];
  if (rule) {
    const affinity = without(form.affinity, rule);
    return affinity === undefined ? undefined : { affinity };
  }
  if (change.startsWith("drop capacity_type")) return { capacity: "" };
  return undefined;
}

/** A fix in words. @param {any} fix @returns {string} */
export function fixText(fix) {
  const at = fix.node ? ` (then ${fix.node} takes it)` : "";
  switch (fix.kind) {
    case "shrink": return `ask for ${amounts(fix.resources)}${at}`;
    case "relax": return `${fix.change}${at}`;
    case "fewer":
    case "count": return `ask for ${fix.count} of ${fix.of}`;
    case "free": return `release ${(fix.names?.length ? fix.names : fix.instances).join(", ")}${fix.node ? ` on ${fix.node}` : ""}`;
    case "mend": return `${fix.node ? `${fix.node}: ` : ""}${fix.remedy}`;
    case "add_node": return `add ${fix.count > 1 ? `${fix.count} nodes` : "a node"} with at least ${amounts(fix.shape)}`;
    case "change_pool": return fix.to ? `take pool ${fix.to} instead of ${fix.pool}` : `do without pool ${fix.pool}`;
    case "raise_quota": return `raise the quota of ${fix.tenant} to ${Object.entries(fix.limits).map(([key, value]) => `${key} ${value}`).join(", ")}`;
    case "set_pool": return `give pool ${fix.pool} the range ${fix.range}`;
    case "combined": return fix.changes.map(fixText).join(", and ");
    default: return fix.kind;
  }
}
