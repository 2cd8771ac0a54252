"""Who may read the page, and what a browser may do with it.

Only whoever sits at this machine is answered, unless the page is served at another address: then a token is asked for.
A page of somebody else cannot read it either: a request must name this machine as its host, so that a name that was
made to point here gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import SimpleCookie
from secrets import compare_digest
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watersmeet.observe.hosts import host_of, is_loopback

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
"""What every answer says: nothing comes from elsewhere, no text becomes a program, nobody puts it into a frame."""
COOKIE = "watersmeet"


class Guard:
    """Lets through what may be answered. Without a ``token``, that is what asks for this machine by its own name."""

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
        """What is said in place of the page; None: nothing, it may be read."""
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
