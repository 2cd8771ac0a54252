"""The interval join: rows meet within bounds of event time."""

from __future__ import annotations

from watersmeet.families.family import Family
from watersmeet.families.interval.analyze import IntervalAnalysis
from watersmeet.language import Grammar

INTERVAL = Family(Grammar(), IntervalAnalysis())
