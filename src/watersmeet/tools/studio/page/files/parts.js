// What the page is made of: the drawing, time, state, batches, rows, problems. Each takes the query as the server tells it.
import { createContext, html, useContext, useEffect, useRef, useState } from "./preact-htm.js";
import { Chart, Histogram } from "./charts.js";
import { brief, bytes, clock, count, length, mark, moment, rate, seconds, short, stamp } from "./words.js";

export const LIVES = {
  runs: "runs",
  failed: "failed",
  gone: "process gone",
  ended: "ended",
  stopped: "stopped",
  unknown: "never ran here",
  lost: "no connection",
};

// The sections that are open: those that the address names, else those that are open by default.
export const Open = createContext(null);
const BY_DEFAULT = matchMedia("(max-width: 700px)").matches ? [] : ["time", "state"];

// A section with its title and, in short, what is in it.
function Fold({ name, title, short, children }) {
  const { shown, put } = useContext(Open);
  const open = shown.has("open") ? shown.get("open").split(",") : BY_DEFAULT;
  const isOpen = open.includes(name);
  const toggled = (event) => {
    event.preventDefault();
    const now = isOpen ? open.filter((one) => one !== name) : [...open, name];
    put("open", now.filter(Boolean).join(",") || "none");
  };
  return html`<section aria-label=${title} id=${name}><details class="fold" open=${isOpen}>
    <summary onClick=${toggled}><h2>${title}</h2><span class="said" id=${`${name}-short`}>${short}</span></summary>
    ${isOpen ? children : null}
  </details></section>`;
}

const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

export function Problems({ query }) {
  const said = html`<section class="calm" aria-label="Life"><p><${Advice} text=${calm(query)} /></p></section>`;
  if (!query.problems.length) return said;
  return html`${["ended", "stopped", "lost"].includes(query.life) ? said : null}<section class="problems" aria-label="Problems">
    <h2>What to look at</h2>
    <ul>
      ${query.problems.map(
        (one) => html`<li class=${one.level}><span class="badge">${one.level}</span>
          <div><p>${one.text}</p>${one.advice && html`<p class="advice"><${Advice} text=${one.advice} /></p>`}</div></li>`,
      )}
    </ul>
  </section>`;
}

const calm = (query) =>
  query.life === "unknown"
    ? "This query has not run yet. `watersmeet run` starts it, and what it does appears here."
    : query.life === "runs"
      ? "No problems: no source is silent, no row is lost."
      : query.life === "lost"
        ? "The process that served this page is gone or cannot be reached: these are its last numbers."
        : `It ${query.life === "ended" ? "has ended" : "was stopped"}; the next run continues from its checkpoint.`;

// What stands between backquotes is to be typed.
const Advice = ({ text }) => text.split("`").map((part, n) => (n % 2 ? html`<code>${part}</code>` : part));

// A query that does not run has no rate.
const flows = (query, text) => (query.life === "runs" ? text : "");

export function Numbers({ query }) {
  const cells = [
    ["rows in", count(query.rows_in), flows(query, rate(query.rate_in))],
    ["rows out", count(query.rows_out), flows(query, rate(query.rate_out))],
    ["matched", count(query.matched), ""],
    ["padded", count(query.padded), ""],
    ["late", count(query.late), query.late_of ? `${((100 * query.late) / query.late_of).toFixed(2)} % of ${short(query.late_of)}` : ""],
    ["kept", count(query.state_rows), bytes(query.state_bytes)],
    ["latest batch", seconds(query.seconds), query.batch === null ? "" : `number ${count(query.batch)}`],
  ];
  for (const name of ["malformed", "dropped"]) if (query[name]) cells.splice(5, 0, [name, count(query[name]), ""]);
  return html`<dl class="numbers">
    ${cells.map(
      ([name, value, beside]) => html`<div><dt>${name}</dt><dd id=${`n-${name.replace(" ", "-")}`}>${value}</dd><dd class="beside">${beside}</dd></div>`,
    )}
  </dl>`;
}

const lastOf = (query, box) => query.operators[box.operator];

// Rows are counted where they come into what keeps them: those of a union together, and of some sources not at all.
const uncounted = (box, query) =>
  Object.keys(query.sources).some((name) => name.split("+").includes(box.source)) ? "counted with its union" : query.rows_in ? "not counted by itself" : "no rows yet";

const flowing = (query, perSecond, rows) => (query.life === "runs" ? `${rate(perSecond)} · ` : "") + plural(rows, "row");

// What goes into a sink: the result, or late rows; how many rows go into others is not counted.
function into(title, query) {
  if (title.startsWith("INSERT INTO") || title.startsWith("SELECT")) return [flowing(query, query.rate_out, query.rows_out)];
  return title.startsWith("late rows INTO") ? [plural(query.late, "row")] : ["not counted by itself"];
}

// The living lines of a box, as many as it has room for.
function live(box, query) {
  if (box.kind === "source") {
    const source = query.sources[box.source];
    if (!source) return [uncounted(box, query), ""];
    const waits = source.backlog !== null ? plural(source.backlog, "row") : source.waiting_files !== null ? plural(source.waiting_files, "file") : "unknown";
    const backlog = waits === "unknown" && query.life !== "runs" ? "" : `backlog ${waits}`;
    return [flowing(query, source.rate, source.rows), backlog];
  }
  if (box.kind === "union") {
    const whole = Object.entries(query.sources).filter(([name]) => name.includes("+"));
    return whole.length === 1 ? [flowing(query, whole[0][1].rate, whole[0][1].rows)] : [];
  }
  if (box.kind === "sink") return into(box.title.join(" "), query);
  const numbers = lastOf(query, box);
  if (!numbers) return box.live ? ["no batch yet"] : [];
  const alive = Object.values(numbers.sides).map((side) => `${side.name} ${short(side.state_rows)}`);
  const busy = `busy ${Math.round(100 * numbers.busy)} %`;
  if (box.kind !== "join") return [`keeps ${plural(numbers.state_rows, "row")}`, `${short(numbers.events_processed)} in · ${short(numbers.events)} out`, busy];
  return [
    `alive: ${alive.join(" · ")}`,
    `${short(numbers.matched)} matched · ${short(numbers.padded)} padded`,
    `${short(numbers.late)} late · ${short(numbers.dropped)} dropped`,
    busy,
  ];
}

// The watermark that goes along an edge, and how far it is behind now.
function along(line, drawing, query, now) {
  const box = drawing.boxes.find((one) => one.id === line.start);
  const mine = query.marks.filter((one) => box.aliases.includes(one.column.split(".")[0]));
  const isFirst = ["source", "union", "view"].includes(box.kind);
  const found = mine.map((one) => ({ ...one, value: isFirst && one.own !== null ? one.own : one.mark })).filter((one) => one.value !== null);
  if (!found.length) return mine.length ? ["no watermark yet", ""] : null;
  if (found.every((one) => one.value === "ended")) return ["ended", ""];
  const open = found.filter((one) => one.value !== "ended");
  const slowest = open.reduce((a, b) => (BigInt(b.value) < BigInt(a.value) ? b : a));
  if (!slowest.temporal) return [mark(slowest.value, false), ""];
  const at = moment(slowest.value);
  const told = now - at > 86400 ? stamp(at).slice(5) : clock(at);
  return [told, `${length(now - at)} behind`];
}

const BUSY = 60;

export function Drawing({ drawing, query, now, chosen, choose }) {
  const margin = 18;
  const box = `${-margin} ${-margin} ${drawing.width + 2 * margin} ${drawing.height + 2 * margin}`;
  const scroll = useRef(null);
  const [isWide, setWide] = useState(false);
  useEffect(() => {
    const measure = () => setWide(scroll.current.scrollWidth > scroll.current.clientWidth + 1);
    const watcher = new ResizeObserver(measure);
    watcher.observe(scroll.current);
    measure();
    return () => watcher.disconnect();
  }, [drawing]);
  return html`<section class="drawing" aria-label="The query, live">
    ${isWide ? html`<p class="hint" id="wider">The drawing is wider than the screen: scroll it sideways →</p>` : null}
    <div class="scroll" ref=${scroll} tabindex=${isWide ? "0" : null}>
      <svg viewBox=${box} style=${{ width: `${drawing.width + 2 * margin}px` }} role="group">
        <defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto" markerUnits="userSpaceOnUse"><path class="head" d="M 0 0 L 8 4 L 0 8 z" /></marker></defs>
        ${drawing.lines.map((line) => {
          const told = along(line, drawing, query, now);
          return html`<g class="way"><path class="edge" marker-end="url(#head)" d=${line.path} />
            ${told && html`<text class="on-edge" x=${line.x} y=${line.y - 6}>${told[0]}</text><text class="on-edge behind" x=${line.x} y=${line.y + 15}>${told[1]}</text>`}</g>`;
        })}
        ${drawing.boxes.map((one) => html`<${Box} box=${one} query=${query} chosen=${chosen === one.id} choose=${choose} />`)}
      </svg>
    </div>
    ${chosen && html`<${Part} box=${drawing.boxes.find((one) => one.id === chosen)} query=${query} close=${() => choose(null)} />`}
  </section>`;
}

function Box({ box, query, chosen, choose }) {
  const lines = live(box, query);
  const numbers = lastOf(query, box);
  let y = box.y + 24;
  const rows = [];
  const put = (style, text, down) => {
    rows.push(html`<text class=${style} x=${box.x + 16} y=${y}>${text}</text>`);
    y += down;
  };
  put("kind", box.kind.toUpperCase(), 18);
  for (const text of box.title) put("title", text, 18);
  for (const text of box.lines) put("line", text, 17);
  if (box.live) y += 6;
  const first = y;
  for (const text of lines.slice(0, box.live)) put("live", text, 17);
  const open = () => choose(chosen ? null : box.id);
  const pressed = (event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open();
    }
  };
  return html`<g class=${`box ${box.kind} ${chosen ? "chosen" : ""}`} data-box=${box.id} tabindex="0" role="button" aria-expanded=${chosen ? "true" : "false"}
    aria-label=${`${box.kind} ${box.title.join(" ")}: ${lines.join(", ")}`} onClick=${open} onKeyDown=${pressed}>
    <rect class="ground" x=${box.x} y=${box.y} width=${box.width} height=${box.height} rx="7" />
    <rect class="tone" x=${box.x} y=${box.y} width="5" height=${box.height} rx="2.5" />
    ${box.live ? html`<line class="rule" x1=${box.x + 16} x2=${box.x + box.width - 12} y1=${first - 15} y2=${first - 15} />` : null}
    ${rows}
    ${numbers && html`<g class="busy"><rect class="all" x=${box.x + box.width - BUSY - 14} y=${y - 25} width=${BUSY} height="5" rx="2.5" />
      <rect class="used" x=${box.x + box.width - BUSY - 14} y=${y - 25} width=${BUSY * Math.min(1, numbers.busy)} height="5" rx="2.5" /></g>`}
  </g>`;
}

function Part({ box, query, close }) {
  const numbers = lastOf(query, box);
  return html`<div class="part" id="part">
    <header><h3>${box.title.join(" ")}</h3><button type="button" onClick=${close} aria-label="Close">×</button></header>
    <div class="columns">
      <dl class="facts">${box.facts.map(([label, lines]) => html`<dt>${label}</dt><dd>${lines.map((line) => html`<div>${line}</div>`)}</dd>`)}</dl>
      ${numbers && html`<table>
        <thead><tr><th>side</th><th class="n">rows in</th><th class="n">alive</th><th class="n">about</th><th class="n">padded</th><th class="n">late</th><th class="n">dropped</th></tr></thead>
        <tbody>${Object.values(numbers.sides).map(
          (side) => html`<tr><th scope="row">${side.name}</th>${["rows", "state_rows"].map((name) => html`<td class="n">${count(side[name])}</td>`)}<td class="n">${side.state_bytes === null ? "not known" : bytes(side.state_bytes)}</td>${["padded", "late", "dropped"].map((name) => html`<td class="n">${count(side[name])}</td>`)}</tr>`,
        )}</tbody>
        <tfoot><tr><th colspan="7">${count(numbers.matched)} matched, ${count(numbers.events)} rows out, ${plural(numbers.shards, "shard")}, busy ${Math.round(100 * numbers.busy)} % of the latest batch</th></tr></tfoot>
      </table>`}
    </div>
  </div>`;
}

export function Time({ query, now }) {
  const timed = query.marks.filter((one) => one.own !== null || one.mark !== null || one.silent);
  if (!timed.length) return null;
  const short = query.held ? html`<span id="held">${query.held}</span>` : timed.map((one) => `${one.column} ${mark(one.mark, one.temporal)}`).join(", ");
  const behind = query.series.behind;
  const lines = Object.entries(behind).filter(([, values]) => values.some((value) => value !== null)).map(([label, values]) => ({ label, values }));
  return html`<${Fold} name="time" title="Time" short=${short}>
    <${Tracks} marks=${timed} now=${now} />
    <div class="wide"><table>
      <thead><tr><th>column</th><th>newest event</th><th>watermark of its side</th><th>of the result</th><th class="n">behind now</th></tr></thead>
      <tbody>${timed.map(
        (one) => html`<tr><th scope="row">${one.column}</th><td class="at">${newest(one)}</td><td class="at">${mark(one.own, one.temporal)}</td><td class="at" data-mark=${one.column}>${mark(one.mark, one.temporal)}</td>
          <td class="n">${one.temporal && one.mark && one.mark !== "ended" ? length(now - moment(one.mark)) : ""}</td></tr>`,
      )}</tbody>
    </table></div>
    ${lines.length ? html`<${Chart} title="How far the result is behind the clock" at=${query.series.at} lines=${lines} show=${brief} height=${130} />` : null}
  <//>`;
}

function newest(one) {
  if (one.newest) return mark(one.newest, one.temporal);
  if (one.silent) return "none yet";
  if (one.own === "ended") return "ended";
  return one.lag === null ? "not known behind a view" : "not known: its watermark also advances without rows";
}

// The times of each column on one axis: newest event, watermark, and now if that is near.
function Tracks({ marks, now }) {
  const open = marks.filter((one) => one.temporal && one.own && one.own !== "ended");
  if (!open.length) return null;
  const of = (one) => [one.own, one.mark, one.newest].filter((value) => value && value !== "ended").map(moment);
  const all = open.flatMap(of);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const isNear = now - high < 4 * Math.max(high - low, 60);
  const end = isNear ? Math.max(now, high) : high;
  const x = (at) => 150 + (690 * (at - low)) / Math.max(1e-9, end - low);
  const down = 30;
  return html`<svg class="tracks" viewBox=${`0 0 880 ${open.length * down + 34}`} role="img" aria-label="Watermarks compared with each other">
    ${open.map((one, n) => {
      const y = 14 + n * down;
      const own = moment(one.own);
      return html`<g><text class="name" x="0" y=${y + 4}>${one.column}</text>
        <line class="track" x1="150" x2="840" y1=${y} y2=${y} />
        ${one.mark && one.mark !== "ended" && html`<rect class="alive" x=${x(moment(one.mark))} width=${Math.max(0, x(own) - x(moment(one.mark)))} y=${y - 3} height="6" />`}
        ${one.newest && html`<line class="lag" x1=${x(own)} x2=${x(moment(one.newest))} y1=${y} y2=${y} /><circle class="newest" cx=${x(moment(one.newest))} cy=${y} r="5" />`}
        <path class="own" d=${`M ${x(own)} ${y - 8} v 16`} />
      </g>`;
    })}
    ${isNear ? html`<line class="now" x1=${x(now)} x2=${x(now)} y1="0" y2=${open.length * down} />` : null}
    <g class="key" transform=${`translate(150 ${open.length * down + 16})`}>
      <circle class="newest" cx="5" cy="-4" r="5" /><text x="16" y="0">newest event</text>
      <path class="own" d="M 115 -11 v 14" /><text x="124" y="0">watermark</text>
      <rect class="alive" x="205" y="-7" width="20" height="6" /><text x="232" y="0">still kept</text>
      <text x="690" text-anchor="end" y="0">${isNear ? "line: now" : `now is ${length(now - high)} later`}</text>
    </g>
  </svg>`;
}

const width = (value, unit) => (unit === "time" ? length(value / 1e6) : unit === "arrivals" ? plural(value, "arrival") : count(value));

export function Spread({ query }) {
  const spread = query.spread || [];
  if (!spread.length) return null;
  return html`<${Fold} name="delays" title="Delays" short=${spread.map((one) => one.words).join(" ")}><div class="pair">${spread.map(
    (one) => one.bars.length
      ? html`<${Histogram} title=${one.title} note=${one.words} bars=${one.bars.map((bar) => ({ ...bar, label: `≤ ${width(bar.until, one.unit)}` }))} />`
      : html`<div><h3>${one.title}</h3><p class="said">${one.words}</p></div>`,
  )}</div><//>`;
}

export function State({ query }) {
  const { at, sides, state_rows, state_bytes } = query.series;
  const named = Object.entries(sides).map(([key, values]) => {
    const [operator, side] = key.split("\n");
    const known = query.operators[operator]?.sides[side];
    return { label: known ? (Object.keys(query.operators).length > 1 ? `${known.name} in ${query.operators[operator].name}` : known.name) : side, values };
  });
  const lines = named.length > 1 ? named : [{ label: "rows kept", values: state_rows }];
  if (query.max_rows) lines.push({ label: "limit", values: at.map(() => query.max_rows), limit: true });
  const limit = query.max_rows ? `The limit is ${plural(query.max_rows, "row")} per join.` : "There is no limit besides the bounds.";
  return html`<${Fold} name="state" title="State" short=${`${plural(query.state_rows, "row")} in ${bytes(query.state_bytes)}. ${limit}`}>
    ${query.next.length ? html`<ul class="next">${query.next.map((line) => html`<li>${line}</li>`)}</ul>` : null}
    <${Chart} title="Rows kept" at=${at} lines=${lines} show=${short} />
    <${Chart} title="Bytes, as reported by Spark" at=${at} lines=${[{ label: "state", values: state_bytes }]} show=${bytes} height=${110} />
  <//>`;
}

const PARTS = {
  addBatch: "run",
  queryPlanning: "plan",
  latestOffset: "look for rows",
  getBatch: "list rows",
  walCommit: "write offsets",
  commitOffsets: "commit",
  commitBatch: "commit state",
};

export function Batches({ query }) {
  const { at, parts, batches } = query.series;
  const each = (values) => values.map((value, n) => (value ?? 0) / (batches[n] || 1));
  const named = Object.entries(parts).map(([name, values]) => ({ label: PARTS[name] || name, values: each(values) }));
  named.sort((a, b) => sum(b.values) - sum(a.values));
  const all = `${plural(query.batches, "batch").replace("batchs", "batches")} in all runs${query.batches ? `; the latest took ${seconds(query.seconds)}` : ""}.`;
  return html`<${Fold} name="batches" title="Batches" short=${all}>
    ${query.series.at.length < query.batches ? html`<p class="faint">Each point of a chart covers several batches.</p>` : null}
    <${Chart} title="Seconds, by what Spark did" at=${at} lines=${named.length ? named : [{ label: "batch", values: each(query.series.seconds) }]} show=${(s) => `${Number(s.toPrecision(2))} s`} stacked=${true} />
    <${Chart} title="Rows in a batch" at=${at} lines=${["rows_in", "rows_out", "late"].map((name) => ({ label: name.replace("_", " "), values: each(query.series[name]) }))} show=${short} height=${130} />
    <details><summary>The latest batches</summary><div class="wide"><table class="batches">
      <thead><tr><th class="n">batch</th><th>began</th><th class="n">rows in</th><th class="n">out</th><th class="n">matched</th><th class="n">padded</th><th class="n">late</th><th class="n">kept</th><th class="n">seconds</th></tr></thead>
      <tbody>${query.recent.map(
        (one) => html`<tr><td class="n">${one.batches > 1 ? `${one.batches} to ` : ""}${count(one.batch)}</td><td>${stamp(one.at)}</td>${["rows_in", "rows_out", "matched", "padded", "late", "state_rows"].map((name) => html`<td class="n">${count(one[name])}</td>`)}<td class="n">${one.seconds.toFixed(2)}</td></tr>`,
      )}</tbody>
    </table></div></details>
    <${Events} events=${query.events} />
  <//>`;
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

function Events({ events }) {
  if (!events.length) return null;
  return html`<details open=${events.some((one) => ["failed", "retried"].includes(one.kind))}>
    <summary>Starts and failures</summary>
    <ol class="events">${events.map((one) => html`<li class=${one.kind}><time>${stamp(one.at)}</time> <b>${one.kind === "retried" ? "failed, restarted" : one.kind}</b> ${one.text}</li>`)}</ol>
  </details>`;
}

// A row that is clicked is asked about; malformed ones say it all by themselves.
export function Rows({ rows, query }) {
  const [told, tell] = useState(null);
  useEffect(() => tell(null), [query.name]);
  if (!rows) return null;
  const ask = async (row) => {
    if (told?.number === row.number) return tell(null);
    tell({ number: row.number, text: "Reading the input of the query …" });
    const answer = await fetch(`api/why/${encodeURIComponent(query.name)}?row=${row.number}`).then((one) => one.json()).catch(() => ({ text: "No answer: the run has ended." }));
    tell((now) => (now?.number === row.number ? { number: row.number, text: answer.text } : now));
  };
  const pressed = (event, row) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    ask(row);
  };
  const kinds = rows.kinds.filter((kind) => kind.rows.length).map((kind) => `${kind.rows.length} ${kind.kind}`).join(", ");
  return html`<${Fold} name="rows" title="Rows" short=${html`<${Advice} text=${kinds || rows.note} />`}>
    ${rows.note && kinds ? html`<p class="said">${rows.note}</p>` : null}
    ${rows.kinds.map(
      (kind) => html`<h3>${kind.name}</h3>${
        kind.rows.length
          ? html`<div class="wide"><table class="rows">
              <thead><tr>${kind.columns.map((name) => html`<th>${name}</th>`)}<th>why</th></tr></thead>
              <tbody>${kind.rows.map((row) => {
                const asks = kind.kind === "malformed" ? {} : { class: "asks", tabindex: "0", role: "button", "aria-expanded": told?.number === row.number ? "true" : "false", onClick: () => ask(row), onKeyDown: (event) => pressed(event, row) };
                return html`<tr ...${asks}>${row.values.map((value) => html`<td class=${value === null ? "null" : ""}>${value === null ? "NULL" : value}</td>`)}<td class="why">${row.why}</td></tr>
                  ${told?.number === row.number ? html`<tr class="told"><td colspan=${kind.columns.length + 1}><pre role="status">${told.text}</pre></td></tr>` : null}`;
              })}</tbody>
            </table></div>`
          : html`<p class="faint">none yet</p>`
      }`,
    )}
  <//>`;
}

export function Text({ query, project }) {
  return html`<${Fold} name="query-text" title="The query" short="its SQL, its checkpoint, Spark's page and the metrics">
    <pre class="sql"><code>${query.sql || "The query is a Substrait plan, not SQL."}</code></pre>
    <dl class="facts">
      <dt>checkpoint</dt><dd>${query.checkpoint}</dd>
      <dt>Spark's page</dt><dd>${query.spark ? html`<a href=${query.spark} rel="noreferrer">${query.spark}</a>` : query.life === "runs" ? "off; --conf spark.ui.enabled=true switches it on" : "only while it runs"}</dd>
      <dt>metrics</dt><dd>${project.has_metrics ? html`<a href="metrics">/metrics</a> for Prometheus` : "served where the queries run: watersmeet run --page"}</dd>
    </dl>
  <//>`;
}
