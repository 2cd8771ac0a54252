"""What a case says must become of rows, compared with what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.fates import Lineage, RowArrival
from watersmeet.fates.words import row_in_words
from watersmeet.local.cells import arrow_table
from watersmeet.operators.core.python_values import python_rows
from watersmeet.operators.core.rowwise import freeze
from watersmeet.testing.case import Case, CaseWhy


def compare_reasons(case: Case, lineage: Lineage, sources: Mapping[str, Source]) -> str | None:
    """How what became of rows differs from what a case says; None: not at all."""
    lines = [line for expected in case.why for line in _differences(case, expected, lineage, sources)]
    return "\n".join(["why:", *lines]) if lines else None


def _differences(case: Case, expected: CaseWhy, lineage: Lineage, sources: Mapping[str, Source]) -> Iterator[str]:
    arrivals = [arrival for arrival in lineage.arrivals if expected.of in (arrival.side, arrival.source)]
    if not arrivals:
        raise refuse("WRONG_CASE", path=case.path, reason=f"`why` names `{expected.of}`, which has no rows")
    meant = [arrival for arrival in arrivals if _is_meant(case, expected, arrival, sources)]
    if not meant:
        yield f"  ! {expected.of} {list(expected.row)} did not arrive"
    elif not any(_fits(expected, arrival, lineage) for arrival in meant):
        says = f", saying `{expected.says}`" if expected.says is not None else ""
        yield f"  - {expected.of} {list(expected.row)} is {expected.what}{says}"
        for arrival in meant:
            yield from (
                f"  + {arrival.side} {row_in_words(arrival.values)} is {text}"
                for text in _outcome_texts(lineage, arrival)
            )


def _is_meant(case: Case, expected: CaseWhy, arrival: RowArrival, sources: Mapping[str, Source]) -> bool:
    row = python_rows(arrow_table(sources[arrival.source].fields, [expected.row], case.path))[0]
    return freeze(list(row.values())) == freeze([arrival.values[name] for name in row])


def _fits(expected: CaseWhy, arrival: RowArrival, lineage: Lineage) -> bool:
    if all(outcome.what != expected.what for outcome in lineage.of(arrival.number)):
        return False
    return expected.says is None or any(expected.says in text for text in _outcome_texts(lineage, arrival))


def _outcome_texts(lineage: Lineage, arrival: RowArrival) -> list[str]:
    miss = lineage.unmatched_reasons.get(arrival.number)
    why = "" if miss is None else f" {miss.text}"
    return [f"{outcome.what} in batch {outcome.batch}: {outcome.reason}{why}" for outcome in lineage.of(arrival.number)]
