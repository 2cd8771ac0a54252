"""The lives of rows as a picture."""

from __future__ import annotations

from watersmeet.drawing.style import STYLE
from watersmeet.drawing.svg import draw_timeline

__all__ = ["STYLE", "draw_timeline"]
