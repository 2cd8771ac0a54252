"""The families of joins: each brings the language to what `joins/` computes; one folder each, and one entry here.

Everything below receives from here what it needs to know of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.families.family import Family

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family("interval"),
        Family("window", has_words=True),
        Family("sync", has_words=True),
        Family("asof", has_words=True),
        Family("lookup"),
        Family("changelog"),
    )
}
"""All families by name: the folder of each, here and in ``joins/``."""
