"""The families of joins: each brings the language to what `joins/` computes.

Everything below receives from here what it needs to know of them.
"""

from __future__ import annotations

from watersmeet.families.asof import ASOF
from watersmeet.families.changelog import CHANGELOG
from watersmeet.families.family import Family
from watersmeet.families.interval import INTERVAL
from watersmeet.families.lookup import LOOKUP
from watersmeet.families.sync import SYNC
from watersmeet.families.window import WINDOW

FAMILIES: tuple[Family, ...] = (INTERVAL, WINDOW, SYNC, ASOF, LOOKUP, CHANGELOG)
