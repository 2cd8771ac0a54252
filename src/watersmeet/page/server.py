"""Serves the page over HTTP: the files of the page, what it asks for as JSON, and what changes as it changes."""

from __future__ import annotations

import asyncio
import errno
import json
import secrets
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from threading import Event, Thread

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.observe.hosts import is_loopback
from watersmeet.observe.prometheus import CONTENT_TYPE
from watersmeet.page.guard import Guard
from watersmeet.page.watch import Watch
from watersmeet.ui import asset

PORT = 8484
"""Where the page is if nobody says otherwise."""
POLL_SECONDS, KEEPALIVE_SECONDS = 0.5, 10.0
"""Seconds between two looks for what is new, and after which something is said even if nothing is."""
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
        Route("/", _file_endpoint(files("watersmeet.page").joinpath("files", "page.html"))),
        *(Route(f"/{name}", _file_endpoint(files("watersmeet.page").joinpath("files", name))) for name in OWN),
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
