"""Draw docs/images/lifetimes-*.svg: each family from a story of the drawing board, and the cases in concepts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from watersmeet.tools.studio.drawing import draw_timeline
from watersmeet.tools.testing import parse_case, read_case
from watersmeet.tools.testing.execute import trace_case

ROOT = Path(__file__).parent.parent
STORIES = ROOT / "src" / "watersmeet" / "tools" / "studio" / "board" / "stories"
CONCEPTS = ROOT / "docs" / "concepts.md"
BELOW = re.compile(r"^```yaml\n((?:(?!^```).)*)^```\n\n!\[[^\]]*\]\(images/lifetimes-(\w+)\.svg\)", re.M | re.S)
"""A case with its picture below."""


def pictures() -> Iterator[tuple[Path, str]]:
    """Each picture with its file."""
    for path in sorted(STORIES.glob("*.yaml")):
        case = read_case(path)
        yield _image_path(path.stem), draw_timeline(trace_case(case), case.name)
    for text, name in BELOW.findall(CONCEPTS.read_text("utf-8")):
        case = parse_case(text, str(CONCEPTS))
        yield _image_path(name), draw_timeline(trace_case(case), case.name)


def _image_path(name: str) -> Path:
    return ROOT / "docs" / "images" / f"lifetimes-{name}.svg"


if __name__ == "__main__":
    for path, picture in pictures():
        path.write_text(picture, "utf-8")
