// Charts over the time of the clock, drawn by uPlot.
import { html, useEffect, useRef } from "./preact-htm.js";
import { clock, day } from "./words.js";

// Okabe and Ito's colours, which people of every colour vision tell apart; page.css has them for light and for dark.
const NUMBER = 8;
const colour = (n) => getComputedStyle(document.documentElement).getPropertyValue(`--c${n % NUMBER}`).trim();
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [], [6, 3], [2, 3], [8, 3, 2, 3]];

function axis(values) {
  const style = getComputedStyle(document.documentElement);
  const grid = { stroke: style.getPropertyValue("--grid").trim(), width: 1 };
  return {
    stroke: style.getPropertyValue("--faint").trim(),
    grid,
    ticks: { ...grid, size: 4 },
    font: "11px system-ui, sans-serif",
    ...values,
  };
}

function times(_, splits) {
  const span = splits[splits.length - 1] - splits[0];
  return splits.map((at) => (at === null ? "" : span > 86400 * 2 ? day(at).slice(5) : clock(at).slice(0, span < 600 ? 8 : 5)));
}

// lines: [{label, values, limit}]; stacked: each stands on the ones before it.
export function Chart(given) {
  // Without a batch there is no time to show.
  if (given.at.length) return html`<${Lines} ...${given} />`;
  return html`<figure class="chart"><figcaption><span class="name">${given.title}</span> no batch yet</figcaption></figure>`;
}

function Lines({ at, lines, show, stacked = false, title, height = 170 }) {
  const place = useRef(null);
  const made = useRef(null);
  const shown = lines.filter((line) => line.values.some((value) => value));
  const used = shown.length ? shown : lines.slice(0, 1);
  const shape = used.map((line) => line.label).join("\n") + stacked + colour(0);
  // The highest pile is drawn first, so that those below it stay to be seen.
  const order = used.map((_, n) => (stacked ? used.length - 1 - n : n));
  const values = stacked ? piled(used) : used.map((line) => line.values);
  const data = [at, ...order.map((n) => values[n])];
  useEffect(() => {
    const width = () => Math.max(200, place.current.clientWidth);
    const chart = new uPlot(
      {
        width: width(),
        height,
        padding: [8, 8, 0, 0],
        cursor: { points: { size: 5 }, drag: { x: false, y: false } },
        legend: { show: false },
        scales: {
          // A single batch is shown in the minute around it; left alone, uPlot would show years.
          x: { time: true, range: (chart, low, high) => (chart.data[0].length > 1 ? [low, high] : [low - 30, low + 30]) },
          y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] },
        },
        axes: [axis({ values: times, size: 26, space: 70 }), axis({ values: (_, all) => all.map(show), size: 56, space: 34 })],
        series: [
          {},
          ...order.map((n) => ({
            label: used[n].label,
            stroke: used[n].limit ? colour(5) : colour(n),
            dash: used[n].limit ? [2, 4] : stacked ? [] : DASHES[n % DASHES.length],
            width: 1.6,
            fill: stacked ? colour(n) : used.length === 1 ? `${colour(0)}22` : undefined,
            points: { show: at.length < 3 },
          })),
        ],
      },
      data,
      place.current,
    );
    made.current = chart;
    const watcher = new ResizeObserver(() => chart.setSize({ width: width(), height }));
    watcher.observe(place.current);
    return () => {
      watcher.disconnect();
      chart.destroy();
    };
  }, [shape]);
  useEffect(() => {
    made.current.setData(data);
  }, [at.length, at[at.length - 1], ...used.map((line) => line.values[line.values.length - 1])]);
  const latest = used.map((line) => `${line.label} ${show(line.values[line.values.length - 1] ?? 0)}`).join(", ");
  return html`<figure class="chart">
    <figcaption>
      <span class="name">${title}</span>
      <span class="legend">${used.map(
        (line, n) => html`<span class="entry"><${Swatch} n=${n} limit=${line.limit} stacked=${stacked} />${line.label} <b>${show(
          line.values[line.values.length - 1] ?? 0,
        )}</b></span>`,
      )}</span>
    </figcaption>
    <div ref=${place} role="img" aria-label=${`${title}: ${latest}`}></div>
  </figure>`;
}

const Swatch = ({ n, limit, stacked }) => html`<svg class="swatch" width="18" height="8" aria-hidden="true">
  <line x1="0" y1="4" x2="18" y2="4" stroke=${limit ? colour(5) : colour(n)} stroke-width=${stacked ? 7 : 2}
    stroke-dasharray=${limit ? "2 4" : stacked ? "" : DASHES[n % DASHES.length].join(" ")} />
</svg>`;

function piled(lines) {
  const sums = [];
  let below = null;
  for (const line of lines) {
    below = line.values.map((value, n) => (value ?? 0) + (below ? below[n] : 0));
    sums.push(below);
  }
  return sums;
}

// A part of a whole that is not nothing is not shown as nothing, and one that is not all is not shown as all.
const share = (part) => (part > 0 && part < 0.001 ? "< 0.1 %" : part < 1 && part > 0.995 ? `${Math.floor(1000 * part) / 10} %` : `${(100 * part).toFixed(part && part < 0.1 ? 1 : 0)} %`);

// A histogram: [{label, count, tone}]; a bar each.
export function Histogram({ title, bars, note }) {
  const most = Math.max(1, ...bars.map((bar) => bar.count));
  const all = bars.reduce((sum, bar) => sum + bar.count, 0) || 1;
  return html`<figure class="histogram">
    <figcaption><span class="name">${title}</span></figcaption>
    ${note && html`<p class="said">${note}</p>`}
    <table>
      <tbody>
        ${bars.map(
          (bar) => html`<tr>
            <th scope="row">${bar.label}</th>
            <td><div class=${`bar ${bar.tone || ""}`} style=${{ width: `${Math.max(bar.count ? 0.6 : 0, (100 * bar.count) / most)}%` }}></div></td>
            <td class="n">${share(bar.count / all)}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </figure>`;
}
