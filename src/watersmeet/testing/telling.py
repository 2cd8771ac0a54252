"""The outcome of every row of a case."""

from __future__ import annotations

from typing import Any

from watersmeet.deprecation import warn_renamed
from watersmeet.errors import refuse
from watersmeet.fates import Lineage
from watersmeet.operators import OPERATORS
from watersmeet.operators.time_zones import in_zone_of_script
from watersmeet.physical import limits_of, plan_query
from watersmeet.queries import analyze
from watersmeet.testing.case import Case
from watersmeet.testing.execute import arrivals_of, lineage_of_case
from watersmeet.testing.script import script_of


def trace_case(case: Case) -> Lineage:
    """What became of each row of a case, by the definitions; refused as its script is.

    An expression that only Spark can evaluate raises `NeedsSparkError`.

    >>> from watersmeet.testing.case import parse_case
    >>> case = parse_case('''
    ... name: a pair
    ... sql: |
    ...   CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
    ...   CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
    ...   SELECT STREAM l.id, l.t, r.t FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 4;
    ... batches:
    ... - {in: {l: [[1, 5]]}, out: []}
    ... - {in: {r: [[1, 12]]}, out: [[1, 5, null]]}
    ... ''')
    >>> fate = trace_case(case).end(0)
    >>> fate.what, fate.batch, fate.until, fate.by
    ('padded', 1, 9, 1)
    """
    script = script_of(case)
    queries = analyze(script)
    if len(queries) != 1 or case.fails is not None:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its script has {len(queries)} queries to explain, not one")
    plan = plan_query(in_zone_of_script(queries[0], script), OPERATORS, late="kept", limits=limits_of(script))
    return lineage_of_case(case, plan, arrivals_of(case, plan, script))


def __getattr__(name: str) -> Any:
    if name != "told":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'", name=name)
    warn_renamed("watersmeet.testing.telling.told", "watersmeet.testing.telling.trace_case")
    return trace_case
