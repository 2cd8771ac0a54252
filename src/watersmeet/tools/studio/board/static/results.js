// The rows that came out, batch by batch, with the rows kept then.

import { make } from "./dom.js";

export function showResults(container, results, isCurrent) {
  container.classList.toggle("old", !isCurrent);
  if (!results) { container.replaceChildren(); return; }
  const rows = results.batches.flatMap((batch) => {
    const kept = Object.entries(batch.state).map(([side, count]) => `${side} ${count}`).join(", ");
    const marks = Object.entries(batch.watermarks).map(([column, mark]) => `${column} ${mark}`).join(", ");
    const end = [make("td", {}, kept), make("td", {}, marks)];
    if (!batch.rows.length) return [make("tr", {}, make("td", {}, batch.label), make("td", { colSpan: results.columns.length || 1, className: "null" }, "nothing"), ...end)];
    return batch.rows.map((row, number) => make("tr", {}, make("td", {}, number ? "" : batch.label),
      ...row.map((value) => make("td", value === "NULL" ? { className: "null" } : {}, value)), ...(number ? [make("td"), make("td")] : end)));
  });
  const heads = ["batch", ...results.columns, "rows in the state", "watermarks of the result"];
  container.replaceChildren(make("h2", {}, "Rows of the result"),
    make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((name) => make("th", {}, name)))), make("tbody", {}, ...rows)));
}
