// The one table of the console: sorted by a click, filtered by a text, saved as CSV.

import { html, useMemo, useState } from "./view.js";

/**
 * @typedef {object} Column
 * @property {string} name what the heading says
 * @property {(row: any) => any} value what is sorted, filtered and exported
 * @property {(row: any) => any} [show] what is shown; the value if absent
 * @property {boolean} [number] whether it is a number
 */

const PAGE = 100;

/** @param {any} value */
const textOf = (value) => (value === undefined || value === null ? "" : String(value));

/** A field of a CSV file. A spreadsheet must not take it for a formula. @param {any} value */
export function csvField(value) {
  const text = textOf(value);
  const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** @param {Column[]} columns @param {any[]} rows */
export function csvText(columns, rows) {
  const lines = [columns.map((column) => csvField(column.name))];
  for (const row of rows) lines.push(columns.map((column) => csvField(column.value(row))));
  return lines.map((line) => line.join(",")).join("\r\n") + "\r\n";
}

/** @param {string} name @param {string} text @param {string} type */
export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/**
 * @param {{ name: string, columns: Column[], rows: any[] | undefined, rowKey: (row: any) => string, empty?: any,
 *   sort?: string, descending?: boolean, tools?: any, onRow?: (row: any) => void, compact?: boolean }} props
 */
export function Table({ name, columns, rows, rowKey, empty, sort, descending, tools, compact }) {
  const [order, setOrder] = useState({ by: sort ?? "", down: Boolean(descending) });
  const [filter, setFilter] = useState("");
  const [most, setMost] = useState(PAGE);
  const shown = useMemo(() => {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (/** @type {any} */ row) => {
      const text = columns.map((column) => textOf(column.value(row))).join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const found = words.length ? (rows ?? []).filter(fits) : [...(rows ?? [])];
    const column = columns.find((column) => column.name === order.by);
    if (column) {
      const sign = order.down ? -1 : 1;
      found.sort((one, other) => sign * compare(column.value(one), column.value(other)));
    }
    return found;
  }, [rows, filter, order, columns]);
  const slug = name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const turn = (/** @type {string} */ by) => setOrder({ by, down: order.by === by ? !order.down : false });
  return html`<div class=${compact ? "table-box compact" : "table-box"}>
    <div class="table-tools">
      <input type="search" placeholder="Filter" aria-label=${`Filter ${name}`} value=${filter}
        onInput=${(/** @type {any} */ event) => setFilter(event.target.value)} />
      <span class="muted" role="status">${rows ? countText(shown.length, rows.length) : "reading…"}</span>
      <span class="grow"></span>
      ${tools}
      <button class="quiet" onClick=${() => download(`${slug}.csv`, csvText(columns, shown), "text/csv")}
        disabled=${!rows}>CSV</button>
    </div>
    <div class="scroll" tabindex="0" role="region" aria-label=${name}>
      <table>
        <thead><tr>${columns.map((column) => html`<th key=${column.name} scope="col" class=${column.number ? "number" : ""}
          aria-sort=${!column.name ? undefined : order.by !== column.name ? "none" : order.down ? "descending" : "ascending"}>
          ${column.name ? html`<button onClick=${() => turn(column.name)}>${column.name}<i class="sort" aria-hidden="true"></i></button>` : html`<span class="unseen">Actions</span>`}</th>`)}</tr></thead>
        <tbody>
          ${shown.slice(0, most).map((row) => html`<tr key=${rowKey(row)}>
            ${columns.map((column) => html`<td key=${column.name} class=${column.number ? "number" : ""}>
              ${column.show ? column.show(row) : textOf(column.value(row))}</td>`)}</tr>`)}
          ${rows && shown.length === 0 && html`<tr><td class="empty" colspan=${columns.length}>
            ${filter ? "Nothing matches the filter." : (empty ?? "Nothing here.")}</td></tr>`}
        </tbody>
      </table>
    </div>
    ${shown.length > most && html`<button class="quiet more" onClick=${() => setMost(most + 5 * PAGE)}>
      Show more of ${shown.length}</button>`}
  </div>`;
}

/** @param {number} shown @param {number} all */
const countText = (shown, all) => (shown === all ? `${all}` : `${shown} of ${all}`);

/** @param {any} one @param {any} other */
function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return textOf(one).localeCompare(textOf(other), "en", { numeric: true });
}
