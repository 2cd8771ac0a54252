"""Serves the page over HTTP: files, data as JSON, updates and metrics. `tools.studio.web` decides about access."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from threading import Event, Lock, Thread

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.progress import Progress
from watersmeet.metrics.prometheus import CONTENT_TYPE, bind_failure, is_loopback
from watersmeet.tools.studio import asset
from watersmeet.tools.studio.page.description import QueryDescription
from watersmeet.tools.studio.page.model import (
    ONLY_WITH_RUN,
    RowSamples,
    detail,
    overview,
    query_drawing_json,
    query_status,
)
from watersmeet.tools.studio.web import address_of, build_application, file_endpoint, make_server, open_socket

COOKIE = "watersmeet"

Ask = Callable[[str, Mapping[str, str | None], int], str]
"""Answers what happened to a row: the query, the values, and the number of rows the query has read."""
NOT_YET = "Spark is not ready yet: ask again in a moment. With --remote, use `watersmeet why` in a terminal."


class Watch:
    """The data of a page. Requests come from several threads.

    ``name`` is that of the project; ``metrics`` gives the text for Prometheus, where queries run in this process;
    ``rows`` are the rows shown, and ``ask``, once it is set, gives their outcomes.
    """

    def __init__(
        self,
        name: str,
        queries: Sequence[QueryDescription],
        metrics: Callable[[], str] | None = None,
        rows: RowSamples | None = None,
    ) -> None:
        self.name, self.metrics = name, metrics
        self.rows = RowSamples(ONLY_WITH_RUN) if rows is None else rows
        self._queries = {query.name: (query, HistoryFollower(query.storage, query.name)) for query in queries}
        self.ask: Ask | None = None
        self._lock = Lock()

    def take(self, progress: Progress) -> None:
        """Take in one batch of a query that runs in this process, with its rows."""
        with self._lock:
            self.rows.take(progress)

    def versions(self) -> dict[str, str]:
        """A version of each query, which changes when there is something new to show of it."""
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            return {
                name: f"{follower.version} {query_status(follower)}" for name, (_, follower) in self._queries.items()
            }

    def statuses(self) -> dict[str, str]:
        """The condition of each query."""
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            return {name: query_status(following) for name, (_, following) in self._queries.items()}

    def project(self) -> dict[str, object]:
        """All queries, a line each."""
        now = time.time()
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            queries = [overview(query, following, now) for query, following in self._queries.values()]
        return {"name": self.name, "now": now, "queries": queries, "has_metrics": self.metrics is not None}

    def query(self, name: str) -> dict[str, object] | None:
        """Everything shown of a query; None if no query has that name."""
        now = time.time()
        with self._lock:
            if name not in self._queries:
                return None
            query, following = self._queries[name]
            following.poll()
            return {"now": now, **detail(query, following, now), "rows": self.rows.to_json(name)}

    def why(self, name: str, number: int) -> str | None:
        """The outcome of a row that is shown; None: unknown query, or the row is no longer shown."""
        with self._lock:
            row = self.rows.row(name, number) if name in self._queries else None
            if row is None:
                return None
            read = self._queries[name][1].totals.rows_in
        # Without the lock: it may take a while, and the page continues meanwhile.
        return NOT_YET if self.ask is None else self.ask(name, row.values, read)

    def query_drawing(self, name: str) -> dict[str, object] | None:
        """The drawing of a query; None if no query has that name."""
        return query_drawing_json(self._queries[name][0]) if name in self._queries else None


PORT = 8484
"""The default port."""
POLL_SECONDS, KEEPALIVE_SECONDS = 0.5, 10.0
"""Seconds between two polls, and between keep-alive messages."""
GONE = "That row is no longer shown."
OWN = ("page.js", "parts.js", "charts.js", "words.js", "page.css", "icon.svg")
OF_OTHERS = ("preact-htm.js", "uplot.js", "uplot.css")


def application(watch: Watch, token: str | None = None, stopping: Event | None = None) -> ASGIApp:
    """The page of these queries; with a ``token``, for those who know it."""

    def json_endpoint(read_values: Callable[[str], object]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            values = read_values(request.path_params["name"])
            return JSONResponse(values) if values is not None else PlainTextResponse("There is no such query.\n", 404)

        return answer

    def project(request: Request) -> Response:
        return JSONResponse(watch.project())

    def metrics(request: Request) -> Response:
        if watch.metrics is None:
            return PlainTextResponse("Metrics are served where the queries run: `watersmeet run --page`.\n", 404)
        return Response(watch.metrics(), media_type=CONTENT_TYPE)

    def why(request: Request) -> Response:
        # In a thread of its own, as all that is not async.
        number = request.query_params.get("row", "")
        text = watch.why(request.path_params["name"], int(number)) if number.isdecimal() and len(number) < 19 else None
        return JSONResponse({"text": GONE if text is None else text}, 404 if text is None else 200)

    async def changes(request: Request) -> Response:
        return StreamingResponse(_changes(watch, request, stopping), media_type="text/event-stream")

    routes = [
        Route("/", file_endpoint(files("watersmeet.tools.studio.page").joinpath("files", "page.html"))),
        *(
            Route(f"/{name}", file_endpoint(files("watersmeet.tools.studio.page").joinpath("files", name)))
            for name in OWN
        ),
        *(Route(f"/{name}", file_endpoint(asset(name))) for name in OF_OTHERS),
        Route("/api/project", project),
        Route("/api/query/{name:path}", json_endpoint(watch.query)),
        Route("/api/drawing/{name:path}", json_endpoint(watch.query_drawing)),
        Route("/api/why/{name:path}", why),
        Route("/api/changes", changes),
        Route("/metrics", metrics),
    ]
    return build_application(routes, token, COOKIE)


async def _changes(watch: Watch, request: Request, stopping: Event | None) -> AsyncIterator[str]:
    """Stream server-sent events: the versions of all queries, whenever one of them changes."""
    sent_versions: dict[str, str] | None = None
    waited = 0.0
    while not (stopping is not None and stopping.is_set()) and not await request.is_disconnected():
        versions = await run_in_threadpool(watch.versions)
        if versions != sent_versions or waited >= KEEPALIVE_SECONDS:
            sent_versions, waited = versions, 0.0
            yield f"data: {json.dumps(versions)}\n\n"
        await asyncio.sleep(POLL_SECONDS)
        waited += POLL_SECONDS
    if stopping is not None and stopping.is_set():
        yield f"event: end\ndata: {json.dumps(await run_in_threadpool(watch.statuses))}\n\n"


@contextmanager
def serve_page(watch: Watch, port: int, host: str, token: str | None = None) -> Generator[str]:
    """Serve the page while this is entered; gives the address to open. Port 0 is any that is free.

    Elsewhere than on this machine there is always a token: the given one, or one that is made up.
    """
    token = None if is_loopback(host) else token or secrets.token_urlsafe(18)
    try:
        opened = open_socket(host, port)
    except (OSError, OverflowError) as error:
        raise _refusal(error, port, host) from error
    stopping = Event()
    server = make_server(application(watch, token, stopping))
    thread = Thread(target=server.run, args=([opened],), name="page", daemon=True)
    thread.start()
    try:
        yield address_of(host, opened, token) + ("" if token else "/")
    finally:
        stopping.set()
        server.should_exit = True
        thread.join(timeout=5)
        opened.close()


def _refusal(error: OSError | OverflowError, port: int, host: str) -> WatersmeetError:
    reason, is_port = bind_failure(error)
    other = port + 1 if 1024 <= port < 65535 else PORT
    hint = f"give another port, for example {other}; 0 takes any free port."
    hint = hint if is_port else "give an address of this machine, such as 127.0.0.1."
    return refuse("PAGE_ADDRESS", address=f"{host}:{port}", reason=reason, hint=hint)
