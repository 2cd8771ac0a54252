"""The schema registry of `watersmeet dev`, which tests can watch: with a user and a password, and closed subjects."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from watersmeet.cli.registry import SchemaRegistry


@dataclass
class Registry(SchemaRegistry):
    """What it knows, and what was asked."""

    port: int = 0
    login: str | None = None
    closed: set[str] = field(default_factory=set)
    """Subjects that take no other schema."""
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        self.asked.append(path)
        if body is not None and path.split("/")[2] in self.closed:
            return 409, _error(409, "Schema being registered is incompatible with an earlier schema")
        return super().answer(path, body)


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def registry(login: str | None = None) -> Generator[Registry]:
    """A registry on a free port of this machine."""
    made = Registry(login=login)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any] | None) -> None:
            wanted = None if made.login is None else f"Basic {base64.b64encode(made.login.encode()).decode()}"
            if wanted is not None and self.headers["Authorization"] != wanted:
                status, told = 401, _error(401, "Unauthorized")
            else:
                status, told = made.answer(self.path, body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
