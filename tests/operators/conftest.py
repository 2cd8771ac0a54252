"""The analysis of a script, as tests of logical plans have it; and blocks in parts, which else only large ones are."""

from zlib import crc32

import pytest
from tests.logical.conftest import analyze_sql, refusals_of

from watersmeet.operators.state import format as stored_format

__all__ = ["analyze_sql", "refusals_of"]


@pytest.fixture(autouse=True)
def store_blocks_in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store all blocks in parts, in half of the tests, which their names choose."""
    is_chosen = crc32(request.node.name.encode()) % 2 == 0
    if is_chosen and request.node.get_closest_marker("whole_blocks") is None:
        monkeypatch.setattr(stored_format, "SPLIT_AT", 0)
        monkeypatch.setattr(stored_format, "PART_BYTES", 64)
