"""A schema registry with Confluent's REST interface, as far as readers and writers of records need it, in memory.

No registry comes as a jar that runs by itself. This one keeps to the documented answers: numbers that stay, versions of
subjects, references, 404 and 409 with a message, and if it is told so, a user and a password.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class Registry:
    """What it knows, and what was asked."""

    port: int = 0
    login: str | None = None
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    """Subjects that take no other schema."""
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None) -> int:
        """The number of a schema, the next one if it is new."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        told = {"schema": text, **({"references": references} if references else {})}
        if told not in self.schemas:
            self.schemas.append(told)
        number = self.schemas.index(told) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        self.asked.append(path)
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(found[1])
            known = 0 < number <= len(self.schemas)
            return (200, self.schemas[number - 1]) if known else (404, _error(40403, "Schema not found"))
        found = re.fullmatch(r"/subjects/([^/]+)/versions(?:/(latest|\d+))?", path)
        if found is None:
            return 404, _error(404, "HTTP 404 Not Found")
        subject = unquote(found[1])
        if body is not None:
            if subject in self.closed:
                return 409, _error(409, "Schema being registered is incompatible with an earlier schema")
            return 200, {"id": self.add(subject, body["schema"])}
        versions = self.subjects.get(subject)
        if not versions:
            return 404, _error(40401, f"Subject '{subject}' not found.")
        version = len(versions) if found[2] == "latest" else int(found[2])
        number = versions[version - 1]
        return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}


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
