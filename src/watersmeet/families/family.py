"""What a family of joins consists of, for each layer that asks."""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.analyze import FamilyAnalysis
from watersmeet.language import Grammar


@dataclass(frozen=True)
class Family:
    """A family of joins: what it adds to the language, and how its joins are analyzed."""

    grammar: Grammar
    analysis: FamilyAnalysis
