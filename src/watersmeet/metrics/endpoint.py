"""The endpoint that Prometheus reads: ``/metrics`` and ``/health`` over HTTP, from a thread of this process.

A server answers only to host names that it knows. An attacker can make a name point to this machine (DNS rebinding),
and a page under that name could read the answers; the browser sends the name in ``Host``. A numeric host is the address
itself.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import socket
from collections.abc import Collection, Generator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6
from socketserver import ThreadingTCPServer
from threading import Thread

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.metrics.prometheus import CONTENT_TYPE, MetricsRegistry

_NAMED = re.compile(r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.%]+\])(?::\d{1,5})?", re.IGNORECASE)


def host_of(header: str) -> str | None:
    """The host that a request asks for, in small letters and without its port; None: the header is malformed.

    >>> host_of("LocalHost:8484"), host_of("[::1]:80"), host_of("[::1"), host_of("a:b:c")
    ('localhost', '::1', None, None)
    """
    match = _NAMED.fullmatch(header.strip())
    return None if match is None else match["host"].strip("[]").lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other reaches.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_answered(requested: str, served: str, names: Collection[str] = ()) -> bool:
    """Whether a server at the address ``served`` answers to a host; ``names``: further ones, ``*`` for all.

    On this machine alone it goes by the machine's own names. Elsewhere it goes by addresses in numbers, the name that
    it is served at, and the name of the machine.

    >>> [is_answered(host, "127.0.0.1") for host in ("localhost", "evil.example", "10.0.0.7")]
    [True, False, False]
    >>> [is_answered(host, "0.0.0.0", ["metrics.shop"]) for host in ("10.0.0.7", "metrics.shop", "evil.example")]
    [True, True, False]
    """
    accepted = {name.strip().lower() for name in names}
    if is_loopback(requested) or requested in accepted or "*" in accepted:
        return True
    return not is_loopback(served) and (_is_address(requested) or requested in (served.lower(), *_own_names()))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own_names() -> tuple[str, str]:
    # Not `getfqdn`, which asks the network.
    name = socket.gethostname().lower()
    return name, name.partition(".")[0]


LOOPBACK = "127.0.0.1"
"""By default only this machine is answered."""
NAMES = "WATERSMEET_METRICS_HOSTS"
"""The variable that lists further names by which the endpoint answers, with commas between them; ``*``: any."""
_PLAIN = "text/plain; charset=utf-8"


@contextmanager
def serve_metrics(
    metrics: MetricsRegistry, port: int, host: str = LOOPBACK, names: Collection[str] = ()
) -> Generator[str]:
    r"""Serve the metrics while this is entered; gives the address of the endpoint. Port 0 is any that is free.

    ``names``: by which names it answers, besides those of this machine.

    >>> from urllib.request import urlopen
    >>> with serve_metrics(MetricsRegistry(), 0) as address, urlopen(f"{address}/health") as answer:
    ...     answer.status, answer.read()
    (200, b'{"status": "healthy", "queries": {}}\n')
    """
    server = _open_server(metrics, port, host, names)
    # The default is to look every half second whether it should end, and a run would wait for that.
    thread = Thread(target=server.serve_forever, args=(0.05,), name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{_in_address(host)}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingTCPServer):
    """A server of metrics. Not `http.server.HTTPServer`, which would look up the name of this machine first."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, metrics: MetricsRegistry, host: str, port: int, names: Collection[str]) -> None:
        self.metrics, self.host, self.names = metrics, host, names
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    # A client that opens a connection and says nothing.
    timeout = 10

    def do_GET(self) -> None:
        """Answer a question."""
        assert isinstance(self.server, _Server)
        metrics = self.server.metrics
        if (wrong := self._wrong_host(self.server)) is not None:
            self._answer(wrong[0], _PLAIN, wrong[1])
            return
        match self.path.partition("?")[0]:
            case "/metrics":
                self._answer(HTTPStatus.OK, CONTENT_TYPE, metrics.text())
            case "/health":
                status = HTTPStatus.OK if metrics.status == "healthy" else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, "application/json", health_in_json(metrics))
            case _:
                self._answer(HTTPStatus.NOT_FOUND, _PLAIN, "There are /metrics and /health.\n")

    def _wrong_host(self, server: _Server) -> tuple[HTTPStatus, str] | None:
        """Return the answer to a request with a foreign host name; one without a name is not from a browser."""
        hosts = self.headers.get_all("Host") or []
        if not hosts:
            return None
        host = host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            return HTTPStatus.BAD_REQUEST, "The header Host is malformed.\n"
        if is_answered(host, server.host, server.names):
            return None
        return HTTPStatus.MISDIRECTED_REQUEST, f"The host name in the request is unknown: add it to {NAMES}.\n"

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line per scrape would stand between the lines of progress."""


def health_in_json(metrics: MetricsRegistry) -> str:
    r"""The health of all queries, and of each: 1 while it runs, 0 once it has failed; and how long some hang.

    >>> health_in_json(MetricsRegistry())
    '{"status": "healthy", "queries": {}}\n'
    """
    queries = {name: query.health for name, query in metrics.queries.items()}
    hanging = {name: round(seconds, 1) for name, seconds in metrics.unresponsive_queries.items()}
    report = {"status": metrics.status, "queries": queries, **({"hanging": hanging} if hanging else {})}
    return json.dumps(report) + "\n"


def _open_server(metrics: MetricsRegistry, port: int, host: str, names: Collection[str]) -> _Server:
    try:
        return _Server(metrics, host, port, names)
    except (OSError, OverflowError) as error:
        raise _refusal(error, port, host) from error


def _refusal(error: OSError | OverflowError, port: int, host: str) -> WatersmeetError:
    reason, is_port = bind_failure(error)
    other = port + 1 if 1024 <= port < 65535 else 9464
    option = (
        f"another port: `--metrics-port {other}`"
        if is_port
        else f"an address of this machine: `--metrics-host {LOOPBACK}`"
    )
    return refuse("METRICS_ADDRESS", address=f"{_in_address(host)}:{port}", reason=reason, hint=f"give {option}.")


def bind_failure(error: OSError | OverflowError) -> tuple[str, bool]:
    """The reason why an address cannot be listened at, and whether another port would help.

    >>> bind_failure(OSError(errno.EADDRINUSE, "Address already in use"))
    ('another process listens there', True)
    """
    if isinstance(error, OverflowError):
        return "ports go from 0 to 65535", True
    reasons = {errno.EADDRINUSE: "another process listens there", errno.EACCES: "this user may not open that port"}
    reason = reasons.get(error.errno or 0)
    return (error.strerror or str(error), False) if reason is None else (reason, True)


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
