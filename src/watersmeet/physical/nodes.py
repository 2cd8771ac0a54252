"""The physical plan: which operator runs, on which columns, and why; and what the planner asks of a family.

Every frame behind a scan names its columns ``alias.column``. The frame of a port is a scan or a join, then the columns
that Spark computes for the operator (`Computed`), then the exchange by code, then the operator.

Spark's analyzer is the authority on types. Without a JVM only the declared types of plain columns are known, which is
enough to explain a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from watersmeet.catalog import Source
from watersmeet.logical.expressions import Expr
from watersmeet.logical.query import AnalyzedGroup, AnalyzedQuery, AnalyzedTop, Output
from watersmeet.logical.relation import AnalyzedJoin, AnalyzedScan, AnalyzedView, Padding
from watersmeet.logical.words import expression_in_words, is_unnamed, without_generated_names
from watersmeet.operators.core.operator import StreamOperator
from watersmeet.operators.core.routing import Route, SkewedKeys
from watersmeet.operators.core.watermarks import WatermarkLag
from watersmeet.schema import INTEGERS, normalise_type

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


Changes = Literal["upserts", "weights", "versions"]
"""The form in which the rows of a table travel: each with what it does to the row of its key, or with how often it
comes or goes, or as a version: an upsert or delete that a filter may drop like any other row.
"""


class PlanNode:
    """A node of a physical plan, and the one way to go through a plan: by what a node reads.

    ``walk`` and ``transform`` go from the sources to the result and from left to right, so joins come innermost first.
    """

    @property
    def children(self) -> tuple[RelationPlan, ...]:
        """The relations that the node reads, from left to right."""
        return ()

    def with_children(self, children: tuple[RelationPlan, ...]) -> RelationPlan:
        """The node over other relations, as many as it reads."""
        assert not children, f"a {type(self).__name__} reads no relation"
        return cast("RelationPlan", self)

    def transform(self, change: Callable[[RelationPlan], RelationPlan]) -> RelationPlan:
        """The plan with every node changed, each after those that it reads."""
        children = tuple(child.transform(change) for child in self.children)
        is_same = all(new is old for new, old in zip(children, self.children, strict=True))
        return change(cast("RelationPlan", self) if is_same else self.with_children(children))

    def walk(self) -> Iterator[RelationPlan]:
        """All nodes of the plan, each after those that it reads."""
        for child in self.children:
            yield from child.walk()
        yield cast("RelationPlan", self)

    @property
    def leaves(self) -> tuple[ScanPlan, ...]:
        """The scans of the plan, from left to right."""
        return tuple(leaf for child in self.children for leaf in child.leaves)

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns of the node's frame, in order."""
        raise NotImplementedError

    @property
    def origin(self) -> RelationPlan:
        """The node whose rows these are: views, laterals and static tables only filter, repeat and extend them."""
        return cast("RelationPlan", self)

    @property
    def scan(self) -> ScanPlan | None:
        """The node itself, if it is a scan."""
        return None

    @property
    def source_name(self) -> str | None:
        """The source whose rows the node brings, those of a union together; None: they are the rows of a join."""
        return None if self.origin is self else self.origin.source_name

    def with_some_column(self) -> RelationPlan:
        """The node with a column in its frame, for rows without columns could not be counted."""
        return cast("RelationPlan", self)


@dataclass(frozen=True)
class ScanPlan(PlanNode):
    """A source: which of its columns are read, and which of its rows; of a union, the sources it is made of.

    ``changes``: how the rows of a table travel; None: it is a stream. A row of an upserting table that a filter drops
    travels on as the delete of its key.
    """

    alias: str
    source: Source
    columns: tuple[str, ...]
    filters: tuple[Expr, ...] = ()
    parts: tuple[Source, ...] = ()
    changes: Changes | None = None

    @property
    def leaves(self) -> tuple[ScanPlan, ...]:
        """The scan itself."""
        return (self,)

    @property
    def scan(self) -> ScanPlan:
        """The scan itself."""
        return self

    def with_some_column(self) -> ScanPlan:
        """The scan, of whose source the first column is read if no other is."""
        return self if self.columns else replace(self, columns=(self.source.fields[0].name,))

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns that are read, as ``alias.column``."""
        return tuple(f"{self.alias}.{name}" for name in self.columns)

    @property
    def source_name(self) -> str:
        """The source, or the sources of a union."""
        return "+".join(part.name for part in self.parts) or self.source.name

    @property
    def keys(self) -> tuple[str, ...]:
        """The primary key of a table, as columns of its frame."""
        fields = (self.source.field(name) for name in self.source.primary_key)
        return tuple(f"{self.alias}.{field.name}" for field in fields if field is not None)


@dataclass(frozen=True)
class ViewPlan(PlanNode):
    """A query as an input: its relation, what of its WHERE is left, and the columns that are asked for.

    ``filters`` are conditions over its own columns; ``watermarks`` says what the watermarks of its joins are called
    behind it. ``late``: columns of the relation that go along under their own names, for late rows to show.
    """

    alias: str
    input: RelationPlan
    where: tuple[Expr, ...]
    outputs: tuple[Output, ...]
    filters: tuple[Expr, ...] = ()
    watermarks: tuple[tuple[str, str], ...] = ()
    late: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are asked for."""
        return tuple(f"{self.alias}.{output.name}" for output in self.outputs)

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns of its frame."""
        return (*self.columns, *self.late)

    @property
    def children(self) -> tuple[RelationPlan, ...]:
        """The relation that it reads."""
        return (self.input,)

    def with_children(self, children: tuple[RelationPlan, ...]) -> ViewPlan:
        """The same over another relation."""
        (below,) = children
        return replace(self, input=below)

    @property
    def origin(self) -> RelationPlan:
        """The node below whose rows these are."""
        return self.input.origin


@dataclass(frozen=True)
class UnionPlan(PlanNode):
    """The rows of several inputs as one: the columns of each, in the order of ``columns``, which they become.

    ``taken``: per input, the columns of its frame that are taken.
    """

    alias: str
    inputs: tuple[RelationPlan, ...]
    taken: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    filters: tuple[Expr, ...] = ()

    @property
    def children(self) -> tuple[RelationPlan, ...]:
        """The inputs."""
        return self.inputs

    def with_children(self, children: tuple[RelationPlan, ...]) -> UnionPlan:
        """The union of other inputs."""
        assert len(children) == len(self.inputs), "a union keeps the number of its inputs"
        return replace(self, inputs=children)

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns that those of the inputs become."""
        return self.columns

    @property
    def source_name(self) -> str | None:
        """The sources of all inputs, if no join is among them."""
        names = [child.source_name for child in self.inputs]
        return None if None in names else "+".join(name for name in names if name is not None)


@dataclass(frozen=True)
class LateralPlan(PlanNode):
    """Each row of the input once with every element of an array, which is the column ``alias.alias``."""

    alias: str
    input: RelationPlan
    array: Expr
    filters: tuple[Expr, ...] = ()
    is_shown: bool = True

    @property
    def children(self) -> tuple[RelationPlan, ...]:
        """The relation that it reads."""
        return (self.input,)

    def with_children(self, children: tuple[RelationPlan, ...]) -> LateralPlan:
        """The same over another relation."""
        (below,) = children
        return replace(self, input=below)

    @property
    def origin(self) -> RelationPlan:
        """The node below whose rows these are."""
        return self.input.origin

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns of the input, and the elements where they are asked for."""
        own = (f"{self.alias}.{self.alias}",) if self.is_shown else ()
        return (*self.input.frame_columns, *own)


@dataclass(frozen=True)
class PortPlan:
    """One side of a join, up to the exchange.

    The planner says what it knows of the input, and the family of the join adds what it sends through the exchange.

    - ``columns``: columns of the input that go on as they are
    - ``computed``: columns that the join needs besides
    - ``predicates``: the side's own part of ON; rows for which it is not true arrive flagged in the column ``dead``
    - ``code``: the column that is sent through the exchange as the key's code; with ``hashed``, a hash of these key
      columns
    - ``lags``: the watermarked columns of a scan; a join's marks come as they are
    - ``route``: where its rows go, see `Route`; by ``times``, if not by key
    - ``shard_by``: the key columns whose hash decides about the shard, where the code does not
    - ``position``: the column that tells in which order the rows of a batch were delivered, if that matters
    - ``is_chained``: its rows come from a join that runs in the same operator, and go through no exchange (see
      `watersmeet.physical.chaining`); ``unchained_reason``: why those of a join go through the exchange all the same
    - ``aliases``: the aliases that the join may name of the side
    - ``needed``: the columns that the result or a later join asks for
    - ``idle``: after how long its watermarked columns count as idle, in microseconds
    - ``late``: the columns that its late rows show
    - ``skew``: keys whose rows are in all shards: spread over them, or copied to them
    """

    input: RelationPlan
    columns: tuple[str, ...]
    computed: tuple[Computed, ...] = ()
    predicates: tuple[Expr, ...] = ()
    dead: str | None = None
    code: str | None = None
    hashed: tuple[str, ...] = ()
    lags: tuple[WatermarkLag, ...] = ()
    route: Route = "key"
    times: tuple[str, ...] = ()
    shard_by: tuple[str, ...] = ()
    position: str | None = None
    is_chained: bool = False
    unchained_reason: str = ""
    aliases: frozenset[str] = frozenset()
    needed: tuple[str, ...] = ()
    idle: tuple[tuple[str, int], ...] = ()
    late: tuple[str, ...] = ()
    skew: SkewedKeys | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that carry values of a row."""
        return (*self.columns, *(computed.name for computed in self.computed))


@dataclass(frozen=True)
class Derived:
    """A column of a join's frame that tells what the operator tells in ``of``.

    With ``port`` it is a struct of ``side``, the one of ``sides`` whose number the operator tells in the column of that
    name, and of what is told, ``at``; NULL where there is no number.
    """

    name: str
    of: str
    port: str | None = None
    sides: tuple[str, ...] = ()


@dataclass(frozen=True)
class JoinPlan(PlanNode):
    """A join: its ports, the operator, what is left to Spark after it, and why it is done so.

    - ``columns``: the columns of its frame
    - ``post_filters``: conditions that Spark applies to the pairs after the join
    - ``pads``: per port, what its columns show where a row has no part of that port, by columns of the frame; none:
      NULL everywhere. Where it is not, the operator tells the missing port in the column `PADDED`
    - ``extra_types``: the types of columns that the operator makes and no port has, as DDL
    - ``derived``: columns that stand in the frame in place of such
    - ``name_prefix``: what people call it, before the names of its inputs; nothing for a join
    - ``identity``: what its state must have been written by, to be continued (see `watersmeet.physical.identity`)
    """

    ports: tuple[PortPlan, ...]
    operator: StreamOperator
    columns: tuple[str, ...]
    post_filters: tuple[Expr, ...]
    why: tuple[str, ...]
    analyzed: AnalyzedJoin | AnalyzedGroup | AnalyzedTop | AnalyzedQuery | AnalyzedScan
    pads: tuple[Padding, ...] = ()
    extra_types: tuple[tuple[str, str], ...] = ()
    derived: tuple[Derived, ...] = ()
    name_prefix: str = ""
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def children(self) -> tuple[RelationPlan, ...]:
        """The inputs of its ports."""
        return tuple(port.input for port in self.ports)

    def with_children(self, children: tuple[RelationPlan, ...]) -> JoinPlan:
        """The join with other inputs at its ports."""
        ports = zip(self.ports, children, strict=True)
        return replace(self, ports=tuple(replace(port, input=child) for port, child in ports))

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns of its frame."""
        return self.columns

    @property
    def may_miss(self) -> tuple[bool, ...]:
        """Whether a row of the frame may have no part of a port."""
        join = self.analyzed
        return tuple(isinstance(join, AnalyzedJoin) and join.pads(n) is not None for n in range(len(self.ports)))

    @property
    def has_side_outputs(self) -> tuple[bool, ...]:
        """For each port, whether its unmatched rows go to a side output."""
        join = self.analyzed
        return tuple(isinstance(join, AnalyzedJoin) and join.has_side_output(n) for n in range(len(self.ports)))


@dataclass(frozen=True)
class StaticJoinPlan(PlanNode):
    """A join with a table that never changes, which Spark does by itself and which keeps nothing.

    ``condition``: all of ON; ``is_inner``: stream rows without a match are dropped; ``columns``: those of its frame.
    """

    stream: RelationPlan
    table: RelationPlan
    condition: tuple[Expr, ...]
    is_inner: bool
    columns: tuple[str, ...]
    why: tuple[str, ...]
    analyzed: AnalyzedJoin

    @property
    def children(self) -> tuple[RelationPlan, ...]:
        """The stream and the table."""
        return (self.stream, self.table)

    def with_children(self, children: tuple[RelationPlan, ...]) -> StaticJoinPlan:
        """The join of another stream with another table."""
        stream, table = children
        return replace(self, stream=stream, table=table)

    @property
    def frame_columns(self) -> tuple[str, ...]:
        """The columns of its frame."""
        return self.columns

    @property
    def origin(self) -> RelationPlan:
        """The node below whose rows the stream has."""
        return self.stream.origin


RelationPlan = ScanPlan | ViewPlan | UnionPlan | LateralPlan | StaticJoinPlan | JoinPlan
LeafPlan = ScanPlan | ViewPlan | UnionPlan
"""Whatever has an alias of its own."""


@dataclass(frozen=True)
class QueryPlan:
    """A whole query: the relation, what of WHERE is applied to it, and the columns of the result.

    ``ports_into``: the outputs that get the ports of the join, each its own columns. ``is_changelog``: the rows of
    the relation carry weights, and the result shows what comes and what goes.
    """

    relation: RelationPlan
    where: tuple[Expr, ...]
    outputs: tuple[Output, ...]
    into: str | None = None
    ports_into: tuple[str, ...] = ()
    is_changelog: bool = False


def read_sources(relation: RelationPlan) -> list[Source]:
    """The sources that a plan reads, those of unions one by one."""
    return [source for scan in relation.leaves for source in (scan.parts or (scan.source,))]


def input_times(plan: QueryPlan) -> tuple[str, ...]:
    """The watermarked columns of a query: those of its sources, and those to which it gives a watermark itself."""
    lags = (lag.source for join in join_plans(plan.relation) for port in join.ports for lag in port.lags)
    own = (f"{s.alias}.{w.column}" for s in plan.relation.leaves for w in s.source.watermarks)
    return tuple(dict.fromkeys((*own, *lags)))


def view_plans(relation: RelationPlan) -> tuple[ViewPlan, ...]:
    """The views of a plan, innermost first."""
    return tuple(node for node in relation.walk() if isinstance(node, ViewPlan))


def leaf_plans(relation: RelationPlan) -> tuple[LeafPlan, ...]:
    """Whatever has an alias of its own in a plan, from left to right, without what is inside views."""
    if isinstance(relation, LeafPlan):
        return (relation,)
    return tuple(leaf for child in relation.children for leaf in leaf_plans(child))


def join_plans(relation: RelationPlan) -> tuple[JoinPlan, ...]:
    """The joins of a plan, innermost first."""
    return tuple(node for node in relation.walk() if isinstance(node, JoinPlan))


def join_name(plan: JoinPlan) -> str:
    """The display name of a join: its sides."""
    names = ["+".join(_user_aliases(port.input)) for port in plan.ports]
    sides = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    return without_generated_names(plan.name_prefix + sides)


def internal_columns(plan: QueryPlan) -> dict[str, str]:
    """The columns of views that only the plan names, such as what rows are ordered by, with what they stand for."""
    return {
        f"{view.alias}.{output.name}": expression_in_words(output.expr)
        for view in view_plans(plan.relation)
        for output in view.outputs
        if is_unnamed(output.name)
    }


def _user_aliases(plan: RelationPlan) -> Iterator[str]:
    """The aliases that the user wrote; a subquery has a generated alias, so those inside it are used."""
    for leaf in leaf_plans(plan):
        yield from (
            _user_aliases(leaf.input) if isinstance(leaf, ViewPlan) and leaf.alias.startswith("#") else (leaf.alias,)
        )


SHARDS = (
    "one per core when the query first runs, or as many as spark.sql.shuffle.partitions says",
    "rows are repartitioned before they are kept, because Spark's sources do not say which partition has a key",
)
"""The number of shards, and why nothing goes without a repartition (LN-16), however the sources are partitioned."""


class Types(Protocol):
    """Tells types, as normalised DDL text; None where it cannot."""

    def type_of(self, expr: Expr) -> str | None:
        """The type of an expression over one side."""
        ...

    def common_type(self, left: Expr, right: Expr) -> str | None:
        """The type in which the two compare."""
        ...


class DeclaredTypes:
    """The types of plain columns, as the sources declare them."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.sources = sources

    def type_of(self, expr: Expr) -> str | None:
        """The declared type of a plain column."""
        if expr.op != "column" or expr.refs[0].path:
            return None
        ref = expr.refs[0]
        source = self.sources.get(ref.source)
        field = source.field(ref.name) if source is not None else None
        return normalise_type(field.type) if field is not None and field.type else None

    def common_type(self, left: Expr, right: Expr) -> str | None:
        """The wider of two integer types, or the type that both have."""
        first, second = self.type_of(left), self.type_of(right)
        if first == second:
            return first
        if first in INTEGERS and second in INTEGERS:
            return max(first, second, key=INTEGERS.index)
        return None


ChangelogMode = Literal["versions", "upserts", "weights"]
"""The form in which the rows of a table reach a stage: as versions; with what each does to its key; or with weights."""

J = TypeVar("J", bound=AnalyzedJoin)


def _with_weights(join: AnalyzedJoin, port: int) -> ChangelogMode:
    return "weights"


@dataclass(frozen=True)
class JoinPlanner(Generic[J]):
    """The planner of a family of joins.

    - ``plan``: the plan of a join over its ports, of which only the inputs are planned yet
    - ``changelog_mode``: how the rows of a table may reach a port of a join
    - ``by_spark``: why Spark does a join by itself where the rows of one input pass one by one
    """

    plan: Callable[[J, tuple[PortPlan, ...], Types], JoinPlan]
    changelog_mode: Callable[[J, int], ChangelogMode] = _with_weights
    by_spark: str = ""


@dataclass(frozen=True)
class StagePlanner:
    """The planner of what keeps rows behind the relation of a query, and makes its result a table.

    - ``applies``: whether a query has it
    - ``rows``: what it reads of the query, as a view, and how the columns that must be shown are made of its result
    - ``plan``: its plan over the rows of that view
    - ``table``: the plan of a source whose upserts it makes changes, if it is what does that
    - ``shows_late``: late rows of a stream may go to a side output
    """

    applies: Callable[[AnalyzedQuery], bool]
    rows: Callable[[AnalyzedQuery, tuple[Output, ...]], tuple[AnalyzedView, tuple[Output, ...]]]
    plan: Callable[[AnalyzedQuery, AnalyzedView, ViewPlan, Types], JoinPlan]
    table: Callable[[AnalyzedScan, ScanPlan, Types], JoinPlan] | None = None
    shows_late: bool = False


class Plannable(Protocol):
    """A family, as far as the planner knows it."""

    @property
    def plan(self) -> JoinPlanner[Any] | StagePlanner:
        """Its planner."""
        ...


Families = Mapping[str, Plannable]
"""The families by name."""
