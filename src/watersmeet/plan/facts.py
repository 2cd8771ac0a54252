"""What explain says of a step, as labels with lines, and what it calls the rows of a relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watersmeet.catalog import Source
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import ParsedJoin
from watersmeet.plan.relation import AnalyzedRelation, Padding, laterals, leaves
from watersmeet.plan.words import expression_in_words, within_in_words, word

Fact = tuple[str, Sequence[str]]
"""A label and its lines; nothing is said where there are none."""


def keys(pairs: tuple[tuple[Expr, Expr], ...]) -> Fact:
    """The equalities that rows meet by."""
    return "keys", [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in pairs]


def conditions(label: str, parts: tuple[Expr, ...], remark: str = "") -> Fact:
    """Parts of a condition, each with what becomes of a row that fails it."""
    return label, [f"{text} ({remark})" if remark else text for text in texts(parts)]


def texts(parts: tuple[Expr, ...]) -> list[str]:
    """Expressions as people write them."""
    return [expression_in_words(part) for part in parts]


def padding_in_words(padding: Padding) -> str:
    """What stands beside a row that stayed alone.

    >>> padding_in_words("zeros"), padding_in_words((("price", Expr("literal", text="0")),))
    ('zeros', 'price 0')
    """
    if isinstance(padding, str):
        return {"nulls": "NULLs", "zeros": "zeros"}[padding]
    return ", ".join(f"{word(name)} {expression_in_words(value)}" for name, value in padding)


def sources_by_alias(relation: AnalyzedRelation) -> dict[str, Source]:
    """What each alias of a relation stands for; what is inside a view has no alias outside.

    >>> from watersmeet.plan.relation import AnalyzedScan
    >>> [*sources_by_alias(AnalyzedScan("o", Source("orders", ())))]
    ['o']
    """
    return {named.alias: named.source for named in (*leaves(relation), *laterals(relation))}


def row_names(relation: AnalyzedRelation) -> dict[str, str]:
    """What to call the rows of each alias: by their source, or by the alias where that occurs twice or has no name."""
    sources = sources_by_alias(relation)
    names = [source.name for source in sources.values()]
    return {
        alias: alias if names.count(source.name) > 1 or is_unnamed(source.name) else source.name
        for alias, source in sources.items()
    }


def is_unnamed(name: str) -> bool:
    """Whether a name is one that nobody can write, such as that of a subquery."""
    return name.startswith("#")


def rows_of(side: AnalyzedRelation, names: Mapping[str, str]) -> str:
    """What to call the rows of one side of a join, by `row_names`."""
    return " with ".join(names[alias] for alias in side.aliases)


def condition_facts(join: ParsedJoin) -> tuple[Fact, ...]:
    """The condition of a join as it was asked for."""
    return (
        ("on", texts(conjuncts(join.on))),
        ("using", [", ".join(word(name) for name in join.using)] if join.using else []),
        ("within", [within_in_words(join.within)] if join.within else []),
    )
