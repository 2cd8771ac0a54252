"""What only some tests on Spark need: a Postgres."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.postgres import postgres as started


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of an empty database on a Unix socket, as libpq takes it."""
    with started() as server:
        yield server.get_uri()
