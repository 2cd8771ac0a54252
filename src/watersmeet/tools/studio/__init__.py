"""The page, the drawing board and pictures of rows; and third-party files for the browser, with licences."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def asset(name: str) -> Traversable:
    """A file that lies in ``assets``.

    >>> asset("uplot.css").read_text("utf-8").startswith(".uplot")
    True
    """
    return files("watersmeet.tools.studio").joinpath("assets", name)
