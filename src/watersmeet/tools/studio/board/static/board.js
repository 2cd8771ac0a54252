// The drawing board: its content, its changes, and the display of the server's answer.

import { byId, make } from "./dom.js";
import { Picture } from "./picture.js";
import { showResults } from "./results.js";
import { Rows } from "./rows.js";
import * as server from "./server.js";
import { Sql } from "./sql.js";

const state = { board: null, answer: null, step: 0, saves: null, past: [] };

const rows = new Rows(byId("batches"), { changed: (change, quietly) => alter(change, quietly), chose: (place) => choose(place) });
const sql = new Sql({ changed: (text) => alter((board) => { board.sql = text; }, true) });
const picture = new Picture(byId("picture"), {
  chose: (place) => choose(place),
  moved: (place, to) => line.move({ ...place, to }),
  batch: (place, by) => rows.shift(place, by),
});
const line = server.line(() => ({ board: state.board, ...view() }), answered, complain);

// What came back; of a move only the row is taken over, since other cells may have been typed into meanwhile.
function answered(said, moved, isOld) {
  if (moved) {
    const there = (board) => board.batches[moved.batch]?.rows[moved.source];
    if (there(state.board)?.[moved.row]) {
      remember();
      there(state.board)[moved.row] = there(said.board)[moved.row];
      rows.show(state);
    }
  }
  if (!isOld) show(moved ? said.answer : said);
}

function say(text) { byId("told").textContent = text; }
function complain(error) { say(error.message); }

function remember() {
  state.past.push(JSON.stringify(state.board));
  if (state.past.length > 200) state.past.shift();
  byId("undo").disabled = false;
}

// A change of the board; quietly: the text is already in the field.
function alter(change, quietly = false) {
  remember();
  change(state.board);
  say("");
  if (!quietly) rows.show(state);
  steps();
  line.ask();
}

const count = () => state.board.batches.length + (state.board.ends ? 1 : 0);
const view = () => ({ step: state.step >= count() ? 0 : state.step, width: Math.max(560, byId("picture").parentElement.clientWidth - 2) });

function steps() {
  const slider = byId("step"), all = count();
  state.step = Math.min(state.step || all, all);
  if (slider.dataset.full === "yes") state.step = all;
  slider.max = all;
  slider.value = state.step;
  slider.dataset.full = state.step === all ? "yes" : "no";
  byId("earlier").disabled = state.step <= 1;
  byId("later").disabled = state.step >= all;
  byId("step-said").textContent = state.step > state.board.batches.length ? "after the end of the input" : `after batch ${state.step - 1}`;
  rows.dim(state.step);
}

function stepTo(step) {
  state.step = Math.max(1, Math.min(step, count()));
  byId("step").dataset.full = state.step === count() ? "yes" : "no";
  steps();
  line.ask();
}

function show(answer) {
  const sources = JSON.stringify(state.answer?.sources);
  const runs = answer.picture !== undefined;
  state.answer = { ...answer, rows: answer.rows ?? state.answer?.rows ?? [], results: answer.results ?? state.answer?.results };
  sql.show(answer);
  if (sources !== JSON.stringify(answer.sources)) rows.show(state);
  rows.decorate(answer);
  picture.show(answer);
  showResults(byId("results"), state.answer.results, runs);
  byId("save").disabled = !runs;
}

function choose(place) {
  const found = state.answer?.rows?.filter((row) => row.batch === place.batch && row.source === place.source && row.row === place.row) ?? [];
  rows.choose(place);
  picture.choose(place);
  if (!found.length) return;
  const said = found.map((row) => make("span", {}, make("b", {}, `${row.side}, batch ${row.batch}: ${row.what}. `), row.reasons.join(" "), " "));
  byId("why").replaceChildren(...said);
}

function lay(board) {
  Object.assign(state, { board, step: 0, past: [], answer: null });
  byId("undo").disabled = true;
  byId("name").value = board.name;
  byId("ends").checked = board.ends;
  byId("step").dataset.full = "yes";
  sql.lay(board.sql);
  rows.show(state);
  steps();
  line.ask();
}

function undo() {
  const past = state.past;
  if (!past.length) return;
  const before = JSON.parse(past.pop()), rest = [...past];
  lay(before);
  state.past = rest;
  byId("undo").disabled = !rest.length;
}

async function save() {
  try {
    const said = await server.save(state.board);
    if (said.path !== null) { say(`Saved to ${said.path}.`); return; }
    const address = URL.createObjectURL(new Blob([said.text], { type: "application/yaml" }));
    const file = (state.board.name || "case").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60);
    make("a", { href: address, download: `${file || "case"}.yaml` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
    say("Downloaded as a case. Start with --save FILE to write it there.");
  } catch (error) {
    complain(error);
  }
}

async function fill() {
  const picker = byId("picker"), groups = new Map();
  for (const [number, entry] of (await server.shelf()).entries()) {
    if (!groups.has(entry.group)) groups.set(entry.group, make("optgroup", { label: entry.group }));
    groups.get(entry.group).append(make("option", { value: String(number) }, entry.title));
  }
  picker.append(...groups.values());
  picker.addEventListener("change", async () => {
    if (picker.value === "") return;
    try {
      lay((await server.open(picker.value)).board);
      say("");
    } catch (error) {
      complain(error);
    }
  });
}

byId("name").addEventListener("input", (event) => alter((board) => { board.name = event.target.value; }, true));
byId("ends").addEventListener("change", (event) => alter((board) => { board.ends = event.target.checked; }));
byId("query").addEventListener("change", (event) => alter((board) => { board.query = event.target.value; }));
byId("add-batch").addEventListener("click", () => alter((board) => { board.batches.push({ rows: {}, marks: {}, now: "", restart: false }); }));
byId("undo").addEventListener("click", undo);
byId("save").addEventListener("click", save);
byId("earlier").addEventListener("click", () => stepTo(state.step - 1));
byId("later").addEventListener("click", () => stepTo(state.step + 1));
byId("step").addEventListener("input", (event) => stepTo(Number(event.target.value)));
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => state.board && line.ask(), 150); });

try {
  const said = await server.first();
  state.saves = said.saves;
  lay(said.board);
  await fill();
} catch (error) {
  complain(error);
}
