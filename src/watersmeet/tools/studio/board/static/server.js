// What is asked of the server. Of several changes that come while it computes, only the last one is sent.

async function asked(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
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

// One request at a time. ask: the board is to be answered as it is then; move: a row of it is to be moved first.
export function line(board, then, failed) {
  let busy = false, wanted = false, move = null;

  async function work() {
    if (busy) return;
    busy = true;
    while (wanted || move) {
      const moving = move;
      wanted = false;
      move = null;
      try {
        const said = await asked(moving ? "/move" : "/answer", { ...board(), ...moving });
        then(said, moving, wanted || move !== null);
      } catch (error) {
        failed(error);
      }
    }
    busy = false;
  }

  return { ask() { wanted = true; work(); }, move(moving) { move = moving; work(); } };
}
