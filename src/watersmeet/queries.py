"""Reading and analysis with all families of joins: what everything above them calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from watersmeet import parser
from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.logical import passes as analysis
from watersmeet.logical.nodes import Script
from watersmeet.logical.passes import Inputs, sort_refusals
from watersmeet.logical.passes.branches import flatten_branches, join_branches
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators import FAMILIES
from watersmeet.parser import UnreadPart

_GRAMMARS = tuple(family.read for family in FAMILIES.values() if family.has_words)
_ANALYSES = tuple(family.analyze for family in FAMILIES.values())


def read_script(text: str, name: str = "<sql>", *, external_names: Collection[str] | None = None) -> Script:
    """The statements of a text. All that cannot be read is refused together.

    ``external_names``: the names of sources that no text declares. With them, what the analysis refuses in the rest of
    the text is reported too.

    >>> script = read_script("CREATE STREAM s (id BIGINT); SELECT STREAM id FROM s;")
    >>> script.sources[0].name, script.queries[0].relation.source
    ('s', 's')
    """
    script, unread = read_readable(text, name)
    if not unread.refusals:
        return script
    readable = replace(unread, names=unread.names | {name.lower() for name in external_names or ()})
    raise WatersmeetError(
        sort_refusals([*unread.refusals, *(refusals_in(script, readable) if external_names is not None else ())])
    )


def read_readable(text: str, name: str = "<sql>") -> tuple[Script, UnreadPart]:
    """Return the statements of a text that can be read, and the errors in the others."""
    return parser.read_partial_script(text, name, _GRAMMARS)


def refusals_in(script: Script, unread: UnreadPart) -> list[Refusal]:
    """Return the refusals of the readable part of a script, without those that follow from the rest."""
    refusals = analysis.find_refusals(flatten_branches(script), families=_ANALYSES)
    return [refusal for refusal in refusals if not unread.explains(refusal)]


def format_script(text: str, name: str = "<sql>") -> str:
    """The text in canonical layout; refuses what cannot be read."""
    return parser.format_script(text, name, _GRAMMARS)


def analyze(
    script: Script, extra_sources: Mapping[str, Source] | None = None, *, inputs: Inputs = "streams"
) -> tuple[AnalyzedQuery, ...]:
    """The queries of a script as they may run; raises one error with everything that is wrong in it.

    ``extra_sources`` are those that no text declares, by name. A declaration of the same name goes before.
    """
    queries = analysis.analyze(flatten_branches(script), extra_sources, families=_ANALYSES, inputs=inputs)
    return join_branches(script, queries)
