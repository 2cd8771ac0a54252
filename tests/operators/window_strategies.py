"""Random window joins and random histories for them. The ranges are small on purpose: everything collides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tests.operators.strategies import conditions

from watersmeet.operators.core.operator import NOW, RUN, Port
from watersmeet.operators.window.kernel import PartitionLimit, WindowJoinOperator, WindowSpec

Row = dict[str, Any]

KINDS = ("inner", "left", "right", "full")


@dataclass(frozen=True)
class Batch:
    """What one batch brings, and whether the query was restarted before it."""

    rows: tuple[tuple[Row, ...], tuple[Row, ...]]
    marks: Mapping[str, int]
    restarted: bool = False

    def tables(self) -> dict[int, pa.Table]:
        """The arrivals as the kernel takes them; a port without rows is absent."""
        return {p: table("lr"[p], rows) for p, rows in enumerate(self.rows) if rows}


def table(side: str, rows: tuple[Row, ...]) -> pa.Table:
    fields = [pa.field(f"{side}.{name}", pa.int64()) for name in ("k", "k2", "p", "q", "o", "d", "v", "code")]
    schema = pa.schema([*fields, pa.field(f"{side}.dead", pa.bool_())])
    return pa.Table.from_pylist(list(rows), schema=schema)


@st.composite
def specs(draw: st.DrawFn, side: str, *, clocks: bool = True, limits: bool = True) -> WindowSpec:
    """A window of any kind."""
    kind = draw(st.sampled_from(("count", "delta", "time") if clocks else ("count", "delta")))
    size = draw(st.integers(0, 4)) * (1_000_000 if kind == "time" else 1)
    partition = tuple(f"{side}.{c}" for c in draw(st.sampled_from(((), ("p",), ("p",), ("q", "p"), ("k",)))))
    limit = None
    if partition and limits and draw(st.booleans()):
        limit = draw(
            st.builds(PartitionLimit, st.just("count"), st.integers(1, 3))
            | st.builds(PartitionLimit, st.just("rows"), st.integers(1, 5))
            | (st.builds(PartitionLimit, st.just("age"), st.sampled_from((0, 1_000_000, 2_900_000))))
        )
        if limit.kind == "age" and not clocks:
            limit = None
    return WindowSpec(kind, size, f"{side}.d" if kind == "delta" else None, partition, limit)


@st.composite
def joins(
    draw: st.DrawFn, *, ordered: bool | None = None, clocks: bool = True, limits: bool = True
) -> WindowJoinOperator:
    """A window join; ``ordered`` says whether both sides declare one order (None: either)."""
    keys = draw(st.sampled_from(((), ("k",), ("k",), ("k", "k2"))))
    exact = keys == ("k",) and draw(st.booleans())
    dead = draw(st.booleans())
    has_order = draw(st.booleans()) if ordered is None else ordered
    kind = draw(st.sampled_from(KINDS))
    left, right = (
        Port(
            columns=tuple(f"{s}.{c}" for c in draw(st.sampled_from((("k", "o", "v"), ("o", "d"), ("v",))))),
            order=f"{s}.o" if has_order else None,
            keys=tuple(f"{s}.{c}" for c in keys),
            code=f"{s}.code" if keys else None,
            exact=exact,
            dead=f"{s}.dead" if dead else None,
            operands=(f"{s}.v",),
            unmatched=draw(st.sampled_from(((), (), (f"{s}.k", f"{s}.d")))),
        )
        for s in "lr"
    )
    return WindowJoinOperator(
        kind=kind,
        left=left,
        right=right,
        windows=(
            draw(specs("l", clocks=clocks, limits=limits)),
            draw(specs("r", clocks=clocks, limits=limits)),
        ),
        condition=draw(conditions()) if draw(st.booleans()) else None,
        interleaved=draw(st.booleans()) if ordered is None else ordered,
        padded_column=draw(st.sampled_from((None, "#padded"))),
        punctuated=draw(st.booleans()),
        emit_discarded=draw(st.booleans()),
    )


_CHOICES = {
    "k": (1, 1, 2, 3, None),
    "k2": (0, 0, 0, 1, None),
    "p": (0, 0, 1, 2, None),
    "q": (0, 0, 1, None),
    "o": (*range(9), None),
    "d": (*range(10), None),
    "v": (0, 1, 2, 3, 4, None),
    "dead": (False, False, False, False, True, None),
}


def rows(side: str, exact: bool) -> st.SearchStrategy[Row]:
    """A row of a side, drawn as one number; codes of unequal keys may be equal unless ``exact``."""

    def row_of(number: int) -> Row:
        row: Row = {}
        for name, values in _CHOICES.items():
            number, choice = divmod(number, len(values))
            row[f"{side}.{name}"] = values[choice]
        key = row[f"{side}.k"] or 0
        return {**row, f"{side}.code": key if exact else key % 2}

    return st.integers(0, math.prod(len(values) for values in _CHOICES.values()) - 1).map(row_of)


@st.composite
def histories(draw: st.DrawFn, join: WindowJoinOperator) -> list[Batch]:
    """Batches in which the clock may stand still, go back or be missing, with restarts in between."""
    batches: list[Batch] = []
    now, run = draw(st.integers(-1, 2)) * 900_000, 1
    for _ in range(draw(st.integers(1, 7))):
        left, right = (tuple(draw(st.lists(rows(s, join.left.exact), max_size=5))) for s in "lr")
        now += draw(st.sampled_from((0, 100_000, 1_000_000, 2_000_000, -500_000)))
        restarted = draw(st.sampled_from((False, False, True)))
        run += restarted
        marks = {RUN: run} if draw(st.booleans()) else {}
        if draw(st.sampled_from((True, True, False))):
            marks[NOW] = now
        batches.append(Batch((left, right), marks, restarted))
    return batches


@st.composite
def sequences(draw: st.DrawFn, join: WindowJoinOperator) -> list[tuple[int, Row]]:
    """Arrivals in the order that their order columns, all different, declare."""
    found: list[tuple[int, Row]] = []
    for number, port in enumerate(draw(st.lists(st.integers(0, 1), max_size=24))):
        row = draw(rows("lr"[port], join.left.exact))
        found.append((port, {**row, f"{'lr'[port]}.o": number}))
    return found


def cut(sequence: list[tuple[int, Row]], cuts: list[int]) -> list[Batch]:
    """The arrivals in batches; inside a batch the rows of a port may come in any order, here backwards."""
    edges = [0, *sorted(min(c, len(sequence)) for c in cuts), len(sequence)]
    parts = [sequence[edges[i] : edges[i + 1]] for i in range(len(edges) - 1)]

    def rows(part: list[tuple[int, Row]], port: int) -> tuple[Row, ...]:
        return tuple(row for p, row in reversed(part) if p == port)

    return [Batch((rows(part, 0), rows(part, 1)), {}) for part in parts]


def with_partitions_by_key(join: WindowJoinOperator) -> WindowJoinOperator:
    """The same join with both windows partitioned by the key, which is what makes it sound to split it by the key."""
    left, right = (replace(spec, partition=(f"{s}.k",), limit=None) for s, spec in zip("lr", join.windows, strict=True))
    return replace(join, windows=(left, right))
