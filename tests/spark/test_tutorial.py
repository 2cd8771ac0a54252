"""The tutorial works: every file of it is written, every command typed, in a folder that was empty before.

With WRITE_GOLDEN=1 in the environment the pages are made to show what the commands print; read the difference. The last
chapter, a cluster, takes as long as all others together: tests/matrix has it too.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.tutorial import PAGES, follow

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.usefixtures("spark")
def test_the_tutorial_works(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(PAGES[:-1], tmp_path, postgres, monkeypatch)


def test_every_chapter_is_in_the_contents_and_leads_to_the_next() -> None:
    contents = (PAGES[0].parent / "README.md").read_text("utf-8")
    assert len(PAGES) == 10
    assert all(f"]({page.name})" in contents for page in PAGES)
    for page, following in pairwise(PAGES):
        assert f"]({following.name})" in page.read_text("utf-8").splitlines()[-1], page.name
