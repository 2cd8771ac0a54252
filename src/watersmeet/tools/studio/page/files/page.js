// The page: asks the server for what there is, again whenever it says that something changed.
import { html, render, useEffect, useState } from "./preact-htm.js";
import { Batches, Drawing, LIVES, Numbers, Open, Problems, Rows, Spread, State, Text, Time } from "./parts.js";
import { clock, rate, short } from "./words.js";

const asked = async (path) => {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  return answer.ok ? answer.json() : null;
};
// What is shown stands in the address, so that a link shows the same: #/query?open=time,state&part=join1&find=text
const place = () => {
  const [name, rest] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: decodeURIComponent(name), shown: new URLSearchParams(rest || "") };
};
const wanted = () => place().name;
const link = (name, shown) => {
  const rest = shown.toString().replaceAll("%2C", ",");
  return `#/${encodeURIComponent(name)}${rest ? `?${rest}` : ""}`;
};
// The link to another query keeps what is open and what is searched for; a part belongs to its query.
const linkTo = (name) => {
  const { shown } = place();
  shown.delete("part");
  return link(name, shown);
};
function useShown() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const moved = () => redraw((n) => n + 1);
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const { name, shown } = place();
  const put = (key, value) => {
    if (value === null || value === "") shown.delete(key);
    else shown.set(key, value);
    history.replaceState(null, "", link(name, shown));
    redraw((n) => n + 1);
  };
  return [shown, put];
}
const THEMES = ["auto", "light", "dark"];

function useTheme() {
  const [theme, set] = useState(localStorage.getItem("theme") || "auto");
  document.documentElement.dataset.theme = theme;
  const next = () => {
    const following = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem("theme", following);
    set(following);
  };
  return [theme, next];
}

// The display: the project, the selected query, its drawing, and how far the server's clock is ahead.
function useTold() {
  const [told, tell] = useState({ project: null, query: null, drawing: null, ahead: 0, alive: false, ended: null, seen: 0 });
  useEffect(() => {
    let drawn = null;
    let busy = false;
    let again = false;
    const load = async () => {
      if (busy) {
        again = true;
        return;
      }
      busy = true;
      try {
        const project = await asked("api/project");
        const names = project.queries.map((one) => one.name);
        const name = names.includes(wanted()) ? wanted() : names[0];
        const way = encodeURIComponent(name);
        const [query, drawing] = await Promise.all([asked(`api/query/${way}`), drawn?.name === name ? drawn.drawing : asked(`api/drawing/${way}`)]);
        drawn = { name, drawing };
        tell({ project, query, drawing, ahead: query.now - Date.now() / 1000, alive: true, ended: null, seen: query.now });
      } catch {
        tell((before) => ({ ...before, alive: false }));
      }
      setTimeout(() => {
        busy = false;
        if (again) {
          again = false;
          load();
        }
      }, 250);
    };
    const changes = new EventSource("api/changes");
    changes.onmessage = load;
    // The last word of a run: how each query is now.
    changes.addEventListener("end", (event) => tell((before) => ({ ...before, alive: false, ended: JSON.parse(event.data) })));
    changes.onerror = () => tell((before) => ({ ...before, alive: false }));
    addEventListener("hashchange", load);
    load();
    return () => {
      changes.close();
      removeEventListener("hashchange", load);
    };
  }, []);
  return told;
}

function useNow(ahead) {
  const [now, set] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => set(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  return now + ahead;
}

const matches = (one, words) => words.every((word) => [one.name, LIVES[one.life], ...one.sources].some((text) => text.toLowerCase().includes(word)));

function Queries({ project, query, find, put }) {
  const words = find.toLowerCase().split(/\s+/).filter(Boolean);
  const found = project.queries.map((one, n) => [one, n]).filter(([one]) => matches(one, words));
  const entered = (event) => {
    if (event.key === "Escape") put("find", "");
    else if (event.key === "Enter" && found.length) location.hash = linkTo(found[0][0].name);
  };
  return html`${project.queries.length > 1 && html`<input type="search" id="find" placeholder="Find a query" aria-label="Find a query by its name, its sources or its state"
      title="press /" value=${find} onInput=${(event) => put("find", event.target.value)} onKeyDown=${entered} />`}
    <nav aria-label="Queries">${found.map(
      ([one, n]) => html`<a href=${linkTo(one.name)} class=${one.life} aria-current=${one.name === query.name ? "page" : null} title=${n < 9 ? `press ${n + 1}` : ""}>
        <i class="dot" aria-hidden="true"></i><b>${one.name}</b> <span>${one.life === "runs" ? rate(one.rate_in) : LIVES[one.life]}</span>
        ${one.problems ? html`<em class="count" aria-label=${`${one.problems} problems`}>${one.problems}</em>` : null}</a>`,
    )}${found.length ? null : html`<span class="none">no query matches</span>`}</nav>`;
}

function Share() {
  const [done, set] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(location.href).catch(() => prompt("The link to what is shown:", location.href));
    set(true);
    setTimeout(() => set(false), 2000);
  };
  return html`<button type="button" id="share" onClick=${copy} title="Copies the link to this query, with what is open">${done ? "copied" : "link"}</button>`;
}

// A query cannot run where its process is gone, whatever was said last.
const lifeNow = (life, name, alive, ended) => ended?.[name] ?? (life === "runs" && !alive ? "lost" : life);

function Page() {
  const { project: last, query: latest, drawing, ahead, alive, ended, seen } = useTold();
  const [theme, nextTheme] = useTheme();
  const [shown, put] = useShown();
  const chosen = drawing?.boxes.some((one) => one.id === shown.get("part")) ? shown.get("part") : null;
  const choose = (id) => put("part", id);
  const now = useNow(ahead);
  const project = last && { ...last, queries: last.queries.map((one) => ({ ...one, life: lifeNow(one.life, one.name, alive, ended) })) };
  const query = latest && { ...latest, life: lifeNow(latest.life, latest.name, alive, ended) };
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input")) return;
      const number = Number(event.key);
      if (event.key === "Escape") put("part", null);
      else if (event.key === "/" && document.getElementById("find")) {
        event.preventDefault();
        document.getElementById("find").focus();
      } else if (number >= 1 && last?.queries[number - 1]) location.hash = linkTo(last.queries[number - 1].name);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [last]);
  if (!project || !query) return html`<main class="empty"><p>${alive ? "…" : "Loading …"}</p></main>`;
  document.title = `${query.problems.length ? `(${query.problems.length}) ` : ""}${query.name} · Watersmeet`;
  return html`
    <header class="top">
      <h1><img src="icon.svg" alt="" width="22" height="22" />${project.name}</h1>
      <${Queries} project=${project} query=${query} find=${shown.get("find") || ""} put=${put} />
      <div class="right">
        <span class=${`pulse ${alive ? "" : "lost"}`} role="status">${alive ? `${clock(now)} UTC` : ended ? "the run has ended" : `no connection since ${clock(seen)} UTC`}</span>
        <${Share} />
        <button type="button" onClick=${nextTheme} title="Colours: automatic, light, dark">${theme}</button>
      </div>
    </header>
    <main>
      <h2 class="query" id="query"><span>${query.name}</span> <small class=${query.life}>${LIVES[query.life]}${query.phase && ", reads the history"}</small></h2>
      <${Problems} query=${query} />
      <${Numbers} query=${query} />
      <${Drawing} drawing=${drawing} query=${query} now=${now} chosen=${chosen} choose=${choose} />
      <${Open.Provider} value=${{ shown, put }}>
        <${Time} query=${query} now=${now} />
        <${State} query=${query} />
        <${Spread} query=${query} />
        <${Batches} query=${query} />
        <${Rows} rows=${query.rows} query=${query} />
        <${Text} query=${query} project=${project} />
      <//>
    </main>`;
}

render(html`<${Page} />`, document.getElementById("page"));
