"""Amounts, expressions and kinds of join in words, and the labelled lines of `explain`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from watersmeet.catalog import Amount, Source
from watersmeet.duration import format_duration
from watersmeet.logical.expressions import Expr, Reference, conjuncts, spell_aggregate
from watersmeet.logical.nodes import LEFT_ONLY, SETS, JoinKind, ParsedJoin, Within
from watersmeet.logical.relation import AnalyzedRelation, Padding, laterals, leaves
from watersmeet.schema import quote

_LEAF = 8
_STRENGTH = {
    "or": 1, "and": 2, "not": 3, "is_null": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "negate": 7,
    "cast": _LEAF, "call": _LEAF, "aggregate": _LEAF, "order": _LEAF, "over": _LEAF, "around": _LEAF, "windows": _LEAF,
}  # fmt: skip
_COMPARED = 4


def amount_in_words(amount: Amount) -> str:
    """An amount of time as people read it.

    >>> amount_in_words(Amount(5_000_000, is_interval=True)), amount_in_words(Amount(5, is_interval=False))
    ('5 s', '5')
    """
    return format_duration(amount.value) if amount.is_interval else str(amount.value)


def within_in_words(within: Within) -> str:
    """The largest distance of rows from each other.

    >>> within_in_words(Within(Amount(5, is_interval=False), earlier=Amount(0, is_interval=False)))
    '5 after'
    """
    if within.earlier is None:
        return amount_in_words(within.amount)
    parts = zip(within.pair, ("before", "after"), strict=True)
    return " and ".join(f"{amount_in_words(amount)} {word}" for amount, word in parts if amount.value) or "0"


def expression_in_words(expr: Expr) -> str:  # noqa: PLR0911 - one case per kind of expression
    """An expression as people write it: no brackets or backticks that are not needed.

    >>> from watersmeet.logical.expressions import column
    >>> later = Expr("+", (column(("d", "t")), Expr("literal", text="5")))
    >>> expression_in_words(Expr(">=", (column(("o", "t")), later)))
    'o.t >= d.t + 5'
    """
    if not expr.args:
        return "grouping" if expr.text == SETS else expr.map_references(_flatten).sql(lambda ref: ref.name)
    if expr.op == "not" and expr.args[0].op == "is_null":
        return f"{_bracket(expr.args[0].args[0], _COMPARED + 1)} IS NOT NULL"
    own = _STRENGTH.get(expr.op, _COMPARED)
    # Operators of one strength are read from the left, so what stands on the right keeps its brackets.
    texts = [_bracket(arg, own + (i > 0 and own >= _COMPARED)) for i, arg in enumerate(expr.args)]
    match expr.op:
        case "cast":
            return f"CAST({expression_in_words(expr.args[0])} AS {expr.value})"
        case "aggregate" | "over":
            return spell_aggregate(expr, expression_in_words)
        case "call":
            return _call_in_words(expr)
        case "order":
            return f"{expression_in_words(expr.args[0])} {expr.text}".rstrip()
        case "windows":
            lengths = (format_duration(int(each.value or 0)) for each in expr.args[1:])
            return f"{expr.text}({', '.join((texts[0], *lengths))})"
        case "around":
            return "".join(expression_in_words(arg) for arg in expr.args)
        case "not":
            return f"NOT {texts[0]}"
        case "negate":
            # Two signs side by side would begin a comment.
            return f"-{_bracket(expr.args[0], _LEAF)}"
        case "is_null":
            return f"{_bracket(expr.args[0], _COMPARED + 1)} IS NULL"
        case _:
            return f" {expr.op.upper()} ".join(texts)


def _call_in_words(call: Expr) -> str:
    # A key that is NULL in some of several groupings is shown as it was written.
    is_choice = call.text == "if" and call.args[2].text == "NULL"
    if is_choice and any(ref.name == SETS for ref in call.args[0].references):
        return expression_in_words(call.args[1])
    return f"{call.text}({', '.join(expression_in_words(arg) for arg in call.args)})"


def _bracket(expr: Expr, needed: int) -> str:
    strength = _STRENGTH.get(expr.op, _COMPARED) if expr.args else _LEAF
    text = expression_in_words(expr)
    return f"({text})" if strength < needed else text


def _flatten(ref: Reference) -> Reference:
    # A source without a name, such as that of `_seq`, is not shown.
    # The element of an array has the alias as its name, which is written once.
    is_element = ref.source == ref.name and len(ref.parts) == 1 + len(ref.path)
    source = () if "#" in ref.source or is_element else (ref.source,)
    parts = (*source, ref.name.rpartition("#")[2], *ref.path) if ref.source else ref.parts
    return replace(ref, name=".".join(word(part) for part in parts), path=())


def word(name: str) -> str:
    """A name as people write it: in backticks only where it needs them."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else quote(name)


def kind_in_words(kind: JoinKind) -> str:
    """A kind of join as it is written before JOIN.

    >>> kind_in_words("full"), kind_in_words("semi")
    ('FULL', 'LEFT SEMI')
    """
    return f"LEFT {kind.upper()}" if kind in LEFT_ONLY else kind.upper()


Fact = tuple[str, Sequence[str]]
"""A label and its lines; a fact without lines is not shown."""


def keys(pairs: tuple[tuple[Expr, Expr], ...]) -> Fact:
    """The equalities that rows meet by."""
    return "keys", [f"{expression_in_words(a)} = {expression_in_words(b)}" for a, b in pairs]


def conditions(label: str, parts: tuple[Expr, ...], remark: str = "") -> Fact:
    """Parts of a condition, each with the outcome of a row that fails it."""
    return label, [f"{text} ({remark})" if remark else text for text in texts(parts)]


def texts(parts: tuple[Expr, ...]) -> list[str]:
    """Expressions as people write them."""
    return [expression_in_words(part) for part in parts]


def padding_in_words(padding: Padding) -> str:
    """Describe the padding of an unmatched row.

    >>> padding_in_words("zeros"), padding_in_words((("price", Expr("literal", text="0")),))
    ('zeros', 'price 0')
    """
    if isinstance(padding, str):
        return {"nulls": "NULLs", "zeros": "zeros"}[padding]
    return ", ".join(f"{word(name)} {expression_in_words(value)}" for name, value in padding)


def sources_by_alias(relation: AnalyzedRelation) -> dict[str, Source]:
    """Return the source of each alias of a relation; sources inside a view have no alias outside.

    >>> from watersmeet.logical.relation import AnalyzedScan
    >>> [*sources_by_alias(AnalyzedScan("o", Source("orders", ())))]
    ['o']
    """
    return {named.alias: named.source for named in (*leaves(relation), *laterals(relation))}


def row_names(relation: AnalyzedRelation) -> dict[str, str]:
    """Name the rows of each alias by the source, or by the alias if the source occurs twice or has no name."""
    sources = sources_by_alias(relation)
    names = [source.name for source in sources.values()]
    return {
        alias: "subquery"
        if is_unnamed(alias)
        else alias
        if names.count(source.name) > 1 or is_unnamed(source.name)
        else source.name
        for alias, source in sources.items()
    }


def is_unnamed(name: str) -> bool:
    """Return whether a name is generated, such as that of a subquery."""
    return name.startswith("#")


def without_generated_names(text: str) -> str:
    """A text about a plan without the names that were generated for it, or with what they stand for.

    >>> without_generated_names("subquery AS `#1.rows`"), without_generated_names("read k, `#by0`, `#t`")
    ('subquery', 'read k')
    >>> without_generated_names("the watermark of #2.#t"), without_generated_names("the first rows of #2/bids/b")
    ('the watermark of t', 'the first rows of b')
    >>> without_generated_names("#1.tag = '#sale'")
    "tag = '#sale'"
    """
    parts = _LITERAL.split(text)
    for pattern, plain in _GENERATED:
        parts[::2] = [pattern.sub(plain, part) for part in parts[::2]]
    return "".join(parts)


_LITERAL = re.compile(r"((?<!\w)'(?:[^']|'')*')")
"""A string in SQL, which is what the user wrote."""


_GENERATED = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r" AS `#[^`]*`", ""),
        (r"#\d+\.\w+/(?:\w+/)*(\w+)", r"\1"),
        (r"`#\w+\.\w+`", "…"),
        (r"(\w+)\.`#order`", r"the order of \1"),
        (r"^`#\w+`, ", ""),
        (r",? ?`#\w+`", ""),
        (r"#\d+(?:/\w+)*/(\w+)", r"\1"),
        (r"#\d+\.", ""),
        (r"(?<![\w`])#(\w+)|(?<=\.)#(\w+)", r"\1\2"),
    )
)


def in_plain_words(text: str, columns: Mapping[str, str]) -> str:
    """A text without generated names; ``columns``: those of views, each with the expression that it stands for.

    >>> in_plain_words("the watermark of l.`#order0` is 5", {"l.#order0": "v.t"})
    'the watermark of v.t is 5'
    """
    for name in sorted(columns, key=len, reverse=True):
        alias, _, column = name.rpartition(".")
        for spelled in (name, f"{alias}.`{column}`", f"`{column}`"):
            text = text.replace(spelled, columns[name])
    return without_generated_names(text)


def rows_of(side: AnalyzedRelation, names: Mapping[str, str]) -> str:
    """The words for the rows of one side of a join, by `row_names`."""
    return " with ".join(names[alias] for alias in side.aliases)


def condition_facts(join: ParsedJoin) -> tuple[Fact, ...]:
    """The condition of a join as it was asked for."""
    return (
        ("on", texts(conjuncts(join.on))),
        ("using", [", ".join(word(name) for name in join.using)] if join.using else []),
        ("within", [within_in_words(join.within)] if join.within else []),
    )
