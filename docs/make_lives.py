"""Draws docs/images/lives-*.svg, a picture for each family, from the stories of the drawing board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from watersmeet.drawing import draw_lives
from watersmeet.testing import read_case
from watersmeet.testing.telling import told

ROOT = Path(__file__).parent.parent
STORIES = ROOT / "src" / "watersmeet" / "board" / "stories"


def pictures() -> Iterator[tuple[Path, str]]:
    """Each picture with the file that it is kept in."""
    for path in sorted(STORIES.glob("*.yaml")):
        case = read_case(path)
        yield ROOT / "docs" / "images" / f"lives-{path.stem}.svg", draw_lives(told(case), case.name)


if __name__ == "__main__":
    for kept, picture in pictures():
        kept.write_text(picture, "utf-8")
