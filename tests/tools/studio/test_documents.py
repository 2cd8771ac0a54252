"""The pictures of the documents are what their cases give."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_pictures_of_the_families_are_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_lifetimes.py"))
    pictures = dict(made["pictures"]())
    assert set(pictures) == set((ROOT / "docs" / "images").glob("lifetimes-*.svg"))
    for kept, picture in pictures.items():
        assert kept.read_text("utf-8") == picture, "run: python docs/make_lifetimes.py"
