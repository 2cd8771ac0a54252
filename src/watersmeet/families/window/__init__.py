"""The window join: rows meet what is in the window of the other side."""

from __future__ import annotations

from watersmeet.families.family import Family
from watersmeet.families.window.analyze import WindowAnalysis
from watersmeet.families.window.read import WindowGrammar

WINDOW = Family(WindowGrammar(), WindowAnalysis())
