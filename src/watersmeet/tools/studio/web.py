"""The shared base of all pages: the application around their routes, which decides who is answered, and its server.

A request is refused before a route sees it if its ``Host`` is malformed or not this machine's, if another site sends
it, if its body is too long, or if it lacks the token that is required at any address but this machine's own.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from importlib.resources.abc import Traversable
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watersmeet.metrics.prometheus import host_of, is_loopback

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
"""Headers of every answer: the browser loads nothing from elsewhere, runs no text as a program, and shows no frame."""
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
MOST_BYTES = 4_000_000
"""The longest body that a request may have."""


class BodyError(Exception):
    """A body that is not read, and the answer that says why."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def build_application(routes: Sequence[BaseRoute], token: str | None, cookie: str) -> ASGIApp:
    """The application of a page: its routes behind a `Guard`, with one form of error answers.

    ``cookie``: its name; browsers send the cookies of a host to all its ports, so two pages must not share one.
    """
    handlers: dict[Any, Any] = {BodyError: _reject_body, Exception: _report_bug}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, cookie)


async def _reject_body(request: Request, error: BodyError) -> Response:
    return JSONResponse({"message": str(error)}, error.status)


async def _report_bug(request: Request, error: Exception) -> Response:
    # The page stays, shows this, and goes on with the next request.
    return JSONResponse({"message": f"This is a bug in Watersmeet: {type(error).__name__}: {error}"}, 500)


class Guard:
    """Passes on requests that may be answered. Without a ``token``, those that ask for this machine by its own name."""

    def __init__(self, app: ASGIApp, token: str | None, cookie: str) -> None:
        self.app, self.token, self.cookie = app, token or None, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._answer(scope) or self.app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer in place of the application's; None: the request may pass."""
        headers = Headers(scope=scope)
        host_headers = headers.getlist("host")
        host = host_of(host_headers[0]) if len(host_headers) == 1 else None
        if host is None:
            return PlainTextResponse("The header Host is malformed.\n", 400)
        if self.token is None and not is_loopback(host):
            return PlainTextResponse("The host name in the request is unknown: use 127.0.0.1 or localhost.\n", 421)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host_headers[0]:
            return PlainTextResponse("Requests from other pages are not allowed.\n", 403)
        if self.token is not None and (answer := self._check_token(scope, headers)) is not None:
            return answer
        if _is_too_long(headers.get("content-length", "")):
            return PlainTextResponse("The body is too long.\n", 413)
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        query_token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._is_right(query_token) and scope["path"] == "/":
            # The token must stay neither in the history of the browser nor in its address line.
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie, query_token, httponly=True, samesite="strict")
            return answer
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_right(_cookie_value(headers.get("cookie", ""), self.cookie)) or self._is_right(bearer):
            return None
        return PlainTextResponse("A token is needed: open the address that `watersmeet` printed.\n", 401)

    def _is_right(self, token: str) -> bool:
        return self.token is not None and compare_digest(token.encode(), self.token.encode())


def _cookie_value(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if cookie is None else cookie.value


def _is_too_long(content_length: str) -> bool:
    # The number of digits first: Python refuses to read a number of thousands of them.
    is_number = content_length.isdecimal()
    return is_number and (len(content_length) > len(str(MOST_BYTES)) or int(content_length) > MOST_BYTES)


async def read_json(request: Request) -> Any:
    """The JSON that a request sends; `BodyError` if it is not JSON, too long, or nested too deeply.

    A form of another site cannot send this type without the browser asking this server first.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise BodyError("Send JSON.", 415)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise BodyError("The body is too long.", 413)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"This is not a board: {error}", 400) from error


def file_endpoint(file: Traversable) -> Callable[[Request], Response]:
    """An endpoint that answers with a file of the package."""

    def answer(request: Request) -> Response:
        return Response(file.read_bytes(), media_type=TYPES[file.name.rpartition(".")[2]])

    return answer


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; `OSError` or `OverflowError` if that cannot be had."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def address_of(host: str, opened: socket.socket, token: str | None) -> str:
    """The address to open in a browser."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{opened.getsockname()[1]}{f'/?token={token}' if token else ''}"


def make_server(application: ASGIApp) -> uvicorn.Server:
    """A server of an application, which logs nothing but errors and waits a second for open requests at its end."""
    settings = uvicorn.Config(
        application, log_level="error", access_log=False, lifespan="off", server_header=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    return uvicorn.Server(settings)
