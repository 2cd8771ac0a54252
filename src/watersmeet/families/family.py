"""A family as the layers below receive it: each asks for its own part, which is loaded when it is first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watersmeet.analyze import FamilyAnalysis
    from watersmeet.language import Grammar


@dataclass(frozen=True)
class Family:
    """The parts of a family: ``READ`` of its module ``read``, ``ANALYZE`` of ``analyze``.

    ``has_words``: it adds to the language; one that does not is read as a plain JOIN.

    >>> Family("sync").analyze.family
    'sync'
    """

    name: str
    has_words: bool = False

    @property
    def read(self) -> Grammar:
        """What it adds to the language."""
        return self._part("read")

    @property
    def analyze(self) -> FamilyAnalysis:
        """How its joins are analyzed."""
        return self._part("analyze")

    def _part(self, name: str) -> Any:
        """A part; what only runs a query need not load what reads one."""
        return getattr(import_module(f"{__package__}.{self.name}.{name}"), name.upper())
