"""The inspection of a state in workers: each gets the stored values of one shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.metrics.progress import watermark_text
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import Watermarks
from watersmeet.operators.state.format import UnknownFormatError
from watersmeet.operators.state.state_schema import ShardInspector, SpineRows, SpineSchema, StateSchema, format_of
from watersmeet.physical.difference import NamedIdentity

SUMMARY = (
    "shard INT, spine STRING, port INT, rows BIGINT, stored BIGINT, bytes BIGINT, runs INT, earliest STRING, "
    "latest STRING, next STRING, next_of STRING, watermarks MAP<STRING, STRING>, fingerprint STRING"
)
PROBLEMS = "shard INT, problem STRING"
MATCHED, UNTIL, UNTIL_OF, SHARD = "_matched", "_until", "_until_of", "_shard"
"""The columns of a state row besides its own."""


@dataclass(frozen=True)
class StateMeaning:
    """The meaning of an operator's state; ``numbers`` are the columns whose times are numbers.

    ``accepted``: the identities of shards that were written before a change, by their fingerprints.
    """

    identity: Identity
    state_schema: StateSchema
    numbers: frozenset[str]
    query: NamedIdentity
    accepted: Mapping[str, Identity]

    def spine_schema(self, values: Mapping[str, bytes], spine: str) -> SpineSchema:
        """The schema of a shard's spine, by the identity that wrote it."""
        fingerprint = values.get("fingerprint", b"").decode("utf-8", "replace")
        return self.state_schema.spine(self.accepted.get(fingerprint, self.identity), spine)

    def display_name(self, column: str) -> str:
        """The name of a column, or of its watermark, for users."""
        return self.query.name(column)[1:-1]

    def time_text(self, column: str, value: int) -> str:
        """A time of a column, or its watermark, as text."""
        return watermark_text(value, is_temporal=column.partition("#")[0] not in self.numbers)

    def is_time(self, watermark: str) -> bool:
        """Whether a watermark is that of an event time of a side, or of a part of it."""
        return any(watermark.partition("#")[0] in port.get("times", ()) for port in self.identity["ports"])

    def time(self, port: int) -> str | None:
        """The time by which rows of a port are ordered."""
        port_identity = self.identity["ports"][port]
        return port_identity.get("time") or next(iter(port_identity.get("times", ())), None)


def _values(table: pa.Table) -> tuple[int, dict[str, bytes]]:
    names, values = table.column("name").to_pylist(), table.column("value").to_pylist()
    return table.column("shard")[0].as_py(), dict(zip(names, values, strict=True))


@dataclass(frozen=True)
class SummarizeShard:
    """A row for each spine of a shard; one without a spine for an empty shard."""

    means: StateMeaning
    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """The requested content of a shard."""
        shard, values = _values(table)
        look, means = ShardInspector(values), self.means
        watermarks = look.directory.received
        # Finality watermarks are not watermarks of rows.
        shown = {
            name: watermark
            for name, watermark in watermarks.items()
            if not look.directory.finality or means.is_time(name)
        }
        shared: dict[str, Any] = {
            "shard": shard,
            "watermarks": [
                (means.display_name(name), means.time_text(name, watermark)) for name, watermark in shown.items()
            ],
            "fingerprint": values.get("fingerprint", b"").decode("utf-8", "replace"),
        }
        rows = [{**shared, **self._spine(look, watermarks, name)} for name in look.directory.runs]
        return pa.Table.from_pylist(rows or [shared], schema=self.schema)

    def _spine(self, look: ShardInspector, watermarks: Watermarks, name: str) -> dict[str, Any]:
        schema = self.means.spine_schema(look.values, name)
        runs = look.directory.runs[name]
        rows, column = look.rows(name, schema), self.means.time(schema.port)
        summary: dict[str, Any] = {
            "spine": name,
            "port": schema.port,
            "rows": 0 if rows is None else len(rows),
            "stored": sum(block.left for run in runs for block in run),
            "bytes": look.bytes_of(name),
            "runs": len(runs),
        }
        if rows is None or not len(rows):
            return summary
        if column is not None and column in rows.table.schema.names and rows.table.column(column).null_count == 0:
            times = as_int64(rows.table.column(column))
            summary["earliest"] = self.means.time_text(column, int(times.min()))
            summary["latest"] = self.means.time_text(column, int(times.max()))
        return summary | self._next(rows, watermarks)

    def _next(self, rows: SpineRows, watermarks: Watermarks) -> dict[str, str]:
        """The watermark that expires the next row, and the value it must pass."""
        ends = {watermark: int(until.min()) for watermark, until in rows.expiry.items()}
        if not ends:
            return {}
        first = min(ends, key=lambda watermark: ends[watermark] - watermarks.get(watermark, -(2**62)))
        return {"next": self.means.time_text(first, ends[first]), "next_of": self.means.display_name(first)}


@dataclass(frozen=True)
class CheckShard:
    """A row for each thing that is not as it should be in a shard."""

    means: StateMeaning
    labels: frozenset[int]
    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """The defects of a shard."""
        shard, values = _values(table)
        problems = list(self._problems(shard, values))
        return pa.Table.from_pylist([{"shard": shard, "problem": problem} for problem in problems], schema=self.schema)

    def _problems(self, shard: int, values: dict[str, bytes]) -> list[str]:
        if shard not in self.labels:
            return ["no row would ever come to this shard"]
        if "directory" in values and format_of(values) is None:
            return ["its directory cannot be read"]
        try:
            look = ShardInspector(values)
            spines = {name: self.means.spine_schema(values, name) for name in look.directory.runs}
        except (UnknownFormatError, ValueError, KeyError) as error:
            return [f"its directory cannot be read ({error})"]
        missing = [] if "fingerprint" in values else ["nothing says whose it is"]
        return [*missing, *look.problems(spines)]


@dataclass(frozen=True)
class ReadShardRows:
    """The rows of a spine in a shard, in columns of people's names (by canonical ones)."""

    means: StateMeaning
    spine: str
    names: tuple[tuple[str, str], ...]
    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """The rows that are there."""
        shard, values = _values(table)
        look = ShardInspector(values)
        rows = look.rows(self.spine, self.means.spine_schema(values, self.spine))
        if rows is None or not len(rows):
            return self.schema.empty_table()
        of, until = rows.nearest(look.directory.received)
        coded = of.dictionary_encode()
        names = pa.array(
            [self.means.display_name(watermark) for watermark in coded.dictionary.to_pylist()], pa.string()
        )
        of = names.take(coded.indices)
        columns_by_name = dict(zip(rows.table.schema.names, rows.table.columns, strict=True))
        columns = {shown: columns_by_name[name] for name, shown in self.names if name in columns_by_name}
        columns[MATCHED] = rows.matched
        columns[UNTIL], columns[UNTIL_OF] = until, of
        columns[SHARD] = pa.array(np.full(len(rows), shard, np.int32))
        columns["_weight"] = columns_by_name.get(WEIGHT)
        arrays = [_as(columns.get(f.name), f.type, len(rows)) for f in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _as(array: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if array is None:
        return pa.nulls(rows, kind)
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind) and pa.types.is_int64(array.type):
        return array.view(pa.timestamp("us")).view(kind)
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type):
        return array.view(kind)
    return array.cast(kind)
