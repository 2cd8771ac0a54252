"""Which parts of WHERE stay behind the joins, and why (LN-21)."""

from __future__ import annotations

from watersmeet.explanation.family import Families, explainer
from watersmeet.plan.expressions import Expr
from watersmeet.plan.facts import Fact, row_names
from watersmeet.plan.relation import AnalyzedJoin, AnalyzedLeaf, AnalyzedQuery, AnalyzedRelation, leaves
from watersmeet.plan.words import expression_in_words


def staying(query: AnalyzedQuery, families: Families) -> Fact:
    """The parts of WHERE that are applied to the joined rows, each with the reason why not earlier."""
    return "where", [_with_reason(query, part, families) for part in query.where]


def _with_reason(query: AnalyzedQuery, part: Expr, families: Families) -> str:
    text, reason = expression_in_words(part), _reason(query.relation, part, families)
    return f"{text} ({reason})" if reason else text


def _reason(relation: AnalyzedRelation, part: Expr, families: Families) -> str:
    names = row_names(relation)
    sources = sorted(source for source in part.sources if source in names)
    if len(sources) > 1:
        behind = "the join" if len(leaves(relation)) > 1 else "LATERAL"
        return f"after {behind}: it speaks of {' and '.join(names[alias] for alias in sources)}"
    if not sources or part.sources != frozenset(sources):
        return ""
    return _kept_by(relation, sources[0], names[sources[0]], families)


def _kept_by(relation: AnalyzedRelation, alias: str, who: str, families: Families) -> str:
    """What keeps a part that speaks of one alias, whose rows are called ``who``, from moving to it."""
    port = next((port for port, side in enumerate(relation.inputs) if alias in side.aliases), None)
    if port is None or isinstance(relation, AnalyzedLeaf):
        return ""
    if isinstance(relation, AnalyzedJoin):
        reason = explainer(families, relation).stays(relation, port, who)
        if reason:
            return f"after the join: {reason}"
    return _kept_by(relation.inputs[port], alias, who, families)
