// How values are written, and a table that changes only where its rows did.
"use strict";

const none = "–";

const format = {
  number(value, digits = 0) {
    return value == null ? none : value.toLocaleString("en", { maximumFractionDigits: digits });
  },
  short(value) {
    if (value == null) return none;
    const size = Math.abs(value);
    for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (size >= unit * 0.9995) { const scale = letter === "k" ? 1e3 : unit; return +(value / scale).toPrecision(3) + letter; }
    }
    return size >= 100 ? format.number(+value.toPrecision(3)) : format.number(value, size >= 1 ? 1 : 2);
  },
  // Three digits; whole numbers are whole.
  figure(value) {
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return format.number(value);
    const size = Math.abs(value);
    return size < 1e-4 || size >= 1e6 ? value.toExponential(2) : format.number(+value.toPrecision(3), 6);
  },
  count(value, noun) { return `${format.figure(value)} ${noun}${value === 1 ? "" : "s"}`; },
  rate(value) { return value == null ? none : format.short(value) + "/s"; },
  percent(value, digits = 0) { return value == null ? none : +(value * 100).toFixed(digits) + "%"; },
  bytes(value) {
    if (value == null) return none;
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
    return (value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)) + " " + units[unit];
  },
  duration(seconds) {
    if (seconds == null) return none;
    if (seconds < 1e-3) return Math.round(seconds * 1e6) + " µs";
    if (seconds < 1) return (seconds * 1e3).toPrecision(3).replace(/\.0+$/, "") + " ms";
    if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
    if (seconds < 3600) return Math.floor(seconds / 60) + " min " + Math.floor(seconds % 60) + " s";
    if (seconds < 86400) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds % 3600 / 60) + " min";
    return Math.floor(seconds / 86400) + " d " + Math.floor(seconds % 86400 / 3600) + " h";
  },
  // The time of day; with the date if that was another day.
  time(seconds) {
    const date = new Date(seconds * 1000);
    const day = date.toDateString() === new Date().toDateString() ? "" : date.toISOString().slice(5, 10) + " ";
    return day + date.toTimeString().slice(0, 8);
  },
};

function make(tag, className, content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content instanceof Node) element.append(content);
  else if (content != null) element.textContent = content;
  return element;
}

function link(path, text) {
  const element = make("a", "", text);
  element.href = path;
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function badge(text, className) { return make("span", "badge " + (className || text), text); }

function show(element, isShown) { if (element) element.hidden = !isShown; }

// Columns: {label, of(row) -> text or node, kind: "number" | "wide" | ..., sort}. A cell is made anew only if what
// `signature` (by default the text) gives has changed.
class LiveTable {
  constructor(table, columns, { rowClass = () => "", onSort = null } = {}) {
    this.table = table;
    this.columns = columns;
    this.rowClass = rowClass;
    this.rows = new Map();
    this.sortCells = new Map();
    this.body = make("tbody");
    const line = make("tr");
    for (const column of columns) line.append(this.headCell(column, onSort));
    const head = make("thead");
    head.append(line);
    table.append(head, this.body);
  }

  headCell(column, onSort) {
    const cell = make("th", column.kind || "");
    cell.scope = "col";
    if (column.title) cell.title = column.title;
    if (onSort && column.sort) {
      const button = make("button", "", column.label);
      button.type = "button";
      if (column.title) button.title = column.title;  // for those who come with the keyboard
      button.addEventListener("click", () => onSort(column.sort, column.kind === "number"));
      cell.append(button);
      this.sortCells.set(column.sort, cell);
    } else cell.textContent = column.label;
    return cell;
  }

  showSort(name, isDescending) {
    for (const [sort, cell] of this.sortCells) {
      if (sort === name) cell.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  update(order, rows) {
    const wanted = new Set(order);
    for (const [key, line] of this.rows) if (!wanted.has(key)) { line.remove(); this.rows.delete(key); }
    let previous = null;
    for (const key of order) {
      const row = rows[key];
      if (!row) continue;
      let line = this.rows.get(key);
      if (!line) { line = this.newLine(); this.rows.set(key, line); }
      if (line.shown !== row) this.fill(line, row);
      // Moved only where it is elsewhere, so that the focus stays.
      const place = previous ? previous.nextSibling : this.body.firstChild;
      if (place !== line) this.body.insertBefore(line, place);
      previous = line;
    }
  }

  newLine() {
    const line = make("tr");
    for (const column of this.columns) {
      const cell = make("td", column.kind || "");
      cell.dataset.label = column.label;
      line.append(cell);
    }
    return line;
  }

  fill(line, row) {
    line.shown = row;
    const className = this.rowClass(row);
    if (line.className !== className) line.className = className;
    this.columns.forEach((column, index) => {
      const cell = line.children[index];
      const signature = column.signature ? column.signature(row) : column.of(row);
      if (cell.signature === signature) return;
      cell.signature = signature;
      const content = column.signature ? column.of(row) : signature;
      cell.classList.toggle("absent", content === none || content === "");
      cell.replaceChildren(content);
    });
  }
}
