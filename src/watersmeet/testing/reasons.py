"""What a case says must become of rows, compared with what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.fates import Arrival, Told
from watersmeet.fates.words import row_in_words
from watersmeet.joins.core.python_values import python_rows
from watersmeet.joins.core.rowwise import freeze
from watersmeet.local.cells import arrow_table
from watersmeet.testing.case import Case, CaseWhy


def differing_reasons(case: Case, told: Told, sources: Mapping[str, Source]) -> str | None:
    """How what became of rows differs from what a case says; None: not at all."""
    lines = [line for expected in case.why for line in _differing(case, expected, told, sources)]
    return "\n".join(["why:", *lines]) if lines else None


def _differing(case: Case, expected: CaseWhy, told: Told, sources: Mapping[str, Source]) -> Iterator[str]:
    found = [one for one in told.arrivals if expected.of in (one.side, one.source)]
    if not found:
        raise refuse("WRONG_CASE", path=case.path, reason=f"`why` speaks of `{expected.of}`, of which no row comes")
    meant = [one for one in found if _is_meant(case, expected, one, sources)]
    if not meant:
        yield f"  ! {expected.of} {list(expected.row)} is no row that came"
    elif not any(_fits(expected, one, told) for one in meant):
        says = f", saying `{expected.says}`" if expected.says is not None else ""
        yield f"  - {expected.of} {list(expected.row)} is {expected.what}{says}"
        for one in meant:
            yield from (f"  + {one.side} {row_in_words(one.values)} is {text}" for text in _told(told, one))


def _is_meant(case: Case, expected: CaseWhy, one: Arrival, sources: Mapping[str, Source]) -> bool:
    row = python_rows(arrow_table(sources[one.source].fields, [expected.row], case.path))[0]
    return freeze(list(row.values())) == freeze([one.values[name] for name in row])


def _fits(expected: CaseWhy, one: Arrival, told: Told) -> bool:
    if all(fate.what != expected.what for fate in told.of(one.number)):
        return False
    return expected.says is None or any(expected.says in text for text in _told(told, one))


def _told(told: Told, one: Arrival) -> list[str]:
    miss = told.misses.get(one.number)
    why = "" if miss is None else f" {miss.text}"
    return [f"{fate.what} in batch {fate.batch}: {fate.reason}{why}" for fate in told.of(one.number)]
