// Numbers and times as people read them.

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (n) => (n === null || n === undefined ? "–" : grouped.format(n));

export const short = (n) => {
  if (n === null || n === undefined) return "–";
  const power = Math.abs(n) >= 1e9 ? 3 : Math.abs(n) >= 1e6 ? 2 : Math.abs(n) >= 1e4 ? 1 : 0;
  return power ? `${(n / 1000 ** power).toFixed(1)} ${["", "k", "M", "G"][power]}` : grouped.format(n);
};

export const rate = (n) => (n >= 10 || !n ? grouped.format(n) : n.toFixed(1)) + "/s";

export const bytes = (n) => {
  const power = n ? Math.min(4, Math.floor(Math.log10(n) / 3)) : 0;
  return `${(n / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
};

export const seconds = (s) => (s < 10 ? `${s.toFixed(2)} s` : s < 120 ? `${s.toFixed(1)} s` : length(s));

// A length of time in its two largest units.
export function length(given) {
  const sign = given < 0 ? "-" : "";
  let rest = Math.abs(given);
  if (rest < 1) return `${sign}${Math.round(rest * 1000)} ms`;
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    if (rest >= size && parts.length < 2) {
      parts.push(`${Math.floor(rest / size)} ${unit}`);
      rest %= size;
    } else if (parts.length) break;
  }
  return sign + parts.join(" ");
}

// The same in one unit, for the side of a chart.
export function brief(given) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([size]) => Math.abs(given) >= size) || [0.001, "ms"];
  return given ? `${Number((given / size).toPrecision(2))} ${unit}` : "0";
}

const pad = (n) => String(n).padStart(2, "0");

// Microseconds since 1970, as text, for they may be more than a number holds exactly.
export const moment = (micros) => Number(BigInt(micros) / 1000n) / 1000;

export function clock(at) {
  const d = new Date(at * 1000);
  return `${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}:${pad(d.getUTCSeconds())}`;
}

export function day(at) {
  const d = new Date(at * 1000);
  return Number.isNaN(d.getTime()) ? String(at) : `${d.getUTCFullYear()}-${pad(d.getUTCMonth() + 1)}-${pad(d.getUTCDate())}`;
}

export const stamp = (at) => `${day(at)} ${clock(at)}`;

// A watermark: a time, or a number where its column holds numbers.
export function mark(value, temporal) {
  if (value === null || value === undefined) return "none yet";
  if (value === "ended") return "ended";
  return temporal ? stamp(moment(value)) : grouped.format(BigInt(value));
}
