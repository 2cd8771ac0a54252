"""Reading and analysis with all families of joins: what everything above them calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from watersmeet import analyze as analysis
from watersmeet import language
from watersmeet.analyze import Inputs, in_order
from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.families import FAMILIES
from watersmeet.plan.nodes import Script
from watersmeet.plan.relation import AnalyzedQuery

_GRAMMARS = tuple(family.read for family in FAMILIES.values() if family.has_words)
_UNDECLARED = ("UNKNOWN_SOURCE", "UNKNOWN_SINK")
_ANALYSES = tuple(family.analyze for family in FAMILIES.values())


def read_script(text: str, name: str = "<sql>", *, given: Collection[str] | None = None) -> Script:
    """The statements of a text. All that cannot be read is refused together.

    ``given``: the names of sources that no text declares. With them, what the analysis refuses in the rest of the text
    is reported too.

    >>> script = read_script("CREATE STREAM s (id BIGINT); SELECT STREAM id FROM s;")
    >>> script.sources[0].name, script.queries[0].relation.source
    ('s', 's')
    """
    script, unread = language.read_readable(text, name, _GRAMMARS)
    if not unread.refusals:
        return script
    further = [] if given is None else _refused_in(script, unread.names | {name.lower() for name in given})
    raise WatersmeetError(in_order([*unread.refusals, *further]))


def _refused_in(script: Script, unread: Collection[str]) -> list[Refusal]:
    """What the analysis refuses in a script, but for names that are declared by what could not be read."""
    try:
        analyze(script)
    except WatersmeetError as error:
        return [r for r in error.refusals if not (r.condition in _UNDECLARED and _name_in(r) in unread)]
    return []


def _name_in(refusal: Refusal) -> str:
    return (refusal.parameters.get("source") or refusal.parameters.get("sink") or "").lower()


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
