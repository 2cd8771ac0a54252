"""GROUP BY: expressions, ALL, and several groupings at once: GROUPING SETS, ROLLUP and CUBE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product

from watersmeet.catalog import NOWHERE, Span
from watersmeet.logical.expressions import Expr, aggregates_in
from watersmeet.logical.nodes import SETS, Item, Lateral, Relation, Star
from watersmeet.parser.cursor import Cursor
from watersmeet.parser.expressions import read_or
from watersmeet.parser.unsupported import at_clause

_MOST_SETS = 256
_SETS_HINT = "write `GROUP BY GROUPING SETS ((a, b), (a), ())`, for example."
_CALLS = {"ROLLUP": "write `ROLLUP(a, b)`.", "CUBE": "write `CUBE(a, b)`."}

Set = tuple[Expr, ...]
"""The expressions of one grouping."""


@dataclass(frozen=True)
class Grouping:
    """The expressions that a query groups by; ``sets``: of several groupings at once, each as positions in ``by``."""

    by: tuple[Expr, ...] = ()
    span: Span = NOWHERE
    sets: tuple[tuple[int, ...], ...] = ()

    def with_expressions(self, by: Sequence[Expr]) -> Grouping:
        """The same with other expressions in their places; equal ones are put together."""
        names = [expr.sql(lambda ref: ".".join(ref.parts)) for expr in by]
        once = list(dict.fromkeys(names))
        places = [once.index(name) for name in names]
        sets = tuple(tuple(dict.fromkeys(places[place] for place in each)) for each in self.sets)
        return replace(self, by=tuple(by[names.index(name)] for name in once), sets=sets)

    def repeat_rows(self, relation: Relation) -> Relation:
        """The relation with each of its rows once per grouping, under the number of that."""
        if not self.sets:
            return relation
        numbers = Expr("other", text=f"array({', '.join(str(n) for n in range(len(self.sets)))})", span=self.span)
        return Lateral(relation, numbers, SETS, self.span)


def read_grouping(cursor: Cursor, items: Sequence[Item | Star]) -> Grouping:
    """GROUP BY, if it comes next; ``items``: what SELECT shows."""
    first = cursor.position
    if not cursor.at("GROUP", "BY"):
        return Grouping()
    cursor.begin_line()
    cursor.skip(2)
    if _take_all(cursor):
        return Grouping(_group_by_all(cursor, items), cursor.span_from(first))
    parts = list(cursor.read_list(_read_part, on_lines=True))
    with_words = next((word for word in _CALLS if cursor.at("WITH", word)), None)
    if with_words is not None:
        cursor.skip(2)
        parts = [_subsets(with_words, [expr for part in parts for expr in part])]
    elif cursor.at("GROUPING", "SETS", "("):
        parts = [_read_sets(cursor)]
    # One set is several groupings too: `grouping(a)` is 0 in it.
    words = [token.text.upper() for token in cursor.tokens[first : cursor.position]]
    if ("GROUPING", "SETS") not in pairwise(words) and all(len(part) == 1 and len(part[0]) == 1 for part in parts):
        return Grouping(tuple(part[0][0] for part in parts), cursor.span_from(first))
    count = 1
    for part in parts:
        count *= len(part)
    if count > _MOST_SETS:
        cursor.position = first
        hint = "name those that you need: `GROUPING SETS ((a, b), (a), ())`."
        raise cursor.refuse_unsupported(f"GROUP BY with {count} groupings, of {_MOST_SETS} at most,", hint, 2)
    sets = [tuple(expr for part in parts_of_set for expr in part) for parts_of_set in product(*parts)]
    by = [expr for each in sets for expr in each]
    ends = [sum(len(each) for each in sets[:n]) for n in range(len(sets) + 1)]
    places = tuple(tuple(range(start, end)) for start, end in pairwise(ends))
    return Grouping(tuple(by), cursor.span_from(first), places).with_expressions(by)


def _take_all(cursor: Cursor) -> bool:
    if not cursor.at("ALL"):
        return False
    cursor.skip(1)
    if cursor.at_query_end or cursor.at_any({";"}) or at_clause(cursor) or cursor.at_any({"QUALIFY", "ORDER", "EMIT"}):
        return True
    cursor.position -= 1
    return False


def _group_by_all(cursor: Cursor, items: Sequence[Item | Star]) -> tuple[Expr, ...]:
    """All that SELECT shows without an aggregate; constants are the same for all rows."""
    if any(isinstance(item, Star) for item in items):
        cursor.position -= 1
        raise cursor.refuse_unsupported("GROUP BY ALL with `*` in SELECT", "name the columns in SELECT.")
    shown = [item.expr for item in items if isinstance(item, Item) and item.expr.op not in ("literal", "interval")]
    return tuple(expr for expr in shown if not aggregates_in(expr))


def _read_part(cursor: Cursor) -> list[Set]:
    """An expression, or several groupings."""
    for word, hint in _CALLS.items():
        if cursor.at(word, "("):
            cursor.skip(1)
            return _subsets(word, _read_sets_in_brackets(cursor, hint))
    if cursor.at("GROUPING", "SETS"):
        return _read_sets(cursor)
    return [(read_or(cursor),)]


def _read_sets(cursor: Cursor) -> list[Set]:
    """``GROUPING SETS (set, ...)``, of which each may be a ROLLUP or CUBE itself."""
    cursor.skip(2)
    cursor.expect("(", _SETS_HINT)
    sets = [each for part in cursor.read_list(_read_set) for each in part]
    cursor.expect(")", _SETS_HINT)
    return sets


def _read_set(cursor: Cursor) -> list[Set]:
    return [_read_bracket(cursor)] if cursor.at("(") else _read_part(cursor)


def _read_sets_in_brackets(cursor: Cursor, hint: str) -> list[Set]:
    cursor.expect("(", hint)
    parts = cursor.read_list(lambda inner: _read_bracket(inner) if inner.at("(") else (read_or(inner),))
    cursor.expect(")", hint)
    return list(parts)


def _read_bracket(cursor: Cursor) -> Set:
    """``(a, b)``, or an expression that begins with a bracket."""
    first = cursor.position
    cursor.skip(1)
    if cursor.take(")"):
        return ()
    parts = cursor.read_list(read_or)
    cursor.expect(")", _SETS_HINT)
    if cursor.at_any({",", ")"}):
        return tuple(parts)
    cursor.position = first
    return (read_or(cursor),)


def _subsets(word: str, parts: Sequence[Set]) -> list[Set]:
    """The groupings of ROLLUP, from all to none, or those of CUBE."""
    if word == "ROLLUP":
        chosen = [tuple(parts[:size]) for size in range(len(parts), -1, -1)]
    else:
        chosen = [some for size in range(len(parts), -1, -1) for some in combinations(parts, size)]
    return [tuple(expr for part in some for expr in part) for some in chosen]
