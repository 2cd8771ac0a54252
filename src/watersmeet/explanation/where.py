"""Which parts of WHERE stay behind the joins, and why (LN-21)."""

from __future__ import annotations

from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.families.sync.relation import AnalyzedSyncJoin
from watersmeet.families.window.relation import PUNCTUATION, AnalyzedWindowJoin
from watersmeet.plan.expressions import Expr
from watersmeet.plan.facts import Fact, row_names
from watersmeet.plan.nodes import PRESERVED
from watersmeet.plan.relation import (
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedQuery,
    AnalyzedRelation,
    ConditionalJoin,
    leaves,
)
from watersmeet.plan.words import expression_in_words


def staying(query: AnalyzedQuery) -> Fact:
    """The parts of WHERE that are applied to the joined rows, each with the reason why not earlier."""
    return "where", [_with_reason(query, part) for part in query.where]


def _with_reason(query: AnalyzedQuery, part: Expr) -> str:
    text, reason = expression_in_words(part), _reason(query.relation, part, row_names(query.relation))
    return f"{text} ({reason})" if reason else text


def _reason(relation: AnalyzedRelation, part: Expr, names: dict[str, str]) -> str:
    sources = sorted(part.sources - {PUNCTUATION})
    if len(sources) > 1:
        behind = "the join" if len(leaves(relation)) > 1 else "LATERAL"
        return f"after {behind}: it speaks of {' and '.join(names.get(alias, alias) for alias in sources)}"
    if not sources or part.sources != frozenset(sources):
        return ""
    return _kept_by(relation, sources[0], names)


def _kept_by(relation: AnalyzedRelation, alias: str, names: dict[str, str]) -> str:
    """What keeps a part that speaks of one alias from moving to it."""
    if isinstance(relation, AnalyzedLeaf):
        return ""
    if isinstance(relation, AnalyzedLateral):
        return _kept_by(relation.input, alias, names)
    who = names.get(alias, alias)
    if isinstance(relation, AnalyzedWindowJoin):
        return f"after the join: {who} rows count in their window, whether they are shown or not"
    if isinstance(relation, AnalyzedSyncJoin):
        return f"after the join: {who} rows advance time, whether they are shown or not"
    assert isinstance(relation, ConditionalJoin)
    is_left = alias in relation.left.aliases
    if isinstance(relation, AnalyzedAsofJoin) and not is_left:
        return f"after the join: {who} rows end earlier versions, whether they are shown or not"
    if relation.kind in PRESERVED["right" if is_left else "left"]:
        return f"after the join: it can show {who} as NULL"
    return _kept_by(relation.left if is_left else relation.right, alias, names)
