"""The S3 server of the tests, run by the environment that has moto: ``python s3_server.py PORT LOG``.

The log gets a line for each request, when it has been answered: ``METHOD STATUS ADDRESS``, with ``COPY`` for a copy.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

REFUSED, HEEDLESS = "refused", "heedless"


def serve(port: int, log: Path) -> None:
    """Serve until the process ends."""
    # Lines are written whole, so threads can share it.
    requests = log.open("a", buffering=1)
    # Not imported above: only that environment has them.
    moto: Any = import_module("moto.server")
    werkzeug: Any = import_module("werkzeug.serving")

    class Handler(werkzeug.WSGIRequestHandler):
        """Keeps connections, and leaves it to Werkzeug to ask for the content of a request: twice confuses the SDK."""

        protocol_version = "HTTP/1.1"

        def handle_expect_100(self) -> bool:
            """Say nothing yet: Werkzeug does once the content is read."""
            return True

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Write a line for the request."""
            method = "COPY" if self.headers.get("x-amz-copy-source") else self.command
            requests.write(f"{method} {code} {self.path}\n")

    writes = threading.Lock()
    application = moto.DomainDispatcherApplication(moto.create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        """Answer a request.

        Nothing may be written into a folder of the name `REFUSED`; in one of the name `HEEDLESS`, a condition is
        ignored, as older stores do.
        """
        if f"/{HEEDLESS}/" in environ["PATH_INFO"]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] == "PUT" and f"/{REFUSED}/" in environ["PATH_INFO"]:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("403 Forbidden", [("Content-Length", "0")])
            return []
        # The server looks for an object and then writes it, which S3 does in one step.
        with nullcontext() if environ["REQUEST_METHOD"] in ("GET", "HEAD") else writes:
            return application(environ, start_response)

    werkzeug.run_simple("127.0.0.1", port, answer, threaded=True, request_handler=Handler)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
