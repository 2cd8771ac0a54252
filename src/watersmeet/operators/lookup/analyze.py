"""The lookup join: each row of a stream with what a table has for it at that moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from watersmeet.duration import HOUR
from watersmeet.errors import Refusal
from watersmeet.logical.expressions import Expr, conjuncts
from watersmeet.logical.nodes import LEFT_ONLY, Join, Relation, ResultKind, Scan
from watersmeet.logical.passes.conditions import check_table_sides, has_known_sources, names_of
from watersmeet.logical.passes.draft import Draft
from watersmeet.logical.passes.family import BuildResult, FamilyAnalysis
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.passes.settings import SettingSpec, choice, duration, number, parse_setting_duration
from watersmeet.logical.query import QueryWarning, rows_of_table
from watersmeet.logical.relation import (
    BY_TIME,
    AnalyzedRelation,
    AnalyzedScan,
    ConditionalJoin,
    StateBound,
    joins,
)
from watersmeet.logical.words import expression_in_words, kind_in_words, word

LateTable = Literal["reemit", "ignore"]
"""The policy when a table row arrives after a stream row was emitted without one: re-emit the stream row, or ignore it.
"""


@dataclass(frozen=True)
class AnalyzedLookupJoin(ConditionalJoin):
    """Each row of a stream with the rows that a table has for it at that moment (LN-11..LN-14).

    One side is a stream, the other a table; ``kind`` is inner, or the one that preserves the stream. The condition is
    split as in a `ConditionalJoin`.

    - ``late_table``: with ``reemit``, a padded stream row is emitted again when its table row arrives
    - ``retention``: for how many microseconds of wall clock such rows wait; None: as long as ``waiting`` allows
    - ``waiting``: how many of them wait at most, the oldest being dropped first; None: any number
    - ``load_first``: stream rows are held back until the table is caught up
    """

    family: ClassVar[str] = "lookup"

    table: Literal["left", "right"] = "right"
    late_table: LateTable = "reemit"
    retention: int | None = None
    waiting: int | None = None
    load_first: bool = False

    @property
    def stream(self) -> AnalyzedRelation:
        """The side whose rows look up."""
        return self.left if self.table == "right" else self.right

    @property
    def table_side(self) -> AnalyzedRelation:
        return self.right if self.table == "right" else self.left

    @property
    def passthrough_input(self) -> AnalyzedRelation | None:
        """The stream where the table never changes, so that Spark looks rows up by itself."""
        is_static = isinstance(self.table_side, AnalyzedScan) and self.table_side.source.is_static
        is_static = is_static and self.can_be_static(1 if self.table == "right" else 0)
        return self.stream if is_static else None

    @property
    def state_bounds(self) -> tuple[StateBound, ...]:
        """The table, and the rows that wait for one of its rows; nothing where Spark looks rows up."""
        if self.passthrough_input is not None:
            return ()
        waits = self.kind in ("left", "right") and self.late_table == "reemit"
        time = (BY_TIME,) if waits and self.retention is not None else ()
        most = (StateBound("limit", f"{self.waiting} rows that wait"),) if waits and self.waiting is not None else ()
        return (rows_of_table(self.table_side), *time, *most)

    @property
    def has_late_rows(self) -> bool:
        """Never: a table is taken as it is when a row comes."""
        return False

    @property
    def optional_time_sides(self) -> tuple[AnalyzedRelation, ...]:
        return (self.stream,)

    def can_be_static(self, port: int) -> bool:
        """The table may be one, except of SEMI and ANTI JOIN."""
        return self.inputs[port] is self.table_side and self.kind not in LEFT_ONLY

    def shows_times(self, port: int) -> bool:
        """Those of the stream; a table's rows have none."""
        return self.inputs[port] is self.stream


# Lookup joins: each row of a stream with what a table has for it, and what to write where sides do not go together.
#
# | left | right | kinds | WITHIN |
# |--------|-------|-------------------------------|---------|
# | stream | table | INNER, LEFT, LEFT SEMI and ANTI | refused |
# | table  | stream | RIGHT                        | refused |
#
# These are the joins between streams and tables that there are (LN-14).


def check_sides(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Iterator[Refusal]:
    """The refusals of a join of a stream with a table."""
    if not has_known_sources(left, right):
        return
    if join.kind in LEFT_ONLY and left.result == "table":
        yield _refuse_left_only(draft, join, left, right)
    elif right.result == "table" and join.kind in ("right", "full"):
        yield _preserves_table(draft, join, left, right, stream=left, table=right, instead="LEFT JOIN")
    elif left.result == "table" and join.kind in ("left", "full"):
        yield _preserves_table(draft, join, left, right, stream=right, table=left, instead="RIGHT JOIN")
    elif left.result == "table" and join.kind == "inner":
        yield _refuse_table_on_left(draft, join, left, right)
    yield from check_table_sides(draft, join, left, right)


def _preserves_table(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation,
    *, stream: AnalyzedRelation, table: AnalyzedRelation, instead: str,
) -> Refusal:  # fmt: skip
    stays, asks = draft.names_of(table.aliases), draft.names_of(stream.aliases)
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.span,
        **names_of(draft, join, left, right),
        reason=f"could never tell that a row of {stays} is unmatched, since a later row of {asks} may still match it",
        cause=f"shows unmatched rows of the table {stays}",
        hint=f"write `{instead}`, which shows every row of the stream {asks}.",
    )


def _refuse_table_on_left(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    table, stream = draft.names_of(left.aliases), draft.names_of(right.aliases)
    return draft.refusal(
        "INCOMPATIBLE_JOIN",
        join.span,
        **names_of(draft, join, left, right),
        reason="has its sides in the wrong order: the stream looks up the table",
        cause=f"the table {table} on the left, the stream {stream} on the right",
        hint=_swap_hint(join, table),
    )


def _swap_hint(join: Join, table: str) -> str:
    on = f"USING ({', '.join(word(name) for name in join.using)})" if join.using else ""
    if not on and join.on is not None:
        on = f"ON {expression_in_words(join.on)}"
    stream, looked_up = _side_sql(join.right), _side_sql(join.left)
    if stream is not None and looked_up is not None:
        return f"swap the sides: `{stream} JOIN {looked_up} {on}".rstrip() + "`."
    return f"make a view of {table} (`CREATE VIEW ...`), and write `{stream or '...'} JOIN` that view."


def _side_sql(side: Relation) -> str | None:
    """The SQL of a side; None for one without a name."""
    if not isinstance(side, Scan):
        return None
    if side.source.startswith("#"):
        return f"(...) AS {word(side.alias)}"
    return word(side.source) if side.alias == side.source else f"{word(side.source)} AS {word(side.alias)}"


def _refuse_left_only(draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation) -> Refusal:
    left_names, right_names = draft.names_of(left.aliases), draft.names_of(right.aliases)
    construct = (
        f"A {kind_in_words(join.kind)} JOIN of the {left.result} {left_names} with the {right.result} {right_names}"
    )
    refs = join.on.references if join.on is not None else ()
    column = next((word(ref.name) for ref in refs if ref.source in right.aliases), "id")
    rows = f"SELECT TABLE {column}, count(*) AS n FROM {right_names} GROUP BY {column}"
    view = f"CREATE VIEW {right_names}_seen AS {rows}"
    hint = f"make a table of {right_names} first, for example `{view}`, and join with that."
    return draft.refuse_unsupported(join.span, construct, hint)


LATE = "watersmeet.table.late"
RETENTION = "watersmeet.table.retention"
WAITING = "watersmeet.table.waiting"
LOAD = "watersmeet.table.load"

DEFAULT_RETENTION = HOUR
"""The time that a stream row waits for its table row by default: the state must stay bounded."""


class LookupAnalysis(FamilyAnalysis):
    """Plain joins of a stream with a table."""

    family = AnalyzedLookupJoin.family
    settings: ClassVar[Mapping[str, SettingSpec]] = {
        LATE: choice(LATE, ("reemit", "ignore"), "ignore"),
        RETENTION: duration(RETENTION, "1 hour"),
        WAITING: number(WAITING, 100000),
        LOAD: choice(LOAD, ("first", "together"), "first"),
    }

    def claims(self, join: Relation, kinds: tuple[ResultKind, ...]) -> bool:
        return isinstance(join, Join) and join.is_plain and set(kinds) == {"stream", "table"}

    def build(self, draft: Draft, join: Relation, inputs: tuple[AnalyzedRelation, ...]) -> BuildResult:
        assert isinstance(join, Join)
        left, right = inputs
        parts = tuple(part for part in conjuncts(join.on) if is_resolved(part))
        return _lookup(draft, join, left, right, parts), list(check_sides(draft, join, left, right))

    def comparison_scope(self, draft: Draft, join: ConditionalJoin) -> str | None:
        assert isinstance(join, AnalyzedLookupJoin)
        return f"row of the stream is compared with the whole table {draft.names_of(join.table_side.aliases)}"

    def warn(self, draft: Draft, relation: AnalyzedRelation) -> Iterator[QueryWarning]:
        """Rows that it shows once more, behind the watermark that a join above it goes by."""
        above = (join for join in joins(relation) if join.has_late_rows)
        for below in (join_below for join in above for side in join.inputs for join_below in joins(side)):
            if isinstance(below, AnalyzedLookupJoin) and below.late_table == "reemit":
                names = draft.names_of(below.aliases)
                message = (
                    f"A row of the join of {names} that is shown once more, when its table row has come, may be too "
                    f"late for the next join and is dropped there; `SET {LATE} = ignore` shows each row once."
                )
                yield QueryWarning(message, below.span)


@dataclass(frozen=True)
class _WaitSettings:
    """The settings for stream rows that were emitted without a table row."""

    late_table: LateTable
    retention: int | None = None
    waiting: int | None = None


def _lookup(
    draft: Draft, join: Join, left: AnalyzedRelation, right: AnalyzedRelation, parts: tuple[Expr, ...]
) -> AnalyzedLookupJoin:
    # Only padded rows are shown again (LN-13); a scalar subquery and PROCTIME() mean the table of that moment.
    is_once = join.kind in ("inner", *LEFT_ONLY) or join.membership is not None or join.at_processing_time
    wait = _WaitSettings("ignore") if is_once else _read_wait_settings(draft)
    return AnalyzedLookupJoin(
        left,
        right,
        join.kind,
        residual=parts,
        table="left" if left.result == "table" else "right",
        late_table=wait.late_table,
        retention=wait.retention,
        waiting=wait.waiting,
        load_first=draft.setting(LOAD, "together").lower() == "first",
        span=join.span,
    )


def _read_wait_settings(draft: Draft) -> _WaitSettings:
    if draft.setting(LATE, "reemit").lower() == "ignore":
        return _WaitSettings("ignore")
    retention, waiting = parse_setting_duration(draft.setting(RETENTION, "")), draft.setting(WAITING, "")
    rows = int(waiting) if waiting.isascii() and waiting.isdigit() else None
    return _WaitSettings("reemit", DEFAULT_RETENTION if retention is None and rows is None else retention, rows)


ANALYZE = LookupAnalysis()
