// The fleet as a picture: every node a cell, in its rack, in its zone. Drawn on a canvas, so that ten
// thousand nodes are one picture and not ten thousand elements. The table beside it says the same.

import { html, useEffect, useMemo, useRef, useState, useTopics } from "./view.js";
import { themeColour } from "./chart.js";
import { go, to } from "./router.js";
import { store } from "./store.js";

/** @typedef {{ id: string, x: number, y: number }} Cell */
/** @typedef {{ name: string, x: number, y: number, width: number, height: number, zone: boolean }} Frame */

const GAP = 2;
const HEAD = 24;
const PADDING = 10;
const SHADES = 97;

/**
 * Where everything is. Zones are columns if they fit beside each other; racks flow within their zone.
 * @param {Iterable<any>} nodes @param {number} width
 */
export function layout(nodes, width) {
  /** @type {Map<string, Map<string, string[]>>} */
  const zones = new Map();
  let total = 0;
  for (const { facts } of nodes) {
    total += 1;
    const zone = facts.zone ?? "no zone";
    const rack = facts.rack ?? "no rack";
    const racks = zones.get(zone) ?? new Map();
    zones.set(zone, racks);
    const ids = racks.get(rack) ?? [];
    racks.set(rack, ids);
    ids.push(facts.id);
  }
  const names = [...zones.keys()].sort();
  const columns = Math.max(1, Math.min(names.length, Math.floor(width / 205)));
  const zoneWidth = (width - (columns - 1) * 14) / columns;
  const wanted = Math.sqrt((zoneWidth * columns * 330) / Math.max(1, total)) * 0.82;
  const size = Math.max(5, Math.min(26, Math.floor(wanted)));
  const step = size + GAP;
  /** @type {Cell[]} */
  const cells = [];
  /** @type {Frame[]} */
  const frames = [];
  let top = 0;
  for (let from = 0; from < names.length; from += columns) {
    let tallest = 0;
    names.slice(from, from + columns).forEach((name, column) => {
      const left = column * (zoneWidth + 14);
      const height = placeZone(zones.get(name) ?? new Map(), left, top, zoneWidth, step, cells, frames);
      frames.push({ name, x: left, y: top, width: zoneWidth, height, zone: true });
      tallest = Math.max(tallest, height);
    });
    for (const frame of frames) if (frame.zone && frame.y === top) frame.height = tallest;
    top += tallest + 14;
  }
  return { cells, frames, size, width, height: Math.max(60, top - 14) };
}

/**
 * @param {Map<string, string[]>} racks @param {number} left @param {number} top @param {number} width
 * @param {number} step @param {Cell[]} cells @param {Frame[]} frames @returns {number} the height
 */
function placeZone(racks, left, top, width, step, cells, frames) {
  const inner = width - 2 * PADDING;
  const sorted = [...racks].sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
  const fullest = Math.max(1, ...sorted.map(([, ids]) => ids.length));
  // About twice as wide as tall, and never wider than the zone.
  const across = Math.max(1, Math.min(Math.floor(inner / step), Math.ceil(Math.sqrt(fullest * 2))));
  const label = step >= 14 ? 14 : 0;
  let x = left + PADDING;
  let y = top + HEAD;
  let rowHeight = 0;
  for (const [name, ids] of sorted) {
    ids.sort();
    const columns = Math.min(across, ids.length);
    const width_ = columns * step - GAP;
    const height = Math.ceil(ids.length / across) * step - GAP + label;
    if (x + width_ > left + width - PADDING && x > left + PADDING) {
      x = left + PADDING;
      y += rowHeight + 8;
      rowHeight = 0;
    }
    if (label) frames.push({ name, x, y, width: width_, height, zone: false });
    ids.forEach((id, i) => cells.push({ id, x: x + (i % across) * step, y: y + label + Math.floor(i / across) * step }));
    x += width_ + 10;
    rowHeight = Math.max(rowHeight, height);
  }
  return y + rowHeight + PADDING - top;
}

/** @type {{ theme: string | undefined, made: ReturnType<typeof makePalette> } | undefined} */
let palettes;

/** The colours of a theme that the map uses, made once a theme. */
function palette() {
  const theme = document.documentElement.dataset.theme;
  if (palettes?.theme !== theme) palettes = { theme, made: makePalette() };
  return /** @type {NonNullable<typeof palettes>} */ (palettes).made;
}

function makePalette() {
  const ramp = [0, 1, 2, 3, 4, 5, 6].map((i) => rgb(themeColour(`ramp-${i}`)));
  const named = Object.fromEntries(["c1", "c2", "c3", "c4", "none", "ink", "muted", "line", "panel", "accent", "raised"].map((name) => [name, themeColour(name)]));
  // Colours of the ramp; more of them cannot be told apart.
  const shades = Array.from({ length: SHADES }, (_, i) => {
    const at = (i / (SHADES - 1)) * (ramp.length - 1);
    const low = Math.min(ramp.length - 2, Math.floor(at));
    const part = at - low;
    const mixed = ramp[low].map((value, j) => Math.round(value + (ramp[low + 1][j] - value) * part));
    return `rgb(${mixed.join(" ")})`;
  });
  const shade = (/** @type {number} */ share) => shades[Math.round(Math.max(0, Math.min(1, share)) * (SHADES - 1))];
  return { shade, named };
}

/** @param {string} hex */
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) || 0);

/**
 * @param {{ reading: (node: any) => import("./measures.js").Reading, dimmed?: (id: string) => boolean, marked?: Map<string, string>,
 *   label: string, version?: any, onDrawn?: (ms: number) => void }} props
 */
export function FleetMap({ reading, dimmed, marked, label, version, onDrawn }) {
  useTopics("layout", "theme");
  const box = useRef(/** @type {any} */ (null));
  const canvas = useRef(/** @type {any} */ (null));
  const [width, setWidth] = useState(0);
  const [hover, setHover] = useState(/** @type {{ id: string, x: number, y: number } | undefined} */ (undefined));
  const [said, setSaid] = useState("");
  const drawnNodes = store.nodes.size;
  const plan = useMemo(() => (width ? layout(store.nodes.values(), width) : undefined), [width, drawnNodes, store.nodes]);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const draw = () => {
    if (!plan || !canvas.current) return;
    const began = performance.now();
    paint(canvas.current, plan, reading, dimmed, marked, hover?.id);
    onDrawn?.(performance.now() - began);
  };
  useEffect(() => {
    draw();
    // The picture follows the store at once, and at most fifteen times a second.
    /** @type {number | undefined} */
    let timer;
    let drawn = performance.now();
    const now = () => {
      timer = undefined;
      drawn = performance.now();
      draw();
    };
    const end = store.subscribe("nodes", () => {
      const wait = drawn + 66 - performance.now();
      if (wait <= 0) now();
      else timer ??= window.setTimeout(now, wait);
    });
    return () => {
      end();
      clearTimeout(timer);
    };
  }, [plan, reading, dimmed, marked, version, hover?.id, document.documentElement.dataset.theme]);

  const at = (/** @type {any} */ event) => {
    const edge = canvas.current.getBoundingClientRect();
    const x = event.clientX - edge.left;
    const y = event.clientY - edge.top;
    return plan?.cells.find((cell) => x >= cell.x - 1 && x <= cell.x + plan.size + 1 && y >= cell.y - 1 && y <= cell.y + plan.size + 1);
  };
  const select = (/** @type {Cell | undefined} */ cell) => {
    setHover(cell && { id: cell.id, x: cell.x, y: cell.y });
    const node = cell && store.nodes.get(cell.id);
    if (node) setSaid(`${cell.id}: ${reading(node).text}, ${node.facts.state}`);
  };
  const key = (/** @type {any} */ event) => {
    if (!plan || plan.cells.length === 0) return;
    const now = plan.cells.findIndex((cell) => cell.id === hover?.id);
    if (event.key === "Enter" && hover) go(to("nodes", hover.id));
    else if (event.key === "Escape") select(undefined);
    else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      select(now < 0 ? plan.cells[0] : neighbour(plan.cells, plan.cells[now], event.key));
    }
  };
  const node = hover && store.nodes.get(hover.id);
  return html`<div class="map" ref=${box}>
    <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`${label}. Arrow keys go from node to node, Enter opens one. The table has the same.`}
      onMouseMove=${(/** @type {any} */ event) => select(at(event))} onMouseLeave=${() => setHover(undefined)}
      onClick=${(/** @type {any} */ event) => { const cell = at(event); if (cell) go(to("nodes", cell.id)); }} onKeyDown=${key}></canvas>
    <span class="unseen" aria-live="polite">${said}</span>
    ${node && plan && html`<${Tip} node=${node} x=${hover.x + plan.size / 2} y=${hover.y} width=${plan.width} text=${reading(node).text} extra=${marked?.get(hover.id)} />`}
  </div>`;
}

/** The nearest cell in a direction. @param {Cell[]} cells @param {Cell} from @param {string} key */
function neighbour(cells, from, key) {
  const across = key === "ArrowLeft" || key === "ArrowRight";
  const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  let best = from;
  let least = Infinity;
  for (const cell of cells) {
    const along = sign * (across ? cell.x - from.x : cell.y - from.y);
    const aside = Math.abs(across ? cell.y - from.y : cell.x - from.x);
    if (along <= 0) continue;
    const far = along + 3 * aside;
    if (far < least) [best, least] = [cell, far];
  }
  return best;
}

/** @param {{ node: any, x: number, y: number, width: number, text: string, extra?: string }} props */
function Tip({ node, x, y, width, text, extra }) {
  const share = (/** @type {string} */ key) => (node.limits[key] > 0 ? Math.round((100 * node.used[key]) / node.limits[key]) : 0);
  const left = Math.max(4, Math.min(width - 236, x - 116));
  return html`<div class="tip" role="presentation" style=${{ left: `${left}px`, top: `${y + 34}px` }}>
    <strong>${node.facts.id}</strong> <span class="muted">${node.facts.zone ?? ""} ${node.facts.rack ?? ""}</span>
    <p>${text}</p>${extra && html`<p class="why">${extra}</p>`}
    ${[["CPU", "cpu_milli"], ["memory", "memory_mib"], ["disk", "disk_mib"]].map(([name, key]) => html`<div class="tip-bar" key=${key}>
      <span>${name}</span><span class="meter"><i style=${{ width: `${Math.min(100, share(key))}%` }}></i></span><span>${share(key)} %</span></div>`)}
    <p class="muted">${node.instances} instances · ${node.facts.state}</p>
  </div>`;
}

/**
 * @param {HTMLCanvasElement} canvas @param {ReturnType<typeof layout>} plan
 * @param {(node: any) => import("./measures.js").Reading} reading @param {((id: string) => boolean) | undefined} dimmed
 * @param {Map<string, string> | undefined} marked @param {string | undefined} hover
 */
function paint(canvas, plan, reading, dimmed, marked, hover) {
  const scale = window.devicePixelRatio || 1;
  const { width, height, size } = plan;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  const { shade, named } = palette();
  for (const frame of plan.frames) {
    if (frame.zone) {
      pen.fillStyle = named.raised;
      pen.beginPath();
      pen.roundRect(frame.x, frame.y, frame.width, frame.height, 8);
      pen.fill();
      pen.fillStyle = named.ink;
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(frame.name, frame.x + PADDING, frame.y + 16);
    }
  }
  pen.font = "10px system-ui, sans-serif";
  pen.fillStyle = named.muted;
  for (const frame of plan.frames) if (!frame.zone) pen.fillText(fitText(pen, frame.name, frame.width), frame.x, frame.y + 9);
  const corner = size >= 12 ? 4 : size >= 8 ? 2 : 0;
  for (const cell of plan.cells) {
    const node = store.nodes.get(cell.id);
    if (!node) continue;
    const read = reading(node);
    pen.globalAlpha = dimmed?.(cell.id) ? 0.13 : 1;
    pen.fillStyle = read.share === undefined ? (named[read.tone ?? "none"] ?? named.none) : shade(read.share);
    if (corner) {
      pen.beginPath();
      pen.roundRect(cell.x, cell.y, size, size, corner);
      pen.fill();
    } else pen.fillRect(cell.x, cell.y, size, size);
    if (node.facts.state !== "active" && size >= 8) {
      pen.strokeStyle = node.facts.state === "lost" || node.facts.state === "degraded" ? named.c4 : named.ink;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(cell.x + 2, cell.y + size - 2);
      pen.lineTo(cell.x + size - 2, cell.y + 2);
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
  for (const cell of plan.cells) {
    if (cell.id !== hover && !marked?.has(cell.id)) continue;
    pen.strokeStyle = cell.id === hover ? named.ink : named.accent;
    pen.lineWidth = 2.5;
    pen.beginPath();
    pen.roundRect(cell.x - 1.5, cell.y - 1.5, size + 3, size + 3, corner + 1);
    pen.stroke();
  }
}

/** A text, or its end if it is too long. @param {CanvasRenderingContext2D} pen @param {string} text @param {number} width */
function fitText(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let tail = text;
  while (tail.length > 1 && pen.measureText(`…${tail}`).width > width) tail = tail.slice(1);
  return `…${tail}`;
}
