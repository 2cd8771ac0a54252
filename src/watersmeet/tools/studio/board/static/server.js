// Requests to the server. Of several changes that come while it computes, only the last one is sent.

async function asked(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The board's server does not answer. Is watersmeet play still running?");
  }
  const type = response.headers.get("content-type") ?? "";
  const said = type.startsWith("application/json") ? await response.json() : { message: await response.text() };
  if (!response.ok) throw new Error(said.message);
  return said;
}

export const first = () => asked("/first");
export const shelf = () => asked("/shelf");
export const open = (number) => asked(`/open/${number}`);
export const save = (board) => asked("/save", { board });

// A request that has taken so many milliseconds is given up for the next one: the server then ends its computation.
const PATIENCE = 1000;

// One request at a time. ask: the board is to be answered as it is then; move: a row of it is to be moved first.
export function line(board, then, failed) {
  let running = null, wanted = false, move = null;

  async function work() {
    if (running) { hurry(); return; }
    while (wanted || move) {
      const moving = move;
      wanted = false;
      move = null;
      running = { stop: new AbortController(), since: performance.now(), timer: 0 };
      try {
        const said = await asked(moving ? "/move" : "/answer", { ...board(), ...moving }, running.stop.signal);
        then(said, moving, wanted || move !== null);
      } catch (error) {
        if (running.stop.signal.aborted) move ??= moving;
        else failed(error);
      }
      clearTimeout(running.timer);
    }
    running = null;
  }

  function hurry() {
    const { stop, since, timer } = running;
    clearTimeout(timer);
    running.timer = setTimeout(() => stop.abort(), Math.max(0, since + PATIENCE - performance.now()));
  }

  return { ask() { wanted = true; work(); }, move(moving) { move = moving; work(); } };
}
