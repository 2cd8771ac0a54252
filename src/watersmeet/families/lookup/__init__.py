"""The lookup join: each row of a stream with what a table has for it at that moment."""

from __future__ import annotations

from watersmeet.families.family import Family
from watersmeet.families.lookup.analyze import LookupAnalysis
from watersmeet.language import Grammar

LOOKUP = Family(Grammar(), LookupAnalysis())
