"""Joins that run one after another in one shard: the output of one is the input of the next, in the same process.

In every batch a chain emits what its joins emit if each has its own operator:

1. A join takes part in a batch if a row or a watermark arrived at its own ports, or at a join before it.
2. A join makes its step with the watermarks of its own ports and, for a port that another join feeds, with those that
   this join has emitted in this batch.
3. Before that, joins that may split their arrivals can process them in steps without watermarks. So the rows between
   two joins are never in memory as a whole.

The rows of one key are in one shard for all joins of a chain, so the next join needs nothing from other shards but
watermarks. Those that it follows must be the same in all shards; `watersmeet.physical.chaining` makes sure of that.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from watersmeet.operators.core.operator import Emission, StateStore, StreamOperator, Watermarks

Piece = pa.Table | Emission


@dataclass(frozen=True)
class Inlet:
    """The form in which what a join hands out arrives at a port of the next one.

    - ``port``: that port
    - ``schema``: the rows as they arrive; ``columns``: which column of the join's rows each of its fields is
    - ``watermarks``: the names of the watermarks in the join, each with its name at the port; None: they are the same
    """

    port: int
    schema: pa.Schema
    columns: tuple[str, ...]
    watermarks: tuple[tuple[str, str], ...] | None = None

    def rows(self, table: pa.Table) -> pa.Table:
        """Rows of the join as they arrive."""
        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip((table.column(name) for name in self.columns), self.schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def rename_watermarks(self, watermarks: Watermarks) -> Watermarks:
        """Watermarks of the join under their names at the port."""
        if self.watermarks is None:
            return watermarks
        return {outer: watermarks[inner] for inner, outer in self.watermarks if inner in watermarks}


@dataclass(frozen=True)
class Link:
    """A join of a chain: its operator, and the inlet through which the join before it feeds it; None for the first."""

    operator: StreamOperator
    inlet: Inlet | None = None


def pass_through(link: int, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pass the pieces of a step through. Callers replace this to measure a step or to explain its failure."""
    return pieces


class Chain:
    """The joins of a chain in one shard, for one batch. ``around`` sees the steps of each, by its number."""

    def __init__(
        self,
        links: Sequence[Link],
        stores: Sequence[StateStore],
        bytes_per_step: int,
        around: Callable[[int, Iterator[Piece]], Iterator[Piece]] = pass_through,
    ) -> None:
        self.links = links
        self.stores = stores
        self.bytes_per_step = bytes_per_step
        self.around = around
        self.pending: list[list[pa.Table]] = [[] for _ in links]

    def split(self, link: int, arrivals: Mapping[int, pa.Table]) -> Iterator[tuple[int, Piece]]:
        """Make a step without watermarks of a join that may split its arrivals; yield pieces with the join's number."""
        yield from self._step(link, arrivals, {})

    def close(
        self, arrivals: Sequence[Mapping[int, pa.Table]], watermarks: Sequence[Watermarks], arrived: Container[int]
    ) -> Iterator[tuple[int, Piece]]:
        """The last step of every join that the batch comes to, with its watermarks.

        ``arrived``: the joins to whose own ports the batch came.
        """
        emitted: Watermarks | None = None
        for number, link in enumerate(self.links):
            if emitted is None and number not in arrived:
                continue
            received = dict(watermarks[number])
            if link.inlet is not None and emitted is not None:
                received |= link.inlet.rename_watermarks(emitted)
            for source, piece in self._step(number, arrivals[number], received):
                if source == number and isinstance(piece, Emission):
                    emitted = piece.report.watermarks
                yield source, piece

    def _step(
        self, number: int, arrivals: Mapping[int, pa.Table], watermarks: Watermarks
    ) -> Iterator[tuple[int, Piece]]:
        link = self.links[number]
        if link.inlet is not None and self.pending[number]:
            tables, self.pending[number] = self.pending[number], []
            arrivals = {**arrivals, link.inlet.port: pa.concat_tables(tables)}
        for piece in self.around(number, link.operator.stream(self.stores[number], arrivals, watermarks)):
            yield number, piece
            yield from self._forward(number + 1, piece.rows if isinstance(piece, Emission) else (piece,))

    def _forward(self, number: int, rows: Sequence[pa.Table]) -> Iterator[tuple[int, Piece]]:
        """Let rows arrive at the next join, which takes them at once if they are many."""
        if number == len(self.links):
            return
        waiting, next_ = self.pending[number], self.links[number]
        assert next_.inlet is not None
        waiting += [next_.inlet.rows(table) for table in rows if table.num_rows]
        if next_.operator.can_split_batch and sum(table.nbytes for table in waiting) > self.bytes_per_step:
            yield from self._step(number, {}, {})
