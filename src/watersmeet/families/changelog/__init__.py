"""The join of two tables: a table that changes with either."""

from __future__ import annotations

from watersmeet.families.changelog.analyze import ChangelogAnalysis
from watersmeet.families.family import Family
from watersmeet.language import Grammar

CHANGELOG = Family(Grammar(), ChangelogAnalysis())
