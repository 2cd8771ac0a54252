from __future__ import annotations

from collections.abc import Callable

import pytest

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.logical.passes import Inputs
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.queries import analyze, read_script

Analyzed = Callable[..., AnalyzedQuery]
Refused = Callable[..., tuple[Refusal, ...]]


@pytest.fixture
def analyze_sql() -> Analyzed:
    """The one query of a script that may run."""

    def run(sql: str, *, inputs: Inputs = "streams", **sources: Source) -> AnalyzedQuery:
        [query] = analyze(read_script(sql, "query.sql"), sources, inputs=inputs)
        return query

    return run


@pytest.fixture
def refusals_of() -> Refused:
    """The refusals of a script that may not run."""

    def run(sql: str, *, inputs: Inputs = "streams", **sources: Source) -> tuple[Refusal, ...]:
        with pytest.raises(WatersmeetError) as caught:
            analyze(read_script(sql, "query.sql"), sources, inputs=inputs)
        return caught.value.refusals

    return run
