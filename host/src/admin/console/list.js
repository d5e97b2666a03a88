// A list of any length: only the rows that are visible exist.

import { element } from "./elements.js";

const ROW_HEIGHT = 28;
// Rows beyond the visible ones, so that scrolling shows no gap.
const MARGIN = 10;

/**
 * A list with sortable columns and a selected row.
 *
 * A column has `title`, `width` (of the grid), `text(row)`, and optionally `value(row)` to sort by, `shade(row)` and `number`.
 * `keyOf(row)` identifies a row when the data is replaced.
 */
export class List {
  constructor({ columns, keyOf, open, scroller, empty }) {
    Object.assign(this, { columns, keyOf, open, scroller, empty });
    this.rows = [];
    this.shown = [];
    this.words = [];
    this.selected = null;
    this.order = null;
    this.body = element("div", { class: "body", role: "rowgroup" });
    this.head = element("div", { class: "row head", role: "row" });
    this.root = element("div", { class: "list", role: "grid", style: { "--columns": columns.map(c => c.width).join(" ") } },
      this.head, this.body);
    this.draw = this.draw.bind(this);
    scroller.addEventListener("scroll", this.draw, { passive: true });
    window.addEventListener("resize", this.draw);
    this.drawHead();
  }

  /** Ends the list, whose scroller lives on. */
  close() {
    this.scroller.removeEventListener("scroll", this.draw);
    window.removeEventListener("resize", this.draw);
  }

  /** Replaces the rows, in their own order. */
  setRows(rows) {
    this.rows = rows;
    this.arrange();
  }

  /** Shows the rows with all words of a text. */
  setFilter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.arrange();
  }

  arrange() {
    const matches = row => {
      row.searched ??= this.columns.map(column => column.text(row)).join(" ").toLowerCase();
      return this.words.every(word => row.searched.includes(word));
    };
    this.shown = this.words.length ? this.rows.filter(matches) : this.rows.slice();
    if (this.order) {
      const { column, sign } = this.order;
      const value = column.value ?? column.text;
      const compare = (a, b) => (a < b ? -sign : a > b ? sign : 0);
      this.shown.sort((a, b) => compare(value(a), value(b)));
    }
    this.draw();
  }

  sortBy(column) {
    const again = this.order?.column === column;
    this.order = again && this.order.sign < 0 ? null : { column, sign: again ? -1 : 1 };
    this.drawHead();
    this.arrange();
  }

  drawHead() {
    this.head.replaceChildren(...this.columns.map(column => {
      const sign = this.order?.column === column ? this.order.sign : 0;
      const sorted = sign > 0 ? "ascending" : sign < 0 ? "descending" : "none";
      return element("span", { role: "columnheader", "aria-sort": sorted, class: column.number && "number" },
        element("button", { onclick: () => this.sortBy(column) }, column.title + (sign > 0 ? " ▲" : sign < 0 ? " ▼" : "")));
    }));
  }

  draw() {
    const top = Math.max(0, this.scroller.scrollTop - this.root.offsetTop);
    const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - MARGIN);
    const count = Math.ceil(this.scroller.clientHeight / ROW_HEIGHT) + 2 * MARGIN;
    this.body.style.height = `${this.shown.length * ROW_HEIGHT}px`;
    const visible = this.shown.slice(first, first + count);
    this.body.replaceChildren(...visible.map((row, i) => this.drawRow(row, first + i)));
    if (!this.shown.length) {
      this.body.replaceChildren(element("p", { class: "page faint" }, this.rows.length ? "Nothing matches the filter." : this.empty));
    }
    this.root.setAttribute("aria-rowcount", this.shown.length);
  }

  drawRow(row, index) {
    const cells = this.columns.map(column => {
      const text = column.text(row);
      const classes = [column.number && "number", column.shade?.(row)].filter(Boolean).join(" ");
      return element("span", { role: "gridcell", class: classes || null, title: text }, text);
    });
    const isSelected = this.selected === this.keyOf(row);
    return element("div", {
      class: "row", role: "row", "aria-selected": String(isSelected), "aria-rowindex": index + 1,
      style: { top: `${index * ROW_HEIGHT}px` }, onclick: () => this.open(row),
    }, cells);
  }

  /** Moves the selection by a number of rows. */
  move(by) {
    if (!this.shown.length) return;
    const at = this.shown.findIndex(row => this.keyOf(row) === this.selected);
    const next = at < 0 ? (by > 0 ? 0 : this.shown.length - 1) : Math.min(this.shown.length - 1, Math.max(0, at + by));
    this.selected = this.keyOf(this.shown[next]);
    const [top, height] = [this.root.offsetTop + next * ROW_HEIGHT, this.scroller.clientHeight];
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    if (top + 2 * ROW_HEIGHT > this.scroller.scrollTop + height) this.scroller.scrollTop = top + 2 * ROW_HEIGHT - height;
    this.draw();
  }

  /** The selected row; null without one. */
  current() {
    return this.shown.find(row => this.keyOf(row) === this.selected) ?? null;
  }
}
