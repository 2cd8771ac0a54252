"""What the pages of this project share: files of others that a browser needs, with their licences."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def asset(name: str) -> Traversable:
    """A file that lies in ``assets``.

    >>> asset("uplot.css").read_text("utf-8").startswith(".uplot")
    True
    """
    return files("watersmeet.tools.studio").joinpath("assets", name)
