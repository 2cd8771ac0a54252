"""What explain says of a sync join."""

from __future__ import annotations

from watersmeet.explanation.family import Apart, Asked, JoinExplainer, Names
from watersmeet.families.sync.relation import AnalyzedSyncJoin, SyncJoin
from watersmeet.plan.facts import Fact
from watersmeet.plan.nodes import Relation
from watersmeet.plan.query import AnalyzedQuery

_DISORDER = {
    "drop": "a late row, or a second one of the same time on its port, is dropped and counted",
    "error": "a late row, or a second one of the same time on its port, stops the query",
}


def facts(query: AnalyzedQuery, join: AnalyzedSyncJoin, names: Names) -> list[Fact]:
    """The times that must be equal, and how long a row waits for them."""
    return [
        ("ports", [" = ".join(str(time) for time in join.times)]),
        ("kept", ["rows are kept until the watermark of another port has passed their time"]),
        ("disorder", [_DISORDER[join.disorder]]),
    ]


def _asked(join: Relation) -> Asked | None:
    return ("SYNC JOIN", ()) if isinstance(join, SyncJoin) else None


EXPLAIN = JoinExplainer(
    lambda join: "SYNC JOIN",
    facts,
    stays=lambda join, port, who: f"{who} rows advance time, whether they are shown or not",
    asked=_asked,
    apart=lambda join: Apart(why="Rows of a SYNC JOIN have equal times, so that those of a pair are never apart."),
)
