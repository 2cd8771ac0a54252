// The page: asks the server for what there is, again whenever it says that something changed.
import { html, render, useEffect, useState } from "./preact-htm.js";
import { Batches, Drawing, LIVES, Numbers, Problems, Rows, Spread, State, Text, Time } from "./parts.js";
import { clock, rate, short } from "./words.js";

const asked = async (path) => {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  return answer.ok ? answer.json() : null;
};
const wanted = () => decodeURIComponent(location.hash.replace(/^#\/?/, ""));
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
  const [told, tell] = useState({ project: null, query: null, drawing: null, ahead: 0, alive: false });
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
        tell({ project, query, drawing, ahead: query.now - Date.now() / 1000, alive: true });
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

function Page() {
  const { project, query, drawing, ahead, alive } = useTold();
  const [theme, nextTheme] = useTheme();
  const [chosen, choose] = useState(null);
  const now = useNow(ahead);
  useEffect(() => choose(null), [query?.name]);
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const number = Number(event.key);
      if (event.key === "Escape") choose(null);
      else if (number >= 1 && project?.queries[number - 1]) location.hash = `#/${encodeURIComponent(project.queries[number - 1].name)}`;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [project]);
  if (!project || !query) return html`<main class="empty"><p>${alive ? "…" : "Loading …"}</p></main>`;
  document.title = `${query.problems.length ? `(${query.problems.length}) ` : ""}${query.name} · Watersmeet`;
  return html`
    <header class="top">
      <h1><img src="icon.svg" alt="" width="22" height="22" />${project.name}</h1>
      <nav aria-label="Queries">${project.queries.map(
        (one, n) => html`<a href=${`#/${encodeURIComponent(one.name)}`} class=${one.life} aria-current=${one.name === query.name ? "page" : null} title=${n < 9 ? `press ${n + 1}` : ""}>
          <i class="dot" aria-hidden="true"></i><b>${one.name}</b> <span>${one.life === "runs" ? rate(one.rate_in) : LIVES[one.life]}</span>
          ${one.problems ? html`<em class="count" aria-label=${`${one.problems} problems`}>${one.problems}</em>` : null}</a>`,
      )}</nav>
      <div class="right">
        <span class=${`pulse ${alive ? "" : "lost"}`} role="status">${alive ? `${clock(now)} UTC` : "no connection"}</span>
        <button type="button" onClick=${nextTheme} title="Colours: automatic, light, dark">${theme}</button>
      </div>
    </header>
    <main>
      <h2 class="query" id="query"><span>${query.name}</span> <small class=${query.life}>${LIVES[query.life]}</small></h2>
      <${Problems} query=${query} />
      <${Numbers} query=${query} />
      <${Drawing} drawing=${drawing} query=${query} now=${now} chosen=${chosen} choose=${choose} />
      <${Time} query=${query} now=${now} />
      <${Spread} query=${query} />
      <div class="pair"><${State} query=${query} /><${Batches} query=${query} /></div>
      <${Rows} rows=${query.rows} query=${query} />
      <${Text} query=${query} project=${project} />
    </main>`;
}

render(html`<${Page} />`, document.getElementById("page"));
