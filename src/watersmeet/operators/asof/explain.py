"""What explain says of an as-of join."""

from __future__ import annotations

from watersmeet.catalog import Amount
from watersmeet.explanation.family import JoinExplainer, Names, PairDistance, ParsedSection
from watersmeet.operators.asof.analyze import AnalyzedAsofJoin, ParsedAsofJoin
from watersmeet.plan.facts import Fact, condition_facts, conditions, keys, padding_in_words, rows_of, texts
from watersmeet.plan.nodes import Relation
from watersmeet.plan.query import AnalyzedQuery
from watersmeet.plan.words import amount_in_words, kind_in_words


def facts(query: AnalyzedQuery, join: AnalyzedAsofJoin, names: Names) -> list[Fact]:
    """Which version a row gets, how long rows wait for it and how long versions are kept."""
    left = rows_of(join.left, names)
    return [
        keys(join.keys),
        ("version", [_version(join, names[join.right.alias])]),
        ("kept", _retention(join, left, names[join.right.alias])),
        ("default", [padding_in_words(join.defaults)] if join.defaults else []),
        conditions("left only", join.left_only, "a left row that fails gets no version"),
        conditions("right only", join.right_only, "a left row whose version fails gets none"),
    ]


def _version(join: AnalyzedAsofJoin, right: str) -> str:
    most = "" if join.tolerance is None else f", at most {_distance(join)} away"
    match join.direction:
        case "backward":
            return (
                f"the latest {right} row with {join.right_time} {'<' if join.strict else '<='} {join.left_time}{most}"
            )
        case "forward":
            return (
                f"the earliest {right} row with {join.right_time} {'>' if join.strict else '>='} {join.left_time}{most}"
            )
        case "nearest":
            return f"the {right} row with the {join.right_time} closest to {join.left_time}{most}; of two, the earlier"


def _retention(join: AnalyzedAsofJoin, left: str, right: str) -> list[str]:
    passed = f"the watermark of {join.left_time} has passed"
    until = {
        "backward": f"a newer one with the same key exists and {passed} it",
        "forward": f"{passed} them",
        "nearest": f"a newer one with the same key exists and {passed} it",
    }[join.direction]
    bound = "" if join.tolerance is None or join.direction == "forward" else f", or {passed} them by {_distance(join)}"
    reach = "" if join.direction == "backward" or join.tolerance is None else f" by {_distance(join)}"
    waits = f"{left} rows wait until the watermark of {join.right_time} has passed {join.left_time}{reach}"
    return [waits, f"{right} rows are kept until {until}{bound}"]


def _distance(join: AnalyzedAsofJoin) -> str:
    watermark = join.right.source.watermark(join.right_time.name)
    return amount_in_words(Amount(join.tolerance or 0, is_interval=watermark is None or watermark.lag.is_interval))


def _describe_parsed(join: Relation) -> ParsedSection | None:
    if not isinstance(join, ParsedAsofJoin):
        return None
    clauses = (("match", join.match), ("as of", join.as_of))
    clause_facts = tuple((label, texts((expr,))) for label, expr in clauses if expr is not None)
    defaults = [padding_in_words(join.defaults)] if join.defaults else []
    heading = f"{'LEFT ' if join.kind == 'left' else ''}ASOF JOIN"
    return heading, (*clause_facts, *condition_facts(join), ("default", defaults))


EXPLAIN = JoinExplainer(
    lambda join: "ASOF JOIN" if join.kind == "inner" else f"{kind_in_words(join.kind)} ASOF JOIN",
    facts,
    why_filter_stays=lambda join, port, who: (
        f"{who} rows end earlier versions, whether they are shown or not" if port else ""
    ),
    parsed=_describe_parsed,
    pair_distance=lambda join: PairDistance("event time", join.tolerance),
)
