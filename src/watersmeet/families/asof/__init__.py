"""The as-of join: each row with the version that is in force at its time."""

from __future__ import annotations

from watersmeet.families.asof.analyze import AsofAnalysis
from watersmeet.families.asof.read import AsofGrammar
from watersmeet.families.family import Family

ASOF = Family(AsofGrammar(), AsofAnalysis())
