"""What explain says of a sync join."""

from __future__ import annotations

from watersmeet.explanation.family import JoinExplainer, Names, PairDistance, ParsedSection
from watersmeet.operators.sync.analyze import AnalyzedSyncJoin, ParsedSyncJoin
from watersmeet.plan.facts import Fact
from watersmeet.plan.nodes import Relation
from watersmeet.plan.query import AnalyzedQuery

_DISORDER = {
    "drop": "a late row, or a second row with the same time on its port, is dropped and counted",
    "error": "a late row, or a second row with the same time on its port, stops the query",
}


def facts(query: AnalyzedQuery, join: AnalyzedSyncJoin, names: Names) -> list[Fact]:
    """The times that must be equal, and how long a row waits for them."""
    return [
        ("ports", [" = ".join(str(time) for time in join.times)]),
        ("kept", ["rows are kept until the watermark of another port has passed their time"]),
        ("disorder", [_DISORDER[join.disorder]]),
    ]


def _describe_parsed(join: Relation) -> ParsedSection | None:
    return ("SYNC JOIN", ()) if isinstance(join, ParsedSyncJoin) else None


EXPLAIN = JoinExplainer(
    lambda join: "SYNC JOIN",
    facts,
    why_filter_stays=lambda join, port, who: f"{who} rows advance time, whether they are shown or not",
    parsed=_describe_parsed,
    pair_distance=lambda join: PairDistance(why="Rows that match in a SYNC JOIN have equal times."),
)
