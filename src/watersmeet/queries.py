"""Reading and analysis with all families of joins: what everything above them calls."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet import analyze as analysis
from watersmeet import language
from watersmeet.analyze import Inputs
from watersmeet.catalog import Source
from watersmeet.families import FAMILIES
from watersmeet.plan.nodes import Script
from watersmeet.plan.relation import AnalyzedQuery

_GRAMMARS = tuple(family.read for family in FAMILIES.values() if family.has_words)
_ANALYSES = tuple(family.analyze for family in FAMILIES.values())


def read_script(text: str, name: str = "<sql>") -> Script:
    """The statements of a text. All that cannot be read is refused together.

    >>> script = read_script("CREATE STREAM s (id BIGINT); SELECT STREAM id FROM s;")
    >>> script.sources[0].name, script.queries[0].relation.source
    ('s', 's')
    """
    return language.read_script(text, name, _GRAMMARS)


def format_script(text: str, name: str = "<sql>") -> str:
    """The text in canonical layout; refuses what cannot be read."""
    return language.format_script(text, name, _GRAMMARS)


def analyze(
    script: Script, extra_sources: Mapping[str, Source] | None = None, *, inputs: Inputs = "streams"
) -> tuple[AnalyzedQuery, ...]:
    """The queries of a script as they may run; raises one error with everything that is wrong in it.

    ``extra_sources`` are those that no text declares, by name. A declaration of the same name goes before.
    """
    return analysis.analyze(script, extra_sources, families=_ANALYSES, inputs=inputs)
