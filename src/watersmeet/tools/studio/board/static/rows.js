// The rows by batch and source: cells to type in, rows to move, and the outcome of each.

import { button, make } from "./dom.js";

const FIRST = [[/^(TINY|SMALL|BIG)?INT(EGER)?$|^(LONG|SHORT|BYTE)$/i, "1"], [/^(STRING|CHAR|VARCHAR)/i, "a"], [/^TIMESTAMP/i, "2026-03-02 08:00"], [/^DATE/i, "2026-03-02"], [/^(DEC|NUM|DOUBLE|FLOAT|REAL)/i, "1.0"], [/^BOOL/i, "true"]];

// What a cell begins with, where no other row shows what its values look like.
const sample = (type) => /[<(]/.test(type.replace(/\(\d+(, *\d+)?\)/, "")) ? "" : FIRST.find(([kind]) => kind.test(type))?.[1] ?? "";
const placeOf = (place) => `${place.batch}/${place.row}/${place.source}`;

export class Rows {
  constructor(container, actions) {
    this.container = container;
    this.actions = actions;
    this.lines = new Map();
    this.dragged = null;
  }

  show(state) {
    this.board = state.board;
    this.sources = state.answer?.sources ?? this.guessed(state.board);
    this.lines.clear();
    const held = document.activeElement?.dataset?.cell;
    this.container.replaceChildren(...this.board.batches.map((batch, number) => this.batch(batch, number)));
    if (held) this.container.querySelector(`[data-cell="${CSS.escape(held)}"]`)?.focus();
    if (state.answer) this.decorate(state.answer);
    this.dim(state.step || Infinity);
  }

  // Before the first answer: as many columns as there are cells.
  guessed(board) {
    const wide = new Map();
    for (const batch of board.batches) {
      for (const [name, rows] of Object.entries(batch.rows)) wide.set(name, Math.max(wide.get(name) ?? 0, ...rows.map((row) => row.length)));
    }
    return [...wide].map(([name, width]) => ({ name, kind: "stream", columns: Array.from({ length: width }, () => ({ name: "", type: "" })) }));
  }

  batch(batch, number) {
    const change = (what) => this.actions.changed((board) => what(board.batches[number], board));
    const clock = make("input", { type: "text", value: batch.now, placeholder: "0s", "aria-label": `clock of batch ${number}`, "data-cell": `now/${number}`,
      oninput: (event) => this.actions.changed((board) => { board.batches[number].now = event.target.value; }, true) });
    const restart = make("input", { type: "checkbox", checked: batch.restart, onchange: (event) => change((one) => { one.restart = event.target.checked; }) });
    const card = make("section", { className: "batch", "data-batch": number, "aria-label": `batch ${number}` },
      make("header", {}, make("h3", {}, `batch ${number}`),
        make("label", { title: "the wall clock, for windows of time and idle sides" }, "clock ", clock),
        make("label", { title: "before this batch, the query is stopped and continues from its checkpoint" }, restart, " restart before"),
        button("↑", `Move batch ${number} up`, () => this.actions.changed((board) => this.swap(board, number, -1))),
        button("↓", `Move batch ${number} down`, () => this.actions.changed((board) => this.swap(board, number, 1))),
        button("×", `Remove batch ${number}`, () => this.actions.changed((board) => {
          board.batches.splice(number, 1);
          if (!board.batches.length) board.batches.push({ rows: {}, marks: {}, now: "", restart: false });
        })),
        ...this.marks(batch, number)),
      ...this.sources.map((source) => this.source(source, batch, number)));
    card.addEventListener("dragover", (event) => { if (this.dragged) { event.preventDefault(); card.classList.add("target"); } });
    card.addEventListener("dragleave", () => card.classList.remove("target"));
    card.addEventListener("drop", (event) => { event.preventDefault(); card.classList.remove("target"); this.drop(number, event); });
    return card;
  }

  swap(board, number, by) {
    const other = number + by;
    if (other < 0 || other >= board.batches.length) return;
    [board.batches[number], board.batches[other]] = [board.batches[other], board.batches[number]];
  }

  source(source, batch, number) {
    const rows = batch.rows[source.name] ?? [];
    const add = button("+", `Add a row of ${source.name} to batch ${number}`, () => this.add(source, number));
    if (!rows.length) return make("div", { className: "source empty" }, make("span", {}, source.name, " ", add));
    const isTable = source.kind === "table";
    const heads = source.columns.map((column) => make("th", { title: column.isTime ? "its event time" : "" }, column.name, " ", make("small", {}, column.type.toLowerCase())));
    const head = make("tr", {}, make("th"), ...(isTable ? [make("th", {}, "±")] : []), ...heads, make("th"), make("th"));
    const lines = rows.map((row, at) => this.line(source, row, { batch: number, source: source.name, row: at }));
    return make("div", { className: "source" }, make("span", {}, source.name, " ", add), make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines)));
  }

  line(source, row, place) {
    const signs = source.kind === "table" ? 1 : 0;
    const cells = source.columns.map((column, number) => {
      const at = number + signs, value = row[at] ?? "";
      const input = make("input", { type: "text", value, placeholder: "NULL", autocomplete: "off", spellcheck: false, size: Math.max(3, value.length + 1),
        "aria-label": `${source.name} row ${place.row} of batch ${place.batch}, ${column.name}`, "data-cell": `${placeOf(place)}/${number}`,
        oninput: (event) => {
          event.target.size = Math.max(3, event.target.value.length + 1);
          this.actions.changed((board) => {
            const cells = board.batches[place.batch].rows[place.source][place.row];
            while (cells.length <= at) cells.push("");
            cells[at] = event.target.value;
          }, true);
        },
        onfocus: () => this.actions.chose(place) });
      return make("td", {}, input);
    });
    const sign = signs ? [make("td", {}, button(row[0] === "-" ? "−" : "+", row[0] === "-" ? "This row is a delete; make it an insert" : "This row is an insert; make it a delete",
      () => this.actions.changed((board) => { const cells = board.batches[place.batch].rows[place.source][place.row]; cells[0] = cells[0] === "-" ? "+" : "-"; })))] : [];
    const grip = make("button", { type: "button", className: "grip", draggable: true, title: "Drag to another batch, or press ↑ and ↓", "data-cell": `${placeOf(place)}/grip`,
      "aria-label": `Move row ${place.row} of ${source.name} in batch ${place.batch}`, onfocus: () => this.actions.chose(place),
      onkeydown: (event) => {
        if (event.key === "ArrowUp" || event.key === "ArrowDown") { event.preventDefault(); this.shift(place, event.key === "ArrowUp" ? -1 : 1, true); }
        if (event.key === "Delete") this.remove(place);
      },
      ondragstart: (event) => { this.dragged = place; event.dataTransfer.setData("text/plain", placeOf(place)); event.dataTransfer.effectAllowed = "move"; },
      ondragend: () => { this.dragged = null; } }, "⠿");
    const fate = make("td", { className: "fate" });
    const line = make("tr", { onclick: () => this.actions.chose(place), onpointerenter: () => this.actions.chose(place) },
      make("td", {}, grip), ...sign, ...cells, fate,
      make("td", {}, button("↑", "Move it one batch earlier", () => this.shift(place, -1)), button("↓", "Move it one batch later", () => this.shift(place, 1)),
        button("×", "Remove the row", () => this.remove(place))));
    this.lines.set(placeOf(place), { line, fate, cells });
    return line;
  }

  marks(batch, number) {
    const timed = this.sources.flatMap((source) => source.columns.filter((column) => column.isTime).map((column) => `${source.name}.${column.name}`));
    const given = Object.entries(batch.marks);
    const inputs = given.map(([name, value]) => make("span", { title: "a promise: no row with an earlier time will arrive" }, `watermark of ${name} `,
      make("input", { type: "text", value, "aria-label": `watermark of ${name} in batch ${number}`, "data-cell": `mark/${number}/${name}`, oninput: (event) => this.actions.changed((board) => { board.batches[number].marks[name] = event.target.value; }, true) }),
      button("×", `Remove this watermark of ${name}`, () => this.actions.changed((board) => { delete board.batches[number].marks[name]; }))));
    const free = timed.filter((name) => !given.some(([one]) => one === name));
    const add = free.length ? make("select", { "aria-label": `Add a mark to batch ${number}`, onchange: (event) => {
      const name = event.target.value;
      if (name) this.actions.changed((board) => { board.batches[number].marks[name] = ""; });
    } }, make("option", { value: "" }, "+ watermark of …"), ...free.map((name) => make("option", { value: name }, name))) : null;
    return [...inputs, add];
  }

  add(source, number) {
    this.actions.changed((board) => {
      const rows = board.batches[number].rows[source.name] ??= [];
      // A row like the one before it is the quickest to change.
      const like = rows.at(-1) ?? board.batches.map((batch) => batch.rows[source.name]?.at(-1)).findLast((row) => row);
      rows.push(like ? [...like] : [...(source.kind === "table" ? ["+"] : []), ...source.columns.map((column) => sample(column.type))]);
    });
    this.container.querySelector(`[data-cell="${CSS.escape(placeOf({ batch: number, source: source.name, row: this.board.batches[number].rows[source.name].length - 1 }))}/0"]`)?.focus();
  }

  remove(place) {
    this.actions.changed((board) => { board.batches[place.batch].rows[place.source].splice(place.row, 1); });
  }

  // Let a row come earlier or later by a batch; step by step: by one place, and at the edge of a batch into the next.
  shift(place, by, isStep = false) {
    const rows = this.board.batches[place.batch].rows[place.source];
    const inside = place.row + by, to = place.batch + by;
    if (isStep && inside >= 0 && inside < rows.length) { this.carry(place, place.batch, inside); return; }
    if (to < 0) return;
    const there = this.board.batches[to]?.rows[place.source]?.length ?? 0;
    this.carry(place, to, by < 0 ? there : 0);
  }

  carry(place, batch, row) {
    const target = { batch, source: place.source, row };
    this.actions.changed((board) => {
      const [moved] = board.batches[place.batch].rows[place.source].splice(place.row, 1);
      if (batch >= board.batches.length) board.batches.push({ rows: {}, marks: {}, now: "", restart: false });
      (board.batches[batch].rows[place.source] ??= []).splice(row, 0, moved);
    });
    this.container.querySelector(`[data-cell="${CSS.escape(placeOf(target))}/grip"]`)?.focus();
    this.actions.chose(target);
  }

  drop(number, event) {
    const place = this.dragged;
    this.dragged = null;
    if (!place) return;
    const over = event.target.closest("tr");
    const found = [...this.lines].find(([, one]) => one.line === over)?.[0].split("/");
    const rows = this.board.batches[number].rows[place.source] ?? [];
    const row = found && found.slice(2).join("/") === place.source ? Number(found[1]) : rows.length;
    this.carry(place, number, number === place.batch ? Math.min(row, rows.length - 1) : row);
  }

  // The outcome of each row, and cells that are not values; elements are kept, so that typing is not disturbed.
  decorate(answer) {
    for (const { fate, cells } of this.lines.values()) {
      fate.textContent = "";
      for (const cell of cells) { cell.firstChild.classList.remove("wrong"); cell.firstChild.title = ""; }
    }
    for (const row of answer.rows ?? []) {
      const line = this.lines.get(placeOf(row));
      if (!line) continue;
      line.fate.textContent = line.fate.textContent ? `${line.fate.textContent}; ${row.side}: ${row.what}` : row.what;
      line.fate.title = row.reasons.join("\n");
      line.fate.dataset.shape = row.shape;
    }
    for (const wrong of answer.wrong ?? []) {
      const cell = this.lines.get(placeOf(wrong))?.cells[wrong.column]?.firstChild;
      if (!cell) continue;
      cell.classList.add("wrong");
      cell.title = wrong.message;
      this.lines.get(placeOf(wrong)).fate.textContent = wrong.message;
    }
  }

  dim(step) {
    for (const card of this.container.children) card.classList.toggle("after", Number(card.dataset.batch) >= step);
  }

  choose(place) {
    for (const [at, { line }] of this.lines) line.classList.toggle("chosen", at === placeOf(place));
    const line = this.lines.get(placeOf(place))?.line;
    if (!line) return;
    const from = line.getBoundingClientRect().top - this.container.getBoundingClientRect().top;
    if (from < 0 || from > this.container.clientHeight - 30) this.container.scrollTop += from - this.container.clientHeight / 2;
  }
}
