"""The tutorial works: every file of it is written, every command typed, in a folder that was empty before.

With WRITE_GOLDEN=1 in the environment the pages are made to show what the commands print; read the difference. The last
chapter, a cluster, takes as long as all others together: tests/matrix has it too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tutorial import PAGES, follow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.usefixtures("spark")
def test_the_tutorial_works(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(PAGES[:-1], tmp_path, postgres, monkeypatch)
