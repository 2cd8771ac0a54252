"""Random interval joins and random histories for them.

The ranges are small on purpose: keys collide, times tie, bounds are met exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from watersmeet.operators.core.condition import Apply, ColumnRef, Condition, Constant
from watersmeet.operators.core.operator import END_OF_INPUT, NOW, Port
from watersmeet.operators.core.watermarks import Bound
from watersmeet.operators.interval.kernel import IntervalJoinOperator

Row = dict[str, Any]

UNLIMITED = 2**63 - 1
KINDS = ("inner", "left", "right", "full", "semi", "anti")
END = {"l.t": END_OF_INPUT, "l.u": END_OF_INPUT, "r.t": END_OF_INPUT, "r.u": END_OF_INPUT}


@dataclass(frozen=True)
class Batch:
    """What one batch brings."""

    rows: tuple[tuple[Row, ...], tuple[Row, ...]]
    marks: Mapping[str, int]

    def tables(self) -> dict[int, pa.Table]:
        """The arrivals as the kernel takes them; a port without rows is absent."""
        return {p: table("lr"[p], rows) for p, rows in enumerate(self.rows) if rows}


def table(side: str, rows: tuple[Row, ...]) -> pa.Table:
    """Rows as an Arrow table with all columns of the side."""
    return pa.Table.from_pylist(list(rows), schema=schema(side))


def schema(side: str) -> pa.Schema:
    names = ("k", "k2", "t", "u", "e", "v", "code")
    fields = [pa.field(f"{side}.{name}", pa.int64()) for name in names]
    return pa.schema([*fields, pa.field(f"{side}.dead", pa.bool_())])


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    """A residual condition over the payloads, which may be NULL."""
    values = (
        ColumnRef("l.v"),
        ColumnRef("r.v"),
        Constant(2),
        Constant(None),
        Apply("+", (ColumnRef("l.v"), ColumnRef("r.v"))),
    )
    operators = st.sampled_from(("=", "<=>", "<>", "<", "<=", ">", ">="))
    leaf = st.builds(lambda o, a, b: Apply(o, (a, b)), operators, st.sampled_from(values), st.sampled_from(values))
    null = st.builds(lambda a: Apply("is_null", (a,)), st.sampled_from(values))
    tree = st.recursive(
        leaf | null,
        lambda inner: (
            st.builds(lambda o, a, b: Apply(o, (a, b)), st.sampled_from(("and", "or")), inner, inner)
            | st.builds(lambda a: Apply("not", (a,)), inner)
        ),
        max_leaves=3,
    )
    return draw(tree)


@st.composite
def joins(draw: st.DrawFn, *, two_times: bool = True) -> IntervalJoinOperator:
    """An interval join; with ``two_times`` also with a second watermarked column, with or without a bound on it.

    Every bound follows from the condition, as the analysis guarantees.
    """
    keys = draw(st.sampled_from(((), ("k",), ("k", "k2"))))
    exact = keys == ("k",) and draw(st.booleans())
    times = [("t", "u") if two_times and draw(st.booleans()) else ("t",) for _ in "lr"]
    dead = draw(st.booleans())
    kind = draw(st.sampled_from(KINDS))
    shown: list[tuple[str, ...]] = [
        draw(st.sampled_from((("k", "t", "v"), ("v", "t", "k", "u"), ("t",)))) for _ in "lr"
    ]
    if kind in ("semi", "anti"):
        shown[1] = ()
    sides = [
        Port(
            columns=tuple(f"{s}.{c}" for c in shown[i]),
            times=tuple(f"{s}.{c}" for c in times[i]),
            keys=tuple(f"{s}.{c}" for c in keys),
            code=f"{s}.code" if keys else None,
            exact=exact,
            dead=f"{s}.dead" if dead else None,
            operands=(f"{s}.v", f"{s}.t", f"{s}.u", f"{s}.e"),
            late=(f"{s}.k", f"{s}.t"),
        )
        for i, s in enumerate("lr")
    ]
    lower, upper = sorted((draw(st.integers(-5, 5)), draw(st.integers(-5, 5))))
    strict = draw(st.tuples(st.booleans(), st.booleans()))
    lives = _row_ends(draw)
    is_bound = [not draw(st.booleans()) if any(life.column[0] == s for life in lives) else True for s in "lr"]
    lower, upper = (lower if is_bound[1] else -UNLIMITED), (upper if is_bound[0] else UNLIMITED)
    bounds = [
        Bound("l.t", "r.t", upper + strict[0], strict[0]),
        Bound("r.t", "l.t", -lower + strict[1], strict[1]),
    ]
    bounds = [bound for bound, there in zip(bounds, is_bound, strict=True) if there]
    sides = [replace(side, ends=tuple(life.column for life in lives if life.column in side.operands)) for side in sides]
    extra = _second_bounds(draw, times)
    parts = [_holds(bound) for bound in (*extra, *lives)]
    if draw(st.booleans()):
        parts.append(draw(conditions()))
    return IntervalJoinOperator(
        kind=kind,
        left=sides[0],
        right=sides[1],
        lower=lower,
        upper=upper,
        bounds=tuple(bounds + extra),
        condition=None if not parts else parts[0] if len(parts) == 1 else Apply("and", tuple(parts)),
        end_bounds=tuple(lives),
        idle=tuple((f"{s}.t", 3) for s in draw(st.sampled_from(("", "", "l", "r", "lr")))),
    )


def _second_bounds(draw: st.DrawFn, times: list[tuple[str, ...]]) -> list[Bound]:
    choices = [(f"l.{a}", f"r.{b}") for a in times[0] for b in times[1] if (a, b) != ("t", "t")]
    both = choices + [(b, a) for a, b in choices]
    if not both:
        return []
    picked = draw(st.lists(st.sampled_from(both), max_size=2, unique=True))
    return [Bound(column, other, draw(st.integers(-4, 6)), draw(st.booleans())) for column, other in picked]


def _row_ends(draw: st.DrawFn) -> list[Bound]:
    """Ends that the rows of no side, of one or of both carry."""
    sides = draw(st.sampled_from(("", "", "l", "r", "lr")))
    others = {"l": "r.t", "r": "l.t"}
    return [Bound(f"{s}.e", others[s], draw(st.integers(-4, 4)), draw(st.booleans())) for s in sides]


def _holds(bound: Bound) -> Condition:
    return Apply(
        ">" if bound.strict else ">=",
        (ColumnRef(bound.column), Apply("-", (ColumnRef(bound.other), Constant(bound.constant)))),
    )


_TIMES = (*range(17), None)
_CHOICES = {
    "k": (1, 1, 2, 3, None),
    "k2": (0, 0, 0, 1, None),
    "t": _TIMES,
    "u": _TIMES,
    "e": (*range(0, 25, 2), 10_000, None),
    "v": (0, 1, 2, 3, 4, None),
    "dead": (False, False, False, True),
}


def rows(side: str, exact: bool) -> st.SearchStrategy[Row]:
    """A row of a side; keys and times may be NULL, codes of unequal keys may be equal unless ``exact``.

    One number says it all, which is many times faster to draw than a value per column.
    """

    def row_of(number: int) -> Row:
        row: Row = {}
        for name, values in _CHOICES.items():
            number, choice = divmod(number, len(values))
            row[f"{side}.{name}"] = values[choice]
        key = row[f"{side}.k"] or 0
        return {**row, f"{side}.code": key if exact else key % 2}

    return st.integers(0, math.prod(len(values) for values in _CHOICES.values()) - 1).map(row_of)


@st.composite
def arrivals(draw: st.DrawFn, join: IntervalJoinOperator) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """The rows of one batch."""
    left, right = (draw(st.lists(rows(s, join.left.exact), max_size=5)) for s in "lr")
    return (tuple(left), tuple(right))


@st.composite
def histories(draw: st.DrawFn, join: IntervalJoinOperator) -> list[Batch]:
    """Batches with marks of any kind: promises that rows keep or break, marks that fall, and the end at any time."""
    names = (*join.left.times, *join.right.times)
    mark = st.integers(-2, 22) | st.integers(-2, 22) | st.integers(-2, 22) | st.just(END_OF_INPUT)
    marks = st.dictionaries(st.sampled_from(names), mark, max_size=2)
    batches = draw(st.lists(st.builds(Batch, arrivals(join), marks), min_size=1, max_size=7))
    if not join.idle:
        return batches
    clock = sorted(draw(st.lists(st.integers(0, 12), min_size=len(batches), max_size=len(batches))))
    return [Batch(batch.rows, {**batch.marks, NOW: now}) for batch, now in zip(batches, clock, strict=True)]


@st.composite
def honest_histories(draw: st.DrawFn, join: IntervalJoinOperator) -> list[Batch]:
    """Batches in which no row is late, and a last one that ends the input."""
    parts = draw(st.lists(arrivals(join), min_size=1, max_size=6))
    batches: list[Batch] = []
    for i, part in enumerate(parts):
        later = [row for after in parts[i + 1 :] for port in after for row in port]
        marks: dict[str, int] = {}
        for name in (*join.left.times, *join.right.times):
            times = [row[name] for row in later if row.get(name) is not None]
            if draw(st.booleans()):
                marks[name] = min(times, default=20) - draw(st.integers(0, 3))
        batches.append(Batch(part, marks))
    return [*batches, Batch(((), ()), END)]


def recut(batches: list[Batch], cuts: list[int]) -> list[Batch]:
    """The same rows without marks, cut into one batch per cut and port by port, and the end."""
    lefts = [row for batch in batches for row in batch.rows[0]]
    rights = [row for batch in batches for row in batch.rows[1]]
    edges = [0, *sorted(cuts), max(len(lefts), len(rights), *cuts, 0)]
    parts = [Batch((tuple(lefts[a:b]), tuple(rights[a:b])), {}) for a, b in pairwise(edges)]
    return [*parts, Batch(((), ()), END)]
