"""The sync join: rows meet that have the same time."""

from __future__ import annotations

from watersmeet.families.family import Family
from watersmeet.families.sync.analyze import SyncAnalysis
from watersmeet.families.sync.read import SyncGrammar

SYNC = Family(SyncGrammar(), SyncAnalysis())
