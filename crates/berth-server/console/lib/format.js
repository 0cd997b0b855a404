// Numbers, amounts and times as people read them.

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** @param {number} value */
export const count = (value) => number.format(value);

/** Memory or disk. @param {number} mib */
export function mib(mib) {
  const sign = mib < 0 ? "−" : "";
  const value = Math.abs(mib);
  if (value >= 1 << 20) return `${sign}${number.format(value / (1 << 20))} TiB`;
  if (value >= 1024) return `${sign}${number.format(value / 1024)} GiB`;
  return `${sign}${number.format(value)} MiB`;
}

/** @param {number} milli */
export const cpu = (milli) => `${number.format(milli / 1000)} CPU`;

/** @param {number} mbps */
export const bandwidth = (mbps) => (mbps >= 1000 ? `${number.format(mbps / 1000)} Gbit/s` : `${number.format(mbps)} Mbit/s`);

/** An amount of a resource. @param {string} resource @param {number} value */
export function amount(resource, value) {
  if (resource.startsWith("cpu")) return cpu(value);
  if (resource.startsWith("memory") || resource.startsWith("disk")) return mib(value);
  if (resource.startsWith("bandwidth")) return bandwidth(value);
  return count(value);
}

/** An amount in a unit of the API. @param {number} value @param {string} unit */
export function inUnit(value, unit) {
  if (unit === "milli_cpu") return cpu(value);
  if (unit === "mib") return mib(value);
  if (unit === "mbps") return bandwidth(value);
  if (unit === "seconds") return duration(value);
  return count(value);
}

/** @param {number} part @param {number} whole */
export const percent = (part, whole) => `${whole > 0 ? Math.round((100 * part) / whole) : 0} %`;

/** Resources in one line. @param {any} of */
export function amounts(of) {
  if (!of) return "";
  const parts = [cpu(of.cpu_milli ?? 0), mib(of.memory_mib ?? 0)];
  if (of.disk_mib) parts.push(`${mib(of.disk_mib)} disk`);
  if (of.bandwidth_mbps) parts.push(bandwidth(of.bandwidth_mbps));
  return parts.join(" · ");
}

/** Points of a score, which the API has in millionths. @param {number} points */
export const points = (points) => (points / 1e6).toFixed(3);

/** @param {number} seconds */
export function duration(seconds) {
  const s = Math.abs(Math.round(seconds));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 129600) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** @param {string | number | undefined | null} at a time of the API, or microseconds since 1970 */
export function time(at) {
  if (at === undefined || at === null) return undefined;
  return typeof at === "number" ? new Date(at > 1e14 ? at / 1000 : at * 1000) : new Date(at);
}

/** @param {string | number | undefined | null} at */
export function ago(at) {
  const when = time(at);
  if (!when) return "";
  const seconds = (Date.now() - when.getTime()) / 1000;
  if (Math.abs(seconds) < 2) return "now";
  return seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(seconds)}`;
}

/** @param {string | number | undefined | null} at */
export function clock(at) {
  const when = time(at);
  return when ? when.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC") : "";
}

/** The first part of an id, for tables. @param {string | undefined | null} id */
export const short = (id) => (id && id.length > 13 ? `${id.slice(0, 4)}…${id.slice(-6)}` : (id ?? ""));

/** Memory as written by people: `4GiB`, `512`, `1.5 TiB`; undefined if it is none. @param {string} text */
export function readMib(text) {
  const match = /^\s*([\d.]+)\s*(m|mib|g|gib|t|tib)?\s*$/i.exec(text);
  if (!match) return undefined;
  const unit = (match[2] ?? "mib").toLowerCase()[0];
  return Math.ceil(Number(match[1]) * (unit === "t" ? 1 << 20 : unit === "g" ? 1024 : 1));
}

/** What stands between a node and an instance, in words. @param {any} evidence */
export function evidence(evidence) {
  const e = evidence ?? {};
  switch (e.kind) {
    case "short": {
      const need = e.overhead ? `${inUnit(e.wanted, e.unit)} plus ${inUnit(e.overhead, e.unit)} overhead` : inUnit(e.wanted, e.unit);
      return `${e.resource}: needs ${need}, has ${inUnit(e.free, e.unit)} free, short by ${inUnit(e.wanted + e.overhead - e.free, e.unit)}`;
    }
    case "exceeds":
      return `${e.resource}: needs ${inUnit(e.wanted, e.unit)}, the most is ${inUnit(e.most, e.unit)}`;
    case "state":
      return `it is ${e.found}`;
    case "time":
      return `${e.what}: ${duration(e.seconds)}, the limit is ${duration(e.limit)}`;
    case "fact":
      return `${e.fact} is ${e.found}, wanted ${e.wanted}`;
    case "neighbours":
      return `${e.rule}: ${e.members} on this ${e.topology}, wanted ${e.wanted}`;
    default:
      return JSON.stringify(e);
  }
}
