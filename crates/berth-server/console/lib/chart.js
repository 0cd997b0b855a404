// Charts over time.

import uPlot from "../vendor/uplot.js";
import { html, useEffect, useRef, useTopics } from "./view.js";

/** A colour of the theme. @param {string} name */
export const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A colour of the theme, less of it. @param {string} colour @param {string} alpha two hexadecimal digits */
const faint = (colour, alpha) => (/^#[0-9a-f]{6}$/i.test(colour) ? colour + alpha : colour);

/** @param {number} at */
const timeOfDay = (at) => new Date(at * 1000).toTimeString().slice(0, 5);

/**
 * @param {{ label: string, series: { name: string, tone: string, bars?: boolean }[], data: (number | null)[][], unit?: string, most?: number, height?: number }} props
 */
export function Chart({ label, series, data, unit, most, height }) {
  useTopics("theme");
  const box = useRef(/** @type {any} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const theme = document.documentElement.dataset.theme + themeColour("ink");
  const tall = height ?? 150;
  useEffect(() => {
    const ink = themeColour("muted");
    const line = themeColour("line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const made = new uPlot(
      {
        width: Math.max(120, box.current.clientWidth),
        height: tall,
        cursor: { y: false, points: { size: 6 } },
        legend: { live: true },
        scales: {
          // A quarter of an hour at least, so that a new page does not zoom into its first seconds.
          x: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => (Number.isFinite(low) && Number.isFinite(high) && high > 1e6 ? [Math.min(low, high - 900), high] : [Date.now() / 1000 - 900, Date.now() / 1000]) },
          y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [0, most ?? Math.max(4, high * 1.15)] },
        },
        axes: [{ ...axis, space: 60, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => timeOfDay(tick)) }, { ...axis, size: 44, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => `${tick}${unit ?? ""}`) }],
        series: [
          { value: (/** @type {any} */ _, /** @type {number} */ at) => (at ? timeOfDay(at) : "") },
          ...series.map(({ name, tone, bars }) => ({
            label: name,
            stroke: themeColour(tone),
            width: bars ? 3 : 2,
            fill: faint(themeColour(tone), bars ? "66" : "22"),
            // A line needs two; until then a point is shown.
            points: { show: (/** @type {any} */ plot) => plot.data[0].length < 4 },
            value: (/** @type {any} */ _, /** @type {number | null} */ value) => (value === null || value === undefined ? "–" : `${Math.round(value * 10) / 10}${unit ?? ""}`),
          })),
        ],
      },
      data,
      box.current,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: Math.max(120, box.current?.clientWidth ?? 0), height: tall }));
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [theme, series.map((one) => one.name).join()]);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = series.map((one, i) => `${one.name} ${Math.round((data[i + 1]?.at(-1) ?? 0) * 10) / 10}${unit ?? ""}`).join(", ");
  return html`<div class="chart" role="img" aria-label=${`${label}: ${last}`} ref=${box}></div>`;
}
