"""The entry of SELECT DISTINCT ... WITHIN: a stage with one port, whose result is a stream of first rows.

`FORECAST` says what the state will hold: the keys of the rows that came out within the time.
"""

from __future__ import annotations

from watersmeet.logical.query import AnalyzedQuery, AnalyzedTop
from watersmeet.logical.relation import AnalyzedView
from watersmeet.logical.words import expression_in_words, without_generated_names
from watersmeet.operators.core.changes import POSITION
from watersmeet.operators.deduplicate.kernel import DeduplicateOperator
from watersmeet.operators.explainer import PortRetention
from watersmeet.physical.change import window_effects
from watersmeet.physical.nodes import JoinPlan, PortPlan, StagePlanner, Types, ViewPlan
from watersmeet.physical.ports import CODE, unions_of
from watersmeet.physical.scans import RANKED_TIME, group_column, idle_of, lags_of, view_to_rank, visible_columns


def _time_name(top: AnalyzedTop) -> str:
    """The name of the event time for users: as ORDER BY shows it, else its own."""
    return expression_in_words(top.order[0].shown) if top.order else without_generated_names(str(top.time))


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of the first row of each group within a time."""
    top = query.top
    assert top is not None and top.within is not None
    time, by, columns = RANKED_TIME, tuple(group_column(n) for n in range(len(top.by))), visible_columns(top, rows)
    lags, code = lags_of(view), CODE if by else None
    port = PortPlan(
        rows, rows.frame_columns, code=code, hashed=by, route="key" if by else "one", position=POSITION, lags=lags,
        times=(time,), late=rows.late,
    )  # fmt: skip
    operator = DeduplicateOperator(
        columns, by, time, top.within.value, "time" if top.order else "arrival", query.shows_duplicates,
        time_name=_time_name(top), code=code, position=POSITION,
        outputs=tuple(column for column, _ in top.final_columns), late=rows.late, unions=unions_of(lags),
        idle=idle_of(view),
    )  # fmt: skip
    first = f"first row of each group by {top.time}" if top.order else "first row of each group to arrive"
    waits = f"once the watermark of {top.time} has passed it" if top.order else "at once"
    why = (
        f"{first}: a stream; later rows within the time are dropped",
        "sharded by a hash of the group key" if by else "one shard: every row may repeat every other",
        f"a row is emitted {waits}",
        f"the key of a row is kept until the watermark of {top.time} has passed its time by the bound",
    )
    return JoinPlan((port,), operator, columns, (), why, top, name_prefix="the first rows of ")


PLAN = StagePlanner(
    lambda query: query.top is not None and query.top.family == "deduplicate", view_to_rank, plan, shows_late=True
)


CHANGE = window_effects


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """The keys of the rows that came out."""
    return (PortRetention(0, "keys", law="a key for each row that came out within the time"),)


FORECAST = forecast
