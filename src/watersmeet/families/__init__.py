"""What brings the language to what `joins/` computes: families of joins, and stages; one folder each, and one entry.

Everything below receives from here what it needs to know of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.families.family import Family, Stage

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

OPERATORS: Mapping[str, Family | Stage] = {**FAMILIES, "group": Stage("group"), "latest": Stage("latest")}
"""Whatever keeps rows, by name: all that is planned and explained."""
