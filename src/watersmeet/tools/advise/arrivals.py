"""Rows of a source as they arrived, and findings about one side: disorder, the cost of each lag, pauses, skewed keys.

A row is late if its time is below the watermark of its side, which is the latest time of earlier batches less the lag.
The batches are not known, so every row counts as a separate batch: a run has at most as many late rows as reported
here. A pause is measured in event time: it is one by the clock where rows arrive as they happen.

A round duration has few digits and is never less than what is needed.

The rows are read with Spark and looked at without it. Files arrive in the order in which Spark takes them, by the time
of their last change; rows within a file, and records within a partition of a topic, in their order. Rows of other
sources have the order of delivery.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.duration import DAY, HOUR, MILLISECOND, MINUTE, SECOND, format_duration
from watersmeet.errors import refuse
from watersmeet.locations import location_of
from watersmeet.logical.expressions import Expr, conjuncts
from watersmeet.logical.nodes import Join, JoinKind, Query, Relation, Script, Union, leaves, scans
from watersmeet.logical.words import expression_in_words
from watersmeet.operators.core.python_values import python_value
from watersmeet.schema import parse_type_name, quote
from watersmeet.spark.connectors.malformed import readable_rows
from watersmeet.spark.connectors.reading import read_source
from watersmeet.spark.exchange.packing import PARTITION
from watersmeet.spark.private.introspection import suppress_logs

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NO_CODE = -1
"""The code of a row that matches nothing: a part of its key is NULL."""


@dataclass(frozen=True)
class SampledRows:
    """Rows in the order in which they arrived.

    - ``source``: their declaration
    - ``order``: how that order is known, in words
    - ``partition``: the partition number of each row, where partitions have separate watermarks
    - ``is_all``: whether these are all rows; else the first of them
    """

    source: Source
    rows: pa.Table
    order: str = "the order in which they were given"
    partition: Ints | None = None
    is_all: bool = True

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.source.name

    def column(self, name: str) -> pa.Array:
        """A column by its name, whatever the case, as one array."""
        own_name = next(own for own in self.rows.column_names if own.lower() == name.lower())
        return pa.chunked_array(self.rows.column(own_name)).combine_chunks()

    @property
    def column_bytes(self) -> dict[str, float]:
        """The bytes that the values of each column take on average, as Arrow has them."""
        rows = max(1, self.rows.num_rows)
        return {name: round(self.rows.column(name).nbytes / rows, 2) for name in self.rows.column_names}


def numbers_of(times: pa.Array) -> tuple[Ints, Bools]:
    """Event times as whole numbers, microseconds of moments and days; and which of them are there.

    >>> numbers_of(pa.array([3, None]))
    (array([3, 0]), array([ True, False]))
    """
    kind = times.type
    if pa.types.is_date(kind):
        times = times.cast(pa.timestamp("us"))
    elif pa.types.is_timestamp(kind):
        times = times.cast(pa.timestamp("us", kind.tz))
    is_there = np.asarray(times.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return np.asarray(times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64), is_there


def codes_of(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> tuple[Ints, Ints]:
    """A number per row, equal where the keys are; `NO_CODE` where a part of a key is NULL."""
    codes = [np.zeros(len(side[0]), np.int64) for side in (left, right)]
    for mine, other in zip(left, right, strict=True):
        encoded = _encode(mine, other)
        split = len(mine)
        size = int(encoded.max(initial=0)) + 1
        for number, part in enumerate((encoded[:split], encoded[split:])):
            is_dead = (part == NO_CODE) | (codes[number] == NO_CODE)
            codes[number] = np.where(is_dead, NO_CODE, codes[number] * size + part)
        # Made dense again, so that the product of many parts does not grow beyond a number.
        dense = np.unique(np.concatenate(codes), return_inverse=True)[1] - int(any((c == NO_CODE).any() for c in codes))
        codes = [dense[:split].astype(np.int64), dense[split:].astype(np.int64)]
    return codes[0], codes[1]


def _encode(left: pa.Array, right: pa.Array) -> Ints:
    kind = common_type(left.type, right.type)
    both: Any = pa.chunked_array([left.cast(kind), right.cast(kind)]).combine_chunks()
    indices = pc.dictionary_encode(both).indices.fill_null(NO_CODE)
    return np.asarray(indices.to_numpy(zero_copy_only=False), np.int64)


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which values of both can be compared exactly; None: they do not fit, or make no sense as keys.

    >>> common_type(pa.int32(), pa.int64()), common_type(pa.string(), pa.int64())
    (DataType(int64), None)
    """
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return pa.int64()
    if any(all(is_text(kind) for kind in (left, right)) for is_text in (_is_text, pa.types.is_binary)):
        return pa.string() if _is_text(left) else pa.binary()
    is_plain = pa.types.is_decimal(left) or pa.types.is_date(left) or pa.types.is_timestamp(left)
    return left if left == right and is_plain else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


Unit = Literal["time", "day", "number"]
"""The unit of event times: moments, in microseconds; whole days; or numbers."""

_UNITS = ((DAY, "DAYS"), (HOUR, "HOURS"), (MINUTE, "MINUTES"), (SECOND, "SECONDS"), (MILLISECOND, "MILLISECONDS"))
_STEPS = 20
"""Rounding adds at most one part in this many, except to lengths below this many of the smallest unit."""


def round_up(value: int, unit: Unit = "time") -> int:
    """The next length that can be said in few digits.

    >>> [round_up(seconds * SECOND) // SECOND for seconds in (0, 61, 3601, 100_000)]
    [0, 61, 3660, 100800]
    >>> round_up(1234, "number"), round_up(30 * HOUR, "day") // DAY
    (1250, 2)
    """
    if value <= 0:
        return 0
    size = DAY if unit == "day" else 1
    if unit == "time":
        size = next((size for size, _ in _UNITS if value >= _STEPS * size), 1)
    count = -(-value // size)
    # Of large counts the leading digits are enough.
    step = max(1, 5 * 10 ** (int(math.log10(count)) - 2)) if count >= 100 else 1
    return -(-count // step) * step * size


def interval(value: int, unit: Unit = "time") -> str:
    """A length as SQL has it.

    >>> interval(3720 * SECOND), interval(40, "number")
    ('INTERVAL 62 MINUTES', '40')
    """
    if unit == "number":
        return str(value)
    size, named = next(((size, named) for size, named in _UNITS if value and value % size == 0), (1, "MICROSECONDS"))
    return f"INTERVAL {value // size} {named}" if value else f"INTERVAL 0 {'DAYS' if unit == 'day' else 'SECONDS'}"


def format_length(value: float, unit: Unit = "time") -> str:
    """A length as people read it; of long ones only what matters.

    >>> format_length(3_723_456_789), format_length(5, "number")
    ('1 h 2 min', '5')
    """
    whole = round(value)
    if unit == "number":
        return f"{whole:,}"
    sizes = (DAY, HOUR, MINUTE, SECOND, MILLISECOND, 1)
    size = next((size for size in sizes if abs(whole) >= size), 1)
    finest = sizes[min(len(sizes) - 1, sizes.index(size) + 1)]
    return format_duration(round(whole / finest) * finest)


DELETES = ("-", "d", "delete", "D")
CHANGE = "_change"


@dataclass(frozen=True)
class TableAdvice:
    """A table: its rows, its keys, how many rows replace an earlier one, how many delete one."""

    arrivals: SampledRows
    rows: int
    keys: int
    replaced: int
    deleted: int

    @property
    def is_static(self) -> bool:
        """Whether no row in the sample was replaced or deleted."""
        return self.rows > 0 and not self.replaced and not self.deleted


def advise_table(arrivals: SampledRows) -> TableAdvice | None:
    """Whether a table with a primary key ever changes; None if it has no key, or is read once as it is."""
    source = arrivals.source
    if source.kind != "table" or not source.primary_key or source.lowercase_options.get("static", "").lower() == "true":
        return None
    columns = [arrivals.column(name) for name in source.primary_key]
    codes, _ = codes_of(columns, columns)
    present = codes[codes != NO_CODE]
    keys = len(set(present.tolist()))
    deleted = 0
    names = {name.lower(): name for name in arrivals.rows.column_names}
    if CHANGE in names:
        change = arrivals.column(CHANGE)
        deleted = int(pc.sum(pc.is_in(change, value_set=pa.array(DELETES))).as_py() or 0)
    return TableAdvice(arrivals, len(codes), keys, len(present) - keys, deleted)


@dataclass(frozen=True)
class JoinPair:
    """Two sources that are joined, under their aliases; ``keys`` are the columns that must be equal.

    ``unread``: equalities of other things than columns, which are not looked at.
    """

    left: Source
    right: Source
    aliases: tuple[str, str]
    keys: tuple[tuple[str, str], ...] = ()
    kind: JoinKind = "inner"
    unread: tuple[str, ...] = ()

    @property
    def is_of_streams(self) -> bool:
        """Whether both sides are streams, which are joined within time bounds."""
        return self.left.kind == "stream" and self.right.kind == "stream"


def join_pairs(script: Script) -> tuple[JoinPair, ...]:
    """The pairs of sources that queries join; of a script that joins nothing yet, all pairs of its streams."""
    sources_by_name = {source.name.lower(): source for source in script.sources}
    candidates = [pair for query in _queries(script) for pair in _pairs_in(query.relation, sources_by_name)]
    if not any(len(leaves(query.relation)) > 1 for query in _queries(script)):
        streams = [source for source in script.sources if source.kind == "stream"]
        pairs = ((a, b) for n, a in enumerate(streams) for b in streams[n + 1 :])
        return tuple(JoinPair(a, b, (a.name, b.name)) for a, b in pairs)
    return tuple({(pair.left.name, pair.right.name, pair.keys, pair.kind): pair for pair in candidates}.values())


def skip_notes(script: Script) -> tuple[str, ...]:
    """Describe what is skipped: views and unions that queries join, and joins without time bounds."""
    source_names = {source.name.lower() for source in script.sources}
    relations = [query.relation for query in _queries(script)]
    unions = [
        leaf.alias
        for relation in relations
        for join in _joins(relation)
        for leaf in leaves(join)
        if isinstance(leaf, Union)
    ]
    names = (scan.source for relation in relations for join in _joins(relation) for scan in scans(join))
    views = [
        f"{name} is a view: only joins of sources are analyzed." for name in names if name.lower() not in source_names
    ]
    views += [f"{name} is a union: only joins of single sources are analyzed." for name in unions]
    others = (scans(relation) for relation in relations if len(leaves(relation)) > 1 and not [*_joins(relation)])
    kinds = [
        f"The join of {' and '.join(s.source for s in sources)} has no time bounds to propose." for sources in others
    ]
    return tuple(dict.fromkeys([*views, *kinds]))


def _queries(script: Script) -> Iterator[Query]:
    waiting = [*script.queries, *(view.query for view in script.views)]
    while waiting:
        query = waiting.pop(0)
        waiting += [view.query for view in query.views]
        yield query


def _joins(relation: Relation) -> Iterator[Join]:
    """The joins that may have time bounds; sources with clauses of a family have none."""
    if isinstance(relation, Join) and relation.is_plain:
        yield relation
    for side in relation.inputs:
        yield from _joins(side)


def _pairs_in(relation: Relation, sources_by_name: dict[str, Source]) -> Iterator[JoinPair]:
    for join in _joins(relation):
        sides = [_sources(side, sources_by_name) for side in (join.left, join.right)]
        keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for name in join.using:
            owners = [_owner((name,), side) for side in sides]
            if owners[0] is not None and owners[1] is not None:
                keys.setdefault((owners[0][0], owners[1][0]), []).append((name, name))
        parts = [part for part in conjuncts(join.on) if part.op == "="]
        pairs = [_equality(part, sides) for part in parts]
        unread = tuple(expression_in_words(part) for part, pair in zip(parts, pairs, strict=True) if pair is None)
        for (mine, left), (other, right) in (pair for pair in pairs if pair is not None):
            keys.setdefault((mine, other), []).append((left, right))
        if not keys and all(len(side) == 1 for side in sides):
            keys = {(next(iter(sides[0])), next(iter(sides[1]))): []}
        for (mine, other), columns in keys.items():
            yield JoinPair(sides[0][mine], sides[1][other], (mine, other), tuple(columns), join.kind, unread)


def _sources(relation: Relation, sources_by_name: dict[str, Source]) -> dict[str, Source]:
    """The sources of a side by alias, without views."""
    plain_scans = (leaf for leaf in leaves(relation) if not isinstance(leaf, Union))
    return {
        scan.alias: sources_by_name[scan.source.lower()]
        for scan in plain_scans
        if scan.source.lower() in sources_by_name
    }


def _equality(part: Expr, sides: list[dict[str, Source]]) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """A column of the left side and one of the right, if that is what a part compares."""
    if any(arg.op != "column" or not arg.refs for arg in part.args):
        return None
    first, second = (arg.refs[0].parts for arg in part.args)
    for mine, other in ((first, second), (second, first)):
        left, right = _owner(mine, sides[0]), _owner(other, sides[1])
        if left is not None and right is not None:
            return left, right
    return None


def _owner(parts: tuple[str, ...], side: dict[str, Source]) -> tuple[str, str] | None:
    """The alias and the column that a name means on a side; None: it is not of that side, or inside a column."""
    for alias, source in side.items():
        name = parts[-1] if len(parts) == 1 or (len(parts) == 2 and parts[0].lower() == alias.lower()) else ""
        field = source.field(name) if name else None
        if field is not None:
            return alias, field.name
    return None


SHARES = (0.9, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Disorder:
    """The lag of each row behind the latest before it, sorted: of a row that is the latest, 0."""

    behind: Ints

    def late(self, lag: int) -> float:
        """The share of rows that are late with a lag."""
        return 1 - float(np.searchsorted(self.behind, lag, "right")) / max(1, len(self.behind))

    @property
    def is_ordered(self) -> bool:
        """Whether no row is behind another that came before it."""
        return not len(self.behind) or not int(self.behind[-1])


@dataclass(frozen=True)
class LagCost:
    """A lag, the share of rows that are late with it, and how much later unmatched rows are emitted."""

    lag: int
    late: float

    @property
    def delay(self) -> int:
        """Padded rows wait for the other side's watermark, which is behind by the lag."""
        return self.lag


def disorder(times: Ints, is_there: Bools, partition: Ints | None = None) -> Disorder:
    """The disorder of rows in the order in which they arrived; with partitions, that of each in itself.

    >>> disorder(np.array([10, 30, 20, 40]), np.ones(4, bool)).behind
    array([ 0,  0,  0, 10])
    """
    present = times[is_there]
    if partition is None:
        return Disorder(np.sort(np.maximum.accumulate(present) - present))
    of = partition[is_there]
    parts = [present[of == number] for number in np.unique(of)]
    delays = [np.maximum.accumulate(part) - part for part in parts]
    return Disorder(np.sort(np.concatenate(delays)) if delays else present)


def lags_of(measured: Disorder, unit: Unit = "time") -> tuple[LagCost, ...]:
    """The lags that let 90, 99, 99.9 and all of 100 rows be in time, in few digits; equal ones once."""
    behind = measured.behind
    need = [behind[max(0, int(np.ceil(share * len(behind))) - 1)] for share in SHARES] if len(behind) else [0]
    lags = dict.fromkeys([0, *(round_up(int(lag), unit) for lag in need)])
    return tuple(LagCost(lag, measured.late(lag)) for lag in lags)


TIMES_USUAL = 10
"""A pause is so many times as long as nearly all gaps between rows."""
OTHERS = 10
"""In a pause the other side has at least so many rows."""
ABOVE = 3
"""IDLE AFTER is this many times the longest gap that is not a pause."""


@dataclass(frozen=True)
class Pauses:
    """The pauses of a side: how many, the longest, how many rows of the other side come in it at most.

    ``idle_after``: a duration that the gaps between rows do not reach, in microseconds.
    """

    count: int
    longest: int
    waiting: int
    idle_after: int


def pauses(times: Ints, others: Ints) -> Pauses | None:
    """The pauses of a side with those times next to another; None if it has none, or too few rows.

    Silence at the end is not a pause: the side may have ended.
    """
    own, other = np.sort(times), np.sort(others)
    if len(own) < 100 or not len(other):
        return None
    gaps = np.diff(own)
    usual = TIMES_USUAL * max(1, int(np.quantile(gaps, 0.99)))
    meanwhile = np.searchsorted(other, own[1:], "left") - np.searchsorted(other, own[:-1], "right")
    is_pause = (gaps > usual) & (meanwhile >= OTHERS)
    if not is_pause.any():
        return None
    longest = int(gaps[is_pause].max())
    normal = int(gaps[~is_pause].max(initial=0))
    idle_after = min(round_up(max(SECOND, ABOVE * normal)), max(SECOND, longest))
    return Pauses(int(is_pause.sum()), longest, int(meanwhile[is_pause].max()), idle_after)


SHOWN = 5
HEAVY = 0.05
"""From this share of all rows on a key is worth a word: it takes a core of twenty for itself."""


@dataclass(frozen=True)
class Skew:
    """The heaviest keys with their shares of all rows, how many keys there are, and the share of rows without one."""

    heaviest: tuple[tuple[str, float], ...]
    keys: int
    nulls: float

    @property
    def largest(self) -> float:
        """The share of the heaviest key."""
        return self.heaviest[0][1] if self.heaviest else 0.0

    @property
    def most_cores(self) -> int | None:
        """More cores than this are of no use, for one key is in one shard; None: no key is that heavy."""
        return max(1, int(1 / self.largest)) if self.largest >= HEAVY and self.keys > 1 else None


def skew(column: pa.Array) -> Skew:
    """The distribution of the rows over the values of a column.

    >>> found = skew(pa.array(["a"] * 8 + ["b", None]))
    >>> found.heaviest[0], found.keys, found.nulls, found.most_cores
    (('a', 0.8), 2, 0.1, 1)
    """
    counted = pc.value_counts(column.drop_null())
    counts = np.asarray(counted.field("counts").to_numpy(zero_copy_only=False), np.int64)
    first = np.argsort(-counts, kind="stable")[:SHOWN]
    rows = max(1, len(column))
    values = [str(python_value(counted.field("values")[int(place)])) for place in first]
    shares = [float(counts[place]) / rows for place in first]
    return Skew(tuple(zip(values, shares, strict=True)), len(counts), column.null_count / rows)


_CHANGED, _FILE, _START, _PLACE = "#changed", "#file", "#start", "#place"
_FROM_THE_BEGINNING = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options of where a stream begins; a sample reads from the beginning."""


def sample_source(spark: SparkSession, script: Script, source: Source, limit: int) -> SampledRows:
    """The first rows of a declared source, without malformed ones."""
    options = {name: value for name, value in source.options.items() if name.lower() not in _FROM_THE_BEGINNING}
    return sample_frame(read_source(spark, script, replace(source, options=options), "all now"), source, limit)


def sample_frame(frame: DataFrame, source: Source, limit: int) -> SampledRows:
    """The first rows of a DataFrame; of a stream, the rows that exist now."""
    has_partitions = PARTITION in frame.columns
    by_file = None if has_partitions else _by_file(frame)
    rows_in_order = by_file if by_file is not None else frame
    if not frame.isStreaming:
        rows_in_order = rows_in_order.withColumn(_PLACE, F.monotonically_increasing_id())
    rows_in_order = readable_rows(rows_in_order)
    own = [name for name in frame.columns if name in rows_in_order.columns and _is_plain(rows_in_order, name)]
    further = [name for name in (PARTITION, _CHANGED, _FILE, _START, _PLACE) if name in rows_in_order.columns]
    chosen = rows_in_order.select(*(F.col(quote(name)) for name in dict.fromkeys([*own, *further])))
    order = [quote(name) for name in further]
    rows = _drain_stream(chosen, limit + 1, source.name) if frame.isStreaming else _first(chosen, order, limit + 1)
    is_all = rows.num_rows <= limit
    if frame.isStreaming and by_file is not None:
        rows = rows.sort_by([(name, "ascending") for name in further])
    rows = rows.slice(0, limit)
    shown = rows.select([name for name in own if name not in further])
    said = "the order of their files" if by_file is not None else "the order of delivery"
    said = "the order of their partitions, each by itself" if has_partitions else said
    return SampledRows(source, shown, said, _partition_numbers(rows) if has_partitions else None, is_all)


def _by_file(frame: DataFrame) -> DataFrame | None:
    """The frame with the file that each row is of; None: it does not come from files as they are."""

    def metadata(name: str) -> Column:
        return frame.metadataColumn("_metadata").getField(name)

    columns = {_CHANGED: "file_modification_time", _FILE: "file_path", _START: "file_block_start"}
    try:
        with suppress_logs():
            with_files = frame.select("*", *(metadata(name).alias(ours) for ours, name in columns.items()))
            _ = with_files.schema
    except PySparkException:
        return None
    return with_files


def _first(frame: DataFrame, order: list[str], limit: int) -> pa.Table:
    return frame.orderBy(*order).limit(limit).toArrow()


def _drain_stream(frame: DataFrame, limit: int, name: str) -> pa.Table:
    """The current rows of a stream, through a query that ends by itself."""
    spark = frame.sparkSession
    view = f"watersmeet_{uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="watersmeet-sample-", ignore_cleanup_errors=True) as checkpoint:
        writer = frame.limit(limit).writeStream.format("memory").queryName(view).outputMode("append")
        try:
            query = writer.option("checkpointLocation", location_of(checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination()
            return spark.table(view).toArrow()
        except PySparkException as error:
            raise _unread(name, error) from error
        finally:
            spark.catalog.dropTempView(view)


def _unread(name: str, error: PySparkException) -> Exception:
    reason = f"the stream could not be read ({(error.getMessage() or str(error)).splitlines()[0][:200]})"
    hint = f"pass a batch of its rows: `{name}=spark.read...`."
    return refuse("WRONG_ARGUMENT", argument=name, value="a stream", reason=reason, hint=hint)


def _is_plain(frame: DataFrame, name: str) -> bool:
    """Whether the values of a column can be looked at: not those inside others."""
    type_ = parse_type_name(frame.schema[name].dataType.simpleString())
    return type_ is not None and bool(type_.arrow) and type_.values != "void"


def _partition_numbers(rows: pa.Table) -> Ints:
    """The number of each row's partition."""
    encoded = rows.column(PARTITION).combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
