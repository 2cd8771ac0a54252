// The picture of lifetimes, as the server draws it: rows in it can be pointed at, reached by key, and moved in time.

const SECOND = 1e6, STEPS = [1, 1e3, SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, 60 * SECOND, 300 * SECOND, 600 * SECOND, 1800 * SECOND, 3600 * SECOND, 86400 * SECOND];

export class Picture {
  constructor(figure, actions) {
    Object.assign(this, { figure, actions, drag: null, sent: null, rows: [], chosen: null });
    figure.addEventListener("pointerdown", (event) => this.down(event));
    figure.addEventListener("pointermove", (event) => this.move(event));
    figure.addEventListener("pointerup", () => { this.drag = null; });
    figure.addEventListener("pointercancel", () => { this.drag = null; });
    figure.addEventListener("pointerover", (event) => { const place = this.at(event.target); if (place && !this.drag) actions.chose(place); });
    figure.addEventListener("focusin", (event) => { const place = this.at(event.target); if (place) actions.chose(place); });
    figure.addEventListener("keydown", (event) => this.key(event));
  }

  show(answer) {
    this.figure.classList.toggle("old", answer.picture === undefined);
    if (answer.picture === undefined) return;
    this.rows = answer.rows;
    if (this.sent && Number(this.found(this.sent)?.time) === this.sent.to) this.sent = null;
    this.isTime = answer.unit === "microseconds";
    this.canMove = answer.axis === "event time";
    this.timed = new Set(answer.sources.filter((source) => source.columns.some((column) => column.isTime)).map((source) => source.name));
    this.figure.classList.toggle("fixed", !this.canMove);
    const held = this.figure.contains(document.activeElement) ? this.chosen : null;
    // Parsed strictly as XML: anything else is not shown.
    const drawn = new DOMParser().parseFromString(answer.picture, "image/svg+xml").documentElement;
    if (drawn.nodeName !== "svg") { this.figure.replaceChildren(); return; }
    for (const lane of drawn.querySelectorAll(".lane")) {
      lane.setAttribute("tabindex", "0");
      lane.setAttribute("role", "img");
      lane.setAttribute("aria-label", lane.querySelector("title").textContent);
    }
    this.figure.replaceChildren(document.importNode(drawn, true));
    if (this.chosen) this.choose(this.chosen);
    if (held) this.lane(held)?.focus({ preventScroll: true });
  }

  place(row) { return { batch: row.batch, source: row.source, row: row.row }; }

  at(target) {
    const lane = target.closest?.(".lane");
    const row = lane && this.rows.find((one) => one.arrival === Number(lane.dataset.arrival));
    return row ? this.place(row) : null;
  }

  found(place) { return this.rows.find((row) => row.batch === place.batch && row.source === place.source && row.row === place.row); }

  lane(place) {
    const row = this.found(place);
    return row ? this.figure.querySelector(`[data-arrival="${row.arrival}"]`) : null;
  }

  choose(place) {
    this.chosen = place;
    for (const lane of this.figure.querySelectorAll(".lane.chosen")) lane.classList.remove("chosen");
    this.lane(place)?.classList.add("chosen");
  }

  get scale() {
    const { low, high, left, right } = this.figure.querySelector("svg").dataset;
    return { low: Number(low), per: (Number(high) - Number(low)) / (Number(right) - Number(left)) };
  }

  // A step that a hand can hit: some pixels, in a length that people count in.
  get unit() {
    const wanted = Math.max(1, this.scale.per * 6);
    if (this.isTime) return STEPS.findLast((step) => step <= wanted) ?? 1;
    return Math.max(1, 10 ** Math.floor(Math.log10(wanted)));
  }

  time(place) {
    const row = this.found(place), sent = this.sent;
    if (!this.canMove || !row || row.time === null || !this.timed.has(row.source)) return null;
    // Keys may come faster than answers.
    const isSent = sent && sent.batch === place.batch && sent.source === place.source && sent.row === place.row;
    return isSent ? sent.to : Number(row.time);
  }

  down(event) {
    const place = this.at(event.target), time = place && this.time(place);
    if (time === null || event.button !== 0) return;
    event.preventDefault();
    this.lane(place).focus({ preventScroll: true });
    this.drag = { place, from: event.clientX, time, sent: time, unit: this.unit, per: this.scale.per };
    this.figure.setPointerCapture(event.pointerId);
  }

  move(event) {
    const drag = this.drag;
    if (!drag) return;
    const to = Math.round((drag.time + (event.clientX - drag.from) * drag.per) / drag.unit) * drag.unit;
    if (to === drag.sent) return;
    drag.sent = to;
    this.actions.moved(drag.place, to);
  }

  key(event) {
    const place = this.at(event.target);
    if (!place) return;
    if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      this.actions.batch(place, event.key === "ArrowUp" ? -1 : 1);
      return;
    }
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], time = this.time(place);
    if (by === undefined || time === null) return;
    event.preventDefault();
    const to = time + by * this.unit * (event.shiftKey ? 10 : 1);
    this.sent = { ...place, to };
    this.actions.moved(place, to);
  }
}
