"""Which operator runs, on which columns, and why: the plan that an executor follows to the letter.

Every frame past a scan names its columns ``alias.column``. A port's frame is: scan or join, then the columns that
Spark computes
for the join (`Computed`), then the exchange by code, then the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from watersmeet.catalog import Source
from watersmeet.joins.operator import JoinOperator
from watersmeet.plan.analyzed import AnalyzedSyncJoin, AnyJoin, Output, Padding
from watersmeet.plan.expressions import Expr

PADDED = "#padded"
"""The column in which an operator tells which port a row has no part of; -1: it has one of all."""


@dataclass(frozen=True)
class Computed:
    """A column that is computed on one side before the exchange; in ``template``, ``{}`` stands for the expression.

    >>> Computed("#l0", Expr("other", text="1 + 1"), "CAST({} AS BIGINT)").sql()
    'CAST(1 + 1 AS BIGINT)'
    """

    name: str
    expr: Expr
    template: str = "{}"

    def sql(self) -> str:
        """Spark SQL for it."""
        return self.template.format(self.expr.sql())


@dataclass(frozen=True)
class Lag:
    """A watermarked column of a source: how far its mark stays behind the latest time, and what the mark is called.

    In a union each part has marks of its own: ``part`` says whose this is.
    """

    column: str
    lag: int
    mark: str
    part: int | None = None


@dataclass(frozen=True)
class ScanPlan:
    """A source: which of its columns are read, and which of its rows; of a union, the sources it is made of."""

    alias: str
    source: Source
    columns: tuple[str, ...]
    filters: tuple[Expr, ...] = ()
    parts: tuple[Source, ...] = ()


@dataclass(frozen=True)
class PortInput:
    """What a join family is told of one side.

    ``needed`` are the columns that the result or a later join asks for, ``times`` the watermarked columns with their
    ``lags`` and ``idle`` times in microseconds, ``late`` the columns that late rows show.
    """

    plan: RelationPlan
    aliases: frozenset[str]
    needed: tuple[str, ...]
    times: tuple[str, ...]
    lags: tuple[Lag, ...]
    idle: tuple[tuple[str, int], ...]
    late: tuple[str, ...]


Route = Literal["key", "partition", "time", "all", "one"]
"""Where a row goes: to the shard of its ``key`` (if that is NULL, to any), to that of its ``partition`` (if that is
NULL, all to one); without a key, to a shard by its ``time``, or to ``all`` shards; or every row to ``one`` shard."""


@dataclass(frozen=True)
class PortPlan:
    """One side of a join, up to the exchange.

    - ``columns``: columns of the input that go on as they are
    - ``computed``: columns that the join needs besides
    - ``predicates``: the side's own part of ON; rows for which it is not true arrive flagged in the column ``dead``
    - ``code``: the column that is sent through the exchange as the key's code; with ``hashed``, a hash of these key
      columns
    - ``lags``: the watermarked columns of a scan; a join's marks come as they are
    - ``route``: where its rows go, see `Route`; by ``times``, if not by key
    - ``shard_by``: the key columns whose hash decides about the shard, where the code does not
    - ``position``: the column that tells in which order the rows of a batch were delivered, if that matters
    """

    input: RelationPlan
    columns: tuple[str, ...]
    computed: tuple[Computed, ...] = ()
    predicates: tuple[Expr, ...] = ()
    dead: str | None = None
    code: str | None = None
    hashed: tuple[str, ...] = ()
    lags: tuple[Lag, ...] = ()
    route: Route = "key"
    times: tuple[str, ...] = ()
    shard_by: tuple[str, ...] = ()
    position: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that carry values of a row."""
        return (*self.columns, *(computed.name for computed in self.computed))


@dataclass(frozen=True)
class JoinPlan:
    """A join: its ports, the operator, what is left to Spark after it, and why it is done so.

    - ``columns``: the columns of its frame
    - ``after``: conditions that Spark applies to the pairs
    - ``pads``: per port, what its columns show where a row has no part of that port, by columns of the frame; none:
      NULL everywhere. Where it is not, the operator tells the missing port in the column `PADDED`
    """

    ports: tuple[PortPlan, ...]
    operator: JoinOperator
    columns: tuple[str, ...]
    after: tuple[Expr, ...]
    why: tuple[str, ...]
    analyzed: AnyJoin
    pads: tuple[Padding, ...] = ()

    @property
    def may_miss(self) -> tuple[bool, ...]:
        """Whether a row of the frame may have no part of a port."""
        if isinstance(self.analyzed, AnalyzedSyncJoin):
            return (False,) * len(self.ports)
        return (self.analyzed.kind in ("right", "full"), self.analyzed.kind in ("left", "full", "anti"))


RelationPlan = ScanPlan | JoinPlan


@dataclass(frozen=True)
class QueryPlan:
    """A whole query: the relation, what of WHERE is applied to it, and the columns of the result.

    ``ports_into``: the outputs that get the ports of a SYNC JOIN, each its own columns.
    """

    relation: RelationPlan
    where: tuple[Expr, ...]
    outputs: tuple[Output, ...]
    into: str | None = None
    ports_into: tuple[str, ...] = ()


def scan_plans(relation: RelationPlan) -> tuple[ScanPlan, ...]:
    """The scans of a plan from left to right."""
    if isinstance(relation, ScanPlan):
        return (relation,)
    return tuple(scan for port in relation.ports for scan in scan_plans(port.input))


def join_plans(relation: RelationPlan) -> tuple[JoinPlan, ...]:
    """The joins of a plan, innermost first."""
    if isinstance(relation, ScanPlan):
        return ()
    return (*(join for port in relation.ports for join in join_plans(port.input)), relation)
