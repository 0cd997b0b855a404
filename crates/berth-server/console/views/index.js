// Every view: its name, where the menu has it, and who may see it.

import { store } from "../lib/store.js";
import { Audit, Events } from "./log.js";
import { Capacity } from "./capacity.js";
import { Decisions } from "./decisions.js";
import { Fleet } from "./fleet.js";
import { Instances } from "./instances.js";
import { Mine } from "./mine.js";
import { Moves } from "./moves.js";
import { Nodes } from "./nodes.js";
import { Place } from "./place.js";
import { Policy } from "./policy.js";
import { Queue } from "./queue.js";
import { Groups, Pools, Quotas, Secrets, Settings, Tokens, Volumes } from "./resources.js";
import { Workloads } from "./workloads.js";

/** @typedef {{ name: string, group: "operate" | "understand" | "configure", allowed: () => boolean, view: any }} View */

const fleet = () => store.seesFleet;
const anyone = () => store.seesFleet || store.isTenant;
const places = () => store.mayPlace;
const tenant = () => store.isTenant;
const admin = () => store.who?.role === "admin";

/** @type {Record<string, View>} */
export const VIEWS = {
  fleet: { name: "Fleet", group: "operate", allowed: fleet, view: Fleet },
  mine: { name: "Overview", group: "operate", allowed: tenant, view: Mine },
  place: { name: "Place", group: "operate", allowed: places, view: Place },
  nodes: { name: "Nodes", group: "operate", allowed: fleet, view: Nodes },
  instances: { name: "Instances", group: "operate", allowed: anyone, view: Instances },
  workloads: { name: "Workloads", group: "operate", allowed: anyone, view: Workloads },
  moves: { name: "Moves", group: "operate", allowed: fleet, view: Moves },
  queue: { name: "Queue", group: "operate", allowed: anyone, view: Queue },
  decisions: { name: "Decisions", group: "understand", allowed: anyone, view: Decisions },
  capacity: { name: "Capacity", group: "understand", allowed: fleet, view: Capacity },
  events: { name: "Events", group: "understand", allowed: anyone, view: Events },
  audit: { name: "Audit", group: "understand", allowed: fleet, view: Audit },
  policy: { name: "Policy", group: "configure", allowed: fleet, view: Policy },
  quotas: { name: "Quotas", group: "configure", allowed: anyone, view: Quotas },
  pools: { name: "Pools", group: "configure", allowed: fleet, view: Pools },
  groups: { name: "Groups", group: "configure", allowed: anyone, view: Groups },
  volumes: { name: "Volumes", group: "configure", allowed: anyone, view: Volumes },
  secrets: { name: "Environments", group: "configure", allowed: anyone, view: Secrets },
  tokens: { name: "Tokens", group: "configure", allowed: admin, view: Tokens },
  settings: { name: "Server", group: "configure", allowed: anyone, view: Settings },
};
