// The query: its text, where it is refused, and why.

import { byId, make } from "./dom.js";

export class Sql {
  constructor(actions) {
    this.area = byId("sql");
    this.area.addEventListener("input", () => { this.shade([]); actions.changed(this.area.value); });
    this.area.addEventListener("scroll", () => this.scroll());
  }

  lay(text) {
    this.area.value = text;
    this.shade([]);
  }

  scroll() {
    const below = byId("shade").parentElement;
    below.scrollTop = this.area.scrollTop;
    below.scrollLeft = this.area.scrollLeft;
  }

  // The text again, behind the text: only underlined errors are visible.
  shade(spans) {
    const text = this.area.value, parts = [];
    let from = 0;
    for (const [start, end] of spans.sort((a, b) => a[0] - b[0])) {
      if (start < from) continue;
      parts.push(text.slice(from, start), make("mark", {}, text.slice(start, Math.max(end, start + 1))));
      from = Math.max(end, start + 1);
    }
    byId("shade").replaceChildren(...parts, text.slice(from), "\n");
    this.scroll();
  }

  show(answer) {
    const here = answer.refusals.filter((refusal) => refusal.span && refusal.place.file === "the board");
    this.shade(here.map((refusal) => refusal.span));
    const boxes = answer.refusals.map((refusal) => this.refusal(refusal));
    if (answer.note) boxes.push(make("p", { className: "note" }, answer.note));
    byId("refusals").replaceChildren(...boxes);
    const names = answer.queries ?? [], query = byId("query");
    byId("queries").hidden = names.length < 2;
    query.replaceChildren(...names.map((name) => make("option", { value: name }, name || "SELECT")));
    query.value = answer.query ?? "";
  }

  refusal(refusal) {
    const place = refusal.place;
    const jump = refusal.span && place ? make("button", { type: "button", onclick: () => this.go(refusal.span) }, `line ${place.line}, column ${place.column}`) : null;
    return make("div", { className: "refusal" },
      make("p", {}, make("b", {}, refusal.message)),
      refusal.label ? make("p", {}, refusal.label, ".") : null,
      refusal.hint ? make("p", { className: "hint" }, "Hint: ", refusal.hint) : null,
      make("p", { className: "condition" }, jump, jump ? " " : "", `${refusal.condition}, SQLSTATE ${refusal.sqlstate}`));
  }

  go([start, end]) {
    this.area.focus();
    this.area.setSelectionRange(start, end);
    const line = this.area.value.slice(0, start).split("\n").length - 1;
    this.area.scrollTop = Math.max(0, line * 19.5 - 60);
  }
}
