// What this tab knows of the fleet, kept current by one stream of events.
//
// An event that says all of a change is applied at once. Where it does not, the node is read again,
// many at a time. Facts that no event reports, such as heartbeats, come with a slow sweep. Everything
// that grows with time has a limit.

import { all, get, Problem } from "./api.js";

const EVENTS_KEPT = 500;
const INSTANCES_KEPT = 50_000;
const SAMPLES_KEPT = 2160;
const SAMPLE_MS = 5_000;
const REREAD_MS = 400;
const REREAD_NODES = 100;
const SWEEP_MS = 5_000;

/** @typedef {{ cpu_milli: number, memory_mib: number, disk_mib: number, bandwidth_mbps: number }} Amounts */
/** @typedef {{ node: string, amounts: Amounts }} Held */
/** @typedef {{ seq: number, at: string, kind: string, body: any }} FeedEvent */
/** @typedef {{ at: number, cpu: number, memory: number, disk: number, instances: number, granted: number, refused: number, waiting: number }} Sample */

const RESOURCES = /** @type {const} */ (["cpu_milli", "memory_mib", "disk_mib", "bandwidth_mbps"]);

class Store {
  constructor() {
    /** @type {Map<string, any>} */
    this.nodes = new Map();
    /** @type {FeedEvent[]} newest last */
    this.events = [];
    /** @type {Sample[]} oldest first */
    this.samples = [];
    /** @type {any} */
    this.who = undefined;
    /** @type {"starting" | "signed-out" | "loading" | "live" | "down"} */
    this.state = "starting";
    this.loaded = 0;
    this.eventsSeen = 0;
    /** When the newest event that was applied happened. */
    this.newest = "";
    /** The number of the newest event. */
    this.newestSeq = 0;
    this.waiting = 0;
    /** @type {Map<string, Set<() => void>>} */
    this.listeners = new Map();
    /** @type {Set<string>} */
    this.changed = new Set();
    /** @type {number | undefined} */
    this.frame = undefined;
    /** @type {Map<string, Held>} */
    this.held = new Map();
    /** @type {Set<string>} */
    this.stale = new Set();
    /** @type {EventSource | undefined} */
    this.source = undefined;
    /** @type {string | undefined} */
    this.sweepCursor = undefined;
    /** @type {ReturnType<typeof setInterval>[]} */
    this.timers = [];
    this.generation = 0;
    /** Nodes whose numbers changed since they were drawn. @type {Set<string>} */
    this.touched = new Set();
  }

  /** @param {string} topic @param {() => void} call @returns {() => void} ends it */
  subscribe(topic, call) {
    const calls = this.listeners.get(topic) ?? new Set();
    this.listeners.set(topic, calls.add(call));
    return () => calls.delete(call);
  }

  /** Tells who follows a topic, once a frame. @param {string} topic */
  notify(topic) {
    this.changed.add(topic);
    if (this.frame !== undefined) return;
    const tell = () => {
      this.frame = undefined;
      const topics = [...this.changed];
      this.changed.clear();
      for (const changed of topics) this.listeners.get(changed)?.forEach((call) => call());
    };
    // A hidden tab has no frames, and nobody who looks.
    this.frame = document.hidden ? window.setTimeout(tell, 250) : requestAnimationFrame(tell);
  }

  /** Whether the caller sees the fleet: a tenant sees only what is its own. */
  get seesFleet() {
    return ["admin", "operator", "viewer"].includes(this.who?.role);
  }
  get isTenant() {
    return this.who?.role === "tenant";
  }
  get mayRun() {
    return ["admin", "operator"].includes(this.who?.role);
  }
  get mayPlace() {
    return this.mayRun || this.isTenant;
  }

  /** Learns who calls, reads the fleet and follows it. */
  async start() {
    this.stop();
    const generation = ++this.generation;
    try {
      this.who = await get("/v1/whoami");
      this.setState("loading");
      await this.load(generation);
    } catch (error) {
      if (generation !== this.generation) return;
      if (error instanceof Problem && error.status === 401) {
        this.signedOut();
      } else {
        this.setState("down");
        setTimeout(() => generation === this.generation && this.start(), 2000);
      }
    }
  }

  /** @param {number} generation */
  async load(generation) {
    // The stream begins before the lists are read, so that nothing between them is missed.
    const newest = await get("/v1/events", { order: "newest", limit: 1 });
    const after = newest.items[0]?.seq ?? 0;
    this.newestSeq = after;
    const nodes = new Map();
    const first = this.nodes.size === 0;
    this.stale.clear();
    this.held.clear();
    if (this.seesFleet) {
      await all("/v1/nodes", {}, undefined, {
        most: 200_000,
        onPage: (items) => {
          for (const node of items) {
            nodes.set(node.facts.id, node);
            if (first) this.nodes.set(node.facts.id, node);
          }
          this.loaded = nodes.size;
          if (first && generation === this.generation) this.notify("nodes");
        },
      });
    }
    if (generation !== this.generation) return;
    this.nodes = nodes;
    this.notify("layout");
    this.notify("nodes");
    this.open(after, generation);
    this.readWaiting();
    this.sample();
    this.timers.push(
      setInterval(() => this.readStale(), REREAD_MS),
      setInterval(() => this.sweep(), SWEEP_MS),
      setInterval(() => this.sample(), SAMPLE_MS),
    );
  }

  /** @param {number} after @param {number} generation */
  open(after, generation) {
    const source = new EventSource(`/v1/events/stream?after=${after}`);
    this.source = source;
    const kinds = EVENT_KINDS;
    for (const kind of kinds) {
      source.addEventListener(kind, (message) => this.apply(JSON.parse(/** @type {MessageEvent} */ (message).data)));
    }
    source.onopen = () => generation === this.generation && this.setState("live");
    source.onerror = () => {
      if (generation !== this.generation) return;
      this.setState("down");
      // A browser tries again by itself after a broken connection, but not after an answer that is an
      // error: the session may be over, or the log cut. Then everything is read again.
      if (source.readyState === EventSource.CLOSED) {
        source.close();
        setTimeout(() => generation === this.generation && this.start(), 1500);
      }
    };
  }

  stop() {
    this.source?.close();
    this.source = undefined;
    this.timers.forEach(clearInterval);
    this.timers = [];
  }

  signedOut() {
    this.stop();
    this.generation += 1;
    this.who = undefined;
    this.nodes = new Map();
    this.events = [];
    this.samples = [];
    this.setState("signed-out");
  }

  /** @param {Store["state"]} state */
  setState(state) {
    if (this.state === state) return;
    this.state = state;
    this.notify("state");
  }

  /** @param {FeedEvent} event */
  apply(event) {
    this.eventsSeen += 1;
    this.newest = event.at;
    this.newestSeq = event.seq;
    this.events.push(event);
    if (this.events.length > 2 * EVENTS_KEPT) this.events.splice(0, EVENTS_KEPT);
    const [noun] = event.kind.split(".");
    if (this.seesFleet) {
      if (noun === "instance" || noun === "claim") this.applyInstance(event);
      else if (noun === "node") this.applyNode(event);
    }
    this.notify("events");
    this.notify(noun);
  }

  /** @param {FeedEvent} event */
  applyInstance({ kind, body }) {
    const key = `${body.instance_id} ${body.role ?? "primary"}`;
    const node = this.nodes.get(body.node_id);
    const held = this.held.get(key);
    if (kind === "instance.allocated" && node) {
      this.add(node, body.resources, 1);
      node.instances += 1;
      this.keep(key, { node: body.node_id, amounts: body.resources });
    } else if (kind === "instance.permit" && node && held && held.node === body.node_id) {
      this.add(node, held.amounts, -1);
      this.add(node, body.resources, 1);
      this.keep(key, { node: body.node_id, amounts: body.resources });
    } else if (kind === "instance.released" && node && held) {
      this.add(node, held.amounts, -1);
      node.instances -= 1;
      this.held.delete(key);
    } else if (kind !== "instance.state" && body.node_id) {
      this.stale.add(body.node_id);
    }
    if (node) {
      this.touched.add(body.node_id);
      this.notify("nodes");
    }
  }

  /** @param {FeedEvent} event */
  applyNode({ kind, body }) {
    const id = body.node_id ?? body.facts?.id ?? body.id;
    if (!id) return;
    if (kind === "node.removed" || kind === "node.deleted") {
      this.nodes.delete(id);
      this.notify("layout");
    } else {
      this.stale.add(id);
    }
    this.notify("nodes");
  }

  /** @param {any} node @param {Amounts} amounts @param {1 | -1} sign */
  add(node, amounts, sign) {
    for (const resource of RESOURCES) node.used[resource] += sign * (amounts[resource] ?? 0);
  }

  /** @param {string} key @param {Held} held */
  keep(key, held) {
    this.held.delete(key);
    this.held.set(key, held);
    if (this.held.size <= INSTANCES_KEPT) return;
    const oldest = this.held.keys().next().value;
    if (oldest !== undefined) this.held.delete(oldest);
  }

  /** Reads nodes again of which an event did not say all. */
  async readStale() {
    if (this.stale.size === 0 || this.reading) return;
    this.reading = true;
    const ids = [...this.stale].slice(0, REREAD_NODES);
    ids.forEach((id) => this.stale.delete(id));
    try {
      const where = `id in (${ids.map((id) => JSON.stringify(id)).join(", ")})`;
      const page = await get("/v1/nodes", { where, limit: REREAD_NODES });
      this.take(page.items);
    } catch {
      // The sweep comes by later.
    } finally {
      this.reading = false;
    }
  }
  reading = false;

  /** Reads the next page of nodes, for what no event reports. */
  async sweep() {
    if (document.hidden || this.state !== "live") return;
    this.readWaiting();
    if (!this.seesFleet) return;
    try {
      const page = await get("/v1/nodes", { limit: 500, cursor: this.sweepCursor });
      this.sweepCursor = page.next;
      this.take(page.items);
    } catch {
      // The next sweep tries again.
    }
  }

  /** @param {any[]} nodes */
  take(nodes) {
    for (const node of nodes) {
      const id = node.facts.id;
      const old = this.nodes.get(id);
      if (!old || old.facts.zone !== node.facts.zone || old.facts.rack !== node.facts.rack) this.notify("layout");
      this.nodes.set(id, node);
      this.touched.add(id);
    }
    if (nodes.length) this.notify("nodes");
  }

  async readWaiting() {
    try {
      const page = await get("/v1/queue", { limit: 1000 });
      const waiting = page.items.filter((/** @type {any} */ ticket) => ticket.state === "waiting").length;
      if (waiting !== this.waiting) this.notify("queue");
      this.waiting = waiting;
    } catch {
      // It is read again with the next sweep.
    }
  }

  /** The fleet in numbers. */
  totals() {
    const totals = { nodes: 0, active: 0, instances: 0, cpu: 0, cpuMost: 0, memory: 0, memoryMost: 0, disk: 0, diskMost: 0, empty: 0 };
    for (const node of this.nodes.values()) {
      totals.nodes += 1;
      totals.active += node.facts.state === "active" ? 1 : 0;
      totals.empty += node.instances === 0 ? 1 : 0;
      totals.instances += node.instances;
      totals.cpu += node.used.cpu_milli;
      totals.cpuMost += node.limits.cpu_milli;
      totals.memory += node.used.memory_mib;
      totals.memoryMost += node.limits.memory_mib;
      totals.disk += node.used.disk_mib;
      totals.diskMost += node.limits.disk_mib;
    }
    return totals;
  }

  sample() {
    if (!this.seesFleet) return;
    const t = this.totals();
    const share = (/** @type {number} */ part, /** @type {number} */ whole) => (whole > 0 ? (100 * part) / whole : 0);
    this.samples.push({
      at: Date.now() / 1000,
      cpu: share(t.cpu, t.cpuMost),
      memory: share(t.memory, t.memoryMost),
      disk: share(t.disk, t.diskMost),
      instances: t.instances,
      granted: 0,
      refused: 0,
      waiting: this.waiting,
    });
    if (this.samples.length > SAMPLES_KEPT) this.samples.splice(0, this.samples.length - SAMPLES_KEPT);
    this.notify("samples");
  }
}

/** A stream names the kind of each event, and a browser hands out only kinds that were asked for. */
const EVENT_KINDS = [
  "instance.allocated", "instance.state", "instance.resized", "instance.permit", "instance.bounds",
  "instance.released", "lease.expired", "node.changed", "node.state", "node.removed", "node.load",
  "node.report_refused", "group.changed", "group.removed", "volume.changed", "volume.removed",
  "pool.changed", "quota.changed", "tenant.removing", "tenant.removed", "workload.changed",
  "secrets.changed", "policy.changed", "policy.quarantined", "ledger.drift", "log.unreadable",
];

export const store = new Store();
