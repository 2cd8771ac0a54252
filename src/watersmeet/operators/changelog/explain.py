"""The `explain` facts of a join of tables, and the `why` reasons for its rows."""

from __future__ import annotations

from watersmeet.logical.nodes import LEFT_ONLY, PRESERVED, Side
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.logical.words import Fact, conditions, keys, kind_in_words, rows_of
from watersmeet.operators.changelog.analyze import AnalyzedTableJoin
from watersmeet.operators.changelog.kernel import TableJoinOperator
from watersmeet.operators.core.rowwise import Row
from watersmeet.operators.explainer import FamilyTracer, JoinExplainer, Names, PairDistance, TraceContext
from watersmeet.operators.outcomes import OutcomeKind


def facts(query: AnalyzedQuery, join: AnalyzedTableJoin, names: Names) -> list[Fact]:
    """The retention of rows, what happens to unmatched ones, and what an equality would save."""
    left, right = rows_of(join.left, names), rows_of(join.right, names)
    return [
        keys(join.keys),
        ("kept", [f"rows of {left} and {right} are kept until {_until(join)}"]),
        ("emitted", _emission(join, left, right)),
        ("alone", _lonely(join, (left, right))),
        conditions("left only", join.left_only, _failure_remark(join, "left")),
        conditions("right only", join.right_only, _failure_remark(join, "right")),
        conditions("also", join.residual),
        ("warning", [] if join.keys else _no_equality_warning(left, right)),
    ]


def _until(join: AnalyzedTableJoin) -> str:
    if join.final_key_pair is None:
        return "they are replaced or deleted"
    left, right = join.final_key_pair
    return f"{left} and {right} are final: rows with these values no longer change"


def _emission(join: AnalyzedTableJoin, left: str, right: str) -> list[str]:
    match join.kind:
        case "semi":
            return [f"each {left} row, as long as a {right} row matches it"]
        case "anti":
            return [f"each {left} row, as long as no {right} row matches it"]
        case _:
            return ["every change of a pair: + when it appears, - when one of its rows goes away"]


def _lonely(join: AnalyzedTableJoin, names: tuple[str, str]) -> list[str]:
    sides: tuple[Side, Side] = ("left", "right")
    preserved = [name for side, name in zip(sides, names, strict=True) if join.kind in PRESERVED[side]]
    return [f"{name} rows without a match are shown with NULLs, until the first match" for name in preserved]


def _failure_remark(join: AnalyzedTableJoin, side: Side) -> str:
    if join.kind == "anti" and side == "left":
        return "a left row that fails is shown"
    is_shown = join.kind in PRESERVED[side] and join.kind not in LEFT_ONLY
    return f"a {side} row that fails {'is shown with NULLs' if is_shown else 'matches nothing'}"


def _no_equality_warning(left: str, right: str) -> list[str]:
    return [
        f"no equality: every batch compares what changed in {left} with all of {right}, and vice versa",
        "with an equality, only rows of one key are compared",
    ]


EXPLAIN = JoinExplainer(
    lambda join: f"{kind_in_words(join.kind)} JOIN of tables",
    facts,
    pair_distance=lambda join: PairDistance(why="Rows of tables have no event times to compare."),
)


class _ChangelogTracer(FamilyTracer):
    def alone_outcome(self, operator: TableJoinOperator) -> OutcomeKind:
        return "matched" if operator.kind == "semi" else "padded"

    def alone_reason(self, context: TraceContext, port: int, row: Row) -> str:
        if context.operator.kind == "semi":
            return f"A row of {context.names[1 - port]} matches it."
        return f"It is shown without a match: {context.names[1 - port]} has no matching row."

    def change_outcome(self, context: TraceContext, sign: int) -> tuple[OutcomeKind, str] | None:
        if context.operator.kind == "semi" and sign < 0:
            return "taken back", f"No row of {context.names[1]} matches it any longer."
        return None

    def wait_reason(self, context: TraceContext, port: int, row: Row, row_id: int) -> str:
        return "It is in the table."


TRACE = _ChangelogTracer()
