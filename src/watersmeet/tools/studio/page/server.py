"""Serves the page over HTTP: files, data as JSON, and updates; and decides who may read it.

Only this machine is answered, unless the page is served at another address: then a token is required. A request must
name this machine as its host, so a name that an attacker made point here gets nothing.
"""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from http.cookies import SimpleCookie
from importlib.resources import files
from importlib.resources.abc import Traversable
from secrets import compare_digest
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from threading import Event, Lock, Thread
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.metrics.endpoint import host_of, is_loopback
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.progress import Progress
from watersmeet.metrics.prometheus import CONTENT_TYPE
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

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every response: no content from other sites, no inline scripts, no frames."""
COOKIE = "watersmeet"


class Guard:
    """Admits requests. Without a ``token``, only those that address this machine by its own name."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """The response that replaces the page; None: the request is allowed."""
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page is read-only.\n", 405, {"Allow": "GET, HEAD"})
        headers = Headers(scope=scope)
        if self.token is None:
            host = host_of(headers.get("host", ""))
            if host is None:
                return PlainTextResponse("The header Host is malformed.\n", 400)
            return None if is_loopback(host) else PlainTextResponse("Ask for 127.0.0.1 or localhost.\n", 403)
        query_token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_right(query_token) and scope["path"] == "/":
            # It must stand neither in the history of the browser nor in its address line.
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, query_token, httponly=True, samesite="strict")
            return answer
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_right(cookie.value if cookie else "") or self._is_right(bearer):
            return None
        return PlainTextResponse("A token is needed: open the address that `watersmeet` printed.\n", 401)

    def _is_right(self, token: str) -> bool:
        return self.token is not None and compare_digest(token.encode(), self.token.encode())


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
        """What changes when there is something new to be shown of a query."""
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            return {
                name: f"{follower.version} {query_status(follower)}" for name, (_, follower) in self._queries.items()
            }

    def project(self) -> dict[str, object]:
        """All queries, a line each."""
        now = time.time()
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            queries = [overview(query, following, now) for query, following in self._queries.values()]
        return {"name": self.name, "now": now, "queries": queries, "has_metrics": self.metrics is not None}

    def query(self, name: str) -> dict[str, object] | None:
        """Everything shown of a query; None: there is none of that name."""
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
        """The drawing of a query; None: there is none of that name."""
        return query_drawing_json(self._queries[name][0]) if name in self._queries else None


PORT = 8484
"""The default port."""
POLL_SECONDS, KEEPALIVE_SECONDS = 0.5, 10.0
"""Seconds between two polls, and between keep-alive messages."""
GONE = "That row is no longer shown."
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
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
        Route("/", _file_endpoint(files("watersmeet.tools.studio.page").joinpath("files", "page.html"))),
        *(
            Route(f"/{name}", _file_endpoint(files("watersmeet.tools.studio.page").joinpath("files", name)))
            for name in OWN
        ),
        *(Route(f"/{name}", _file_endpoint(asset(name))) for name in OF_OTHERS),
        Route("/api/project", project),
        Route("/api/query/{name:path}", json_endpoint(watch.query)),
        Route("/api/drawing/{name:path}", json_endpoint(watch.query_drawing)),
        Route("/api/why/{name:path}", why),
        Route("/api/changes", changes),
        Route("/metrics", metrics),
    ]
    return Guard(Starlette(routes=routes), token)


def _file_endpoint(file: Traversable) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response(file.read_bytes(), media_type=TYPES[file.name.rpartition(".")[2]])

    return answer


async def _changes(watch: Watch, request: Request, stopping: Event | None) -> AsyncIterator[str]:
    """What there is new, as server-sent events: the versions of all queries, whenever one of them changes."""
    sent_versions: dict[str, str] | None = None
    waited = 0.0
    while not (stopping is not None and stopping.is_set()) and not await request.is_disconnected():
        versions = await run_in_threadpool(watch.versions)
        if versions != sent_versions or waited >= KEEPALIVE_SECONDS:
            sent_versions, waited = versions, 0.0
            yield f"data: {json.dumps(versions)}\n\n"
        await asyncio.sleep(POLL_SECONDS)
        waited += POLL_SECONDS


@contextmanager
def serve_page(watch: Watch, port: int, host: str, token: str | None = None) -> Generator[str]:
    """Serve the page while this is entered; gives the address to open. Port 0 is any that is free.

    Elsewhere than on this machine there is always a token: the given one, or one that is made up.
    """
    token = None if is_loopback(host) else token or secrets.token_urlsafe(18)
    opened = _open_socket(port, host)
    stopping = Event()
    settings = uvicorn.Config(
        application(watch, token, stopping), log_level="error", access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    thread = Thread(target=server.run, args=([opened],), name="page", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{opened.getsockname()[1]}/{f'?token={token}' if token else ''}"
    finally:
        stopping.set()
        server.should_exit = True
        thread.join(timeout=5)
        opened.close()


def _open_socket(port: int, host: str) -> socket:
    made = socket(AF_INET6 if ":" in host else AF_INET)
    try:
        made.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        raise _refusal(error, port, host) from error
    return made


def _refusal(error: OSError | OverflowError, port: int, host: str) -> WatersmeetError:
    other = port + 1 if 1024 <= port < 65535 else PORT
    hint = f"give another port, for example {other}; 0 takes any free port."
    if isinstance(error, OverflowError):
        reason = "ports go from 0 to 65535"
    elif error.errno == errno.EADDRINUSE:
        reason = "another process listens there"
    elif error.errno == errno.EACCES:
        reason = "this user may not open that port"
    else:
        reason, hint = error.strerror or str(error), "give an address of this machine, such as 127.0.0.1."
    return refuse("PAGE_ADDRESS", address=f"{host}:{port}", reason=reason, hint=hint)
