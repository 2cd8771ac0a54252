"""Draws the lifetimes of rows as a picture."""

from __future__ import annotations

from watersmeet.tools.studio.drawing.svg import STYLE, draw_timeline

__all__ = ["STYLE", "draw_timeline"]
