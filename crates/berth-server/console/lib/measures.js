// What the map can be coloured by. A measure gives each node a share from 0 to 1, or a class, and the
// words for it.

import * as format from "./format.js";

/** @typedef {{ share?: number, tone?: string, text: string }} Reading */
/** @typedef {{ name: string, low: string, high: string, classes?: [string, string][], read: (node: any, context: any) => Reading }} Measure */

const DAY_S = 86_400;

/** @param {any} node @param {string} key @param {(value: number) => string} show @returns {Reading} */
function use(node, key, show) {
  const most = node.limits[key];
  const used = node.used[key];
  return most > 0 ? { share: used / most, text: `${show(used)} of ${show(most)}` } : { tone: "none", text: "capacity unknown" };
}

/** @type {Record<string, Measure>} */
export const MEASURES = {
  memory: { name: "Memory", low: "free", high: "full", read: (node) => use(node, "memory_mib", format.mib) },
  cpu: { name: "CPU", low: "free", high: "full", read: (node) => use(node, "cpu_milli", format.cpu) },
  disk: { name: "Disk", low: "free", high: "full", read: (node) => use(node, "disk_mib", format.mib) },
  pressure: {
    name: "Memory pressure", low: "none", high: "above the watermark",
    read: (node) => {
      const memory = node.account?.memory;
      if (!memory) return { tone: "none", text: "unknown" };
      const wanted = memory.system + memory.other + memory.reserved + memory.buffer + memory.capacity_pressure - memory.pressure_accounted_for;
      const room = Math.max(1, memory.total);
      const over = Math.max(0, wanted - memory.watermark);
      return { share: over > 0 ? Math.min(1, 0.6 + over / room) : Math.max(0, (0.5 * wanted) / Math.max(1, memory.watermark)), text: over > 0 ? `${format.mib(over)} above the watermark` : `${format.mib(memory.capacity_pressure)} wanted, below the watermark` };
    },
  },
  platform: {
    name: "Platform age", low: "new", high: "a year old",
    read: (node) => {
      const built = node.facts.platform?.built_at;
      if (!built) return { tone: "none", text: "unknown" };
      const days = (Date.now() / 1000 - built) / DAY_S;
      return { share: Math.min(1, days / 365), text: `${node.facts.platform.version}, ${Math.round(days)} days old` };
    },
  },
  reboot: {
    name: "Days to reboot", low: "a month", high: "now",
    read: (node) => {
      const next = node.facts.next_reboot;
      if (!next) return { tone: "none", text: "none planned" };
      const days = (next - Date.now() / 1000) / DAY_S;
      return { share: Math.max(0, Math.min(1, 1 - days / 30)), text: days < 0 ? "missed" : `in ${format.duration(days * DAY_S)}` };
    },
  },
  kind: {
    name: "Capacity kind", low: "", high: "", classes: [["on-demand", "c1"], ["spot", "c2"]],
    read: (node) => ({ tone: node.facts.capacity_type === "spot" ? "c2" : "c1", text: node.facts.capacity_type }),
  },
  emptied: {
    name: "Can be emptied", low: "", high: "", classes: [["can be emptied", "c1"], ["cannot", "c4"], ["not known", "none"]],
    read: (node) => {
      if (!node.evacuation) return { tone: "none", text: "not known" };
      return { tone: node.evacuation.can_be_emptied ? "c1" : "c4", text: node.evacuation.message };
    },
  },
  state: {
    name: "State", low: "", high: "",
    classes: [["active", "c1"], ["cordoned", "c3"], ["draining", "c2"], ["degraded, lost", "c4"], ["joining", "none"]],
    read: (node) => {
      const state = node.facts.state;
      const tones = { active: "c1", cordoned: "c3", draining: "c2", degraded: "c4", lost: "c4" };
      return { tone: tones[/** @type {keyof typeof tones} */ (state)] ?? "none", text: node.state_message ?? state };
    },
  },
  count: {
    name: "Instances", low: "none", high: "most",
    read: (node, context) => ({ share: node.instances / Math.max(1, context.most), text: `${node.instances} instances` }),
  },
  owned: {
    name: "Of one tenant or workload", low: "none", high: "most",
    read: (node, context) => {
      const here = context.owned?.get(node.facts.id) ?? 0;
      return here === 0 ? { tone: "none", text: "none here" } : { share: 0.25 + (0.75 * here) / Math.max(1, context.ownedMost), text: `${here} here` };
    },
  },
};
