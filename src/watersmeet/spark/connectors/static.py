"""Tables that do not change: read once, stored, then read as streams; tables over JDBC; and the load phase of tables.

``static 'true'`` lets a table come from any batch source of Spark, also from those that cannot be read as streams.

A copy is in ``static/<table>-<digest>`` of the storage, with its declaration next to the rows: a table with another
declaration is read again into its own folder, queries with the earlier copy keep theirs, and two starts never write
into one folder. Earlier versions had ``static/<table>`` without a declaration; it counts while its files have the
declared columns.

With ``watersmeet.table.load = first``, stream rows wait until their tables are caught up: a batch had no row of them,
nothing is left to read, or they were read as far as they went at the start.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from watersmeet.catalog import Source
from watersmeet.errors import WatersmeetError
from watersmeet.formats import source_format
from watersmeet.formats.base import MalformedPolicy, policy_for
from watersmeet.formats.databases import Jdbc, driver_of
from watersmeet.locations import AnyStorage, Storage, is_local, location_of
from watersmeet.logical.nodes import Script
from watersmeet.physical import QueryPlan, join_plans
from watersmeet.physical.identity import digest
from watersmeet.spark.connectors.malformed import count_malformed, readable_rows
from watersmeet.spark.connectors.reading import SourceConnector, is_static, read_source
from watersmeet.spark.exchange.rows import is_text
from watersmeet.spark.leases import Holder, Leases, take_lease
from watersmeet.spark.private.files import delete_tree

FOLDER, DECLARATION = "static", "_declaration.json"
"""The folder in the storage, and the file next to a copy, which is hidden from Spark."""

BY_PLACE = frozenset({"csv"})
"""Formats whose columns are read by their place in a row, whatever they are called."""

Declaration = Mapping[str, Any]
"""The declaration of a copy: table, format, changes, options, and columns, in order where it counts, and the
``settings`` of the session that read it."""

TIME_ZONE = "spark.sql.session.timeZone"
_PARSERS = frozenset({"spark.sql.legacy.timeparserpolicy", "spark.sql.columnnameofcorruptrecord"})
_BY_FORMAT: Mapping[str, Collection[str]] = {
    "json": {
        *_PARSERS,
        "spark.sql.json.enablepartialresults", "spark.sql.json.enableexactstringparsing",
        "spark.sql.legacy.json.allowemptystring.enabled", "spark.sql.legacy.json.enabledatetimeparsingfallback",
    },
    "csv": {*_PARSERS, "spark.sql.legacy.csv.enabledatetimeparsingfallback"},
    "xml": _PARSERS,
    "parquet": {
        "spark.sql.parquet.binaryasstring", "spark.sql.parquet.datetimerebasemodeinread",
        "spark.sql.parquet.int96rebasemodeinread", "spark.sql.parquet.int96timestampconversion",
    },
    "avro": {"spark.sql.avro.datetimerebasemodeinread"},
}  # fmt: skip
_OF_ALL = frozenset({"spark.sql.casesensitive", "spark.sql.files.ignorecorruptfiles",
                     "spark.sql.files.ignoremissingfiles"})  # fmt: skip
"""The settings of Spark, in small letters, on which the rows depend that it reads, besides the time zone."""
_ZONED = re.compile(r"\bTIMESTAMP(_LTZ)?\b", re.IGNORECASE)


def read_settings(spark: SparkSession, source: Source) -> dict[str, str]:
    """The settings of a session on which the rows of a source depend, as far as they were set; the time zone always.

    The time zone counts where times are text: Spark reads a text without an offset in it.
    """
    format_ = str(source.format).lower()
    names = {*_OF_ALL, *_BY_FORMAT.get(format_, ())}
    settings = {name: value for name, value in spark.conf.getAll.items() if name.lower() in names}
    has_times = any(_ZONED.search(field.type or "") for field in source.fields)
    if is_text(format_) and has_times and "timezone" not in source.lowercase_options:
        settings[TIME_ZONE] = str(spark.conf.get(TIME_ZONE))
    return dict(sorted(settings.items()))


def declaration_of(source: Source, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The declaration of a table, without secrets; without ``settings``, these count as equal to any.

    >>> declaration_of(Source("Items", (), kind="table", format="json", options={"path": "/data", "static": "true"}))
    {'table': 'items', 'format': 'json', 'changes': None, 'options': {'path': '/data'}, 'columns': {}}
    """
    options = source_format(source).row_options
    declaration: dict[str, Any] = {
        "table": source.name.lower(),
        "format": str(source.format).lower(),
        "changes": source.changes,
        "options": {name: options[name] for name in sorted(options) if name != "static"},
        "columns": {field.name.lower(): field.type.upper() for field in source.fields},
    }
    if settings is not None:
        declaration["settings"] = dict(settings)
    # Which column of a file a name stands for is a matter of its place there.
    return {**declaration, "order": list(declaration["columns"])} if declaration["format"] in BY_PLACE else declaration


def copy_of(source: Source, storage: AnyStorage, settings: Mapping[str, str] | None = None) -> AnyStorage:
    """The folder of the copy that was made of a table as it is declared, or in which that is to be made.

    ``settings``: those of the session that reads it.
    """
    wanted = declaration_of(source, settings)
    named = {name: value for name, value in wanted.items() if name != "settings" or value}
    made = storage / FOLDER / f"{source.name}-{digest(named)[:8]}"
    others = (folder for folder, declaration in copies_of(source, storage) if _covers(declaration, wanted))
    return made if made.is_dir() else next(others, made)


def copies_of(source: Source, storage: AnyStorage) -> Iterator[tuple[AnyStorage, Declaration]]:
    """All copies of a table that there are, with their declarations as far as these are known."""
    name = re.compile(rf"{re.escape(source.name)}(-[0-9a-f]{{8}})?", re.IGNORECASE)
    folders = sorted((storage / FOLDER).iterdir(), key=str) if (storage / FOLDER).is_dir() else []
    for folder in (path for path in folders if path.is_dir() and name.fullmatch(path.name)):
        file = folder / DECLARATION
        if not is_local(folder) and not file.is_file():
            # Elsewhere the declaration is written last: without it the copy is not whole.
            continue
        declaration: Declaration = (
            json.loads(file.read_text("utf-8")) if file.is_file() else {"columns": _columns(cast("Path", folder))}
        )
        if declaration.get("table", source.name.lower()) == source.name.lower():
            yield folder, declaration


def copy_read(table: Static, storage: Storage, files: Collection[str]) -> str | None:
    """The declaration of a copy among these ``files``, if it is another than the table's; None: it is not."""
    source, chosen = table.source, table.folder
    for folder, declaration in copies_of(source, storage):
        inside = f"{folder.absolute()}/"
        if folder != chosen and any(file.startswith(inside) for file in files):
            return _difference(declaration, declaration_of(source, table.settings))
    return None


def write_declaration(source: Source, folder: Storage, settings: Mapping[str, str] | None = None) -> None:
    """Write down what a copy was made of."""
    (folder / DECLARATION).write_text(json.dumps(declaration_of(source, settings), indent=2) + "\n", "utf-8")


def _covers(declaration: Declaration, wanted: Declaration) -> bool:
    """Whether a copy has the rows and the columns of a declaration; unknown parts count as equal."""
    parts = ("format", "changes", "options", "settings")
    same = all(declaration[name] == wanted[name] for name in parts if name in declaration and name in wanted)
    columns, order = declaration["columns"], wanted.get("order", [])
    # A copy of an earlier version has the order of its files only.
    same = same and [*declaration.get("order", columns)][: len(order)] == order
    return same and all(columns.get(name) in (type_, "") for name, type_ in wanted["columns"].items())


def _columns(folder: Path) -> dict[str, str]:
    """The columns of a copy without a declaration; their types as declared are not known."""
    file = next(folder.glob("*.parquet"), None)
    return {} if file is None else dict.fromkeys((name.lower() for name in pq.read_schema(file).names), "")


def _difference(declaration: Declaration, wanted: Declaration) -> str:
    """The changes of a declaration, in words."""
    for name, now in wanted["columns"].items():
        was = declaration["columns"].get(name)
        if was is None:
            return f"its column `{name}` was not declared"
        if was not in (now, ""):
            return f"its column `{name}` was {was}, now it is {now}"
    order = wanted.get("order", [])
    if [*declaration.get("order", declaration["columns"])][: len(order)] != order:
        return "its columns were in another order, and a row has them by their place"
    was, now = declaration.get("options", {}), wanted["options"]
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            return f"its `{name}` was `{was.get(name, '')}`, now it is `{now.get(name, '')}`"
    was, now = declaration.get("settings", {}), wanted.get("settings", {})
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            return f"it was read with `{name}` {_value(was, name)}, now {_value(now, name)}"
    return f"it was `USING {declaration.get('format')}`, now it is `USING {wanted['format']}`"


def _value(settings: Mapping[str, str], name: str) -> str:
    return f"`{settings[name]}`" if name in settings else "not set"


@dataclass(frozen=True)
class Static:
    """The current rows of a table, and the folder with the copy from when it was first read.

    ``default_policy``: the policy for its malformed rows where the source has none. ``settings``: those of the session
    on which its rows depend.
    """

    source: Source
    read: DataFrame
    folder: Storage
    default_policy: MalformedPolicy = "fail"
    settings: Mapping[str, str] | None = None

    @property
    def rows(self) -> DataFrame:
        """The rows that can be read."""
        return readable_rows(self._frame_with_counts)

    @property
    def stream(self) -> DataFrame:
        """The rows of `kept`, as a stream: with the malformed rows, which are counted as those of any source."""
        # A pattern need not match anything yet: nothing is written before all queries are known to start.
        reader = self.read.sparkSession.readStream.schema(self.read.schema)
        return reader.parquet(location_of(self.folder / "*.parquet"))

    def with_default_policy(self, policy: MalformedPolicy) -> Static:
        """The same table where that is done with malformed rows unless the source says otherwise."""
        return replace(self, default_policy=policy)

    def keep(self) -> None:
        """Write the rows, unless that was done by an earlier start. A malformed row that stops the query stops this."""
        if not is_local(self.folder):
            self._write_remote(self.folder)
            return
        if self.folder.exists():
            if not (self.folder / DECLARATION).exists():
                # An earlier version read it, with settings that are not known.
                write_declaration(self.source, self.folder)
            return
        hidden = self.folder.with_name(f".{self.folder.name}-{uuid4().hex}")
        rows = self._frame_with_counts if policy_for(self.source, self.default_policy) == "fail" else self.read
        try:
            rows.write.parquet(location_of(hidden))
            write_declaration(self.source, hidden, self.settings)
            # Renamed when it is whole: a run killed here must not leave half a table.
            hidden.rename(self.folder)
        except OSError:
            # Another start was first: its copy is of the same declaration, and a query may read it by now.
            if not self.folder.is_dir():
                raise
        finally:
            shutil.rmtree(hidden, ignore_errors=True)

    def _write_remote(self, folder: Storage) -> None:
        """Write the rows where folders cannot be renamed: under their final name, and the declaration last.

        A start that is interrupted leaves no declaration, and the next one writes all of it again. Two queries that
        start at once would write the rows twice: the second one waits for the lease of the copy, and finds it whole.
        """
        name = f"static.{folder.name}"
        lease = take_lease(folder.parent.parent, name)
        while isinstance(lease, Holder):
            time.sleep(1)
            lease = take_lease(folder.parent.parent, name)
        with Leases([lease]) as leases:
            if (folder / DECLARATION).is_file():
                return
            rows = self._frame_with_counts if policy_for(self.source, self.default_policy) == "fail" else self.read
            delete_tree(folder)
            rows.write.parquet(location_of(folder))
            leases.check()
            write_declaration(self.source, folder, self.settings)

    @property
    def _frame_with_counts(self) -> DataFrame:
        return count_malformed(self.source, self.read, policy_for(self.source, self.default_policy))


def static_tables(spark: SparkSession, script: Script, storage: Storage) -> dict[str, Static]:
    """The tables of a script that do not change, by name."""
    tables: dict[str, Static] = {}
    for source in filter(is_static, script.sources):
        settings = read_settings(spark, source)
        folder = copy_of(source, storage, settings)
        tables[source.name] = Static(source, read_source(spark, script, source), folder, settings=settings)
    return tables


TABLE = "watersmeet.table:"
"""The prefix of the names of the observations that count the rows of tables."""

Offsets = Mapping[tuple[str, str], int]
"""The progress in topics: an offset by topic and partition."""


def tables_to_load(plan: QueryPlan) -> tuple[Source, ...]:
    """The sources of the tables that are to be caught up before stream rows ask them."""
    tables: dict[str, Source] = {}
    for join in join_plans(plan.relation):
        for port in join.operator.ports_to_preload:
            for scan in join.ports[port].input.leaves:
                tables |= {source.name: source for source in scan.parts or (scan.source,)}
    return tuple(tables.values())


def observe_rows(frames: Mapping[str, DataFrame], tables: Sequence[Source]) -> dict[str, DataFrame]:
    """The frames, those of the tables counting their rows for the progress of the query."""
    rows = F.count(F.lit(1)).alias("rows")
    return {**frames, **{t.name: frames[t.name].observe(f"{TABLE}{t.name}", rows) for t in tables}}


@dataclass
class Loading:
    """The progress of the tables of a running query, batch by batch as Spark reports it."""

    tables: tuple[Source, ...]
    is_done: bool = False
    rows: int = 0
    batches: int = 0
    goal: Offsets = field(default_factory=dict[tuple[str, str], int])

    @property
    def names(self) -> str:
        """The tables, as a list in a sentence."""
        *most, last = [table.name for table in self.tables]
        return f"{', '.join(most)} and {last}" if most else last

    def take(self, reported: Mapping[str, Any]) -> None:
        """Take in what Spark reports of a batch."""
        if not any(source["numInputRows"] for source in reported["sources"]):
            self.is_done = True
            return
        rows = table_rows(reported)
        self.rows += rows
        self.batches += 1
        self.is_done = rows == 0 or self._has_reached_start(reported)

    def _has_reached_start(self, reported: Mapping[str, Any]) -> bool:
        """Whether all that was there at the start has been read.

        Where nothing limits a batch, the second one has seen it: the first may have been planned before a restart.
        """
        formats = [source_format(table) for table in self.tables]
        if not any(format_.is_limited for format_ in formats):
            return self.batches > 1
        if not all(format_.topics for format_ in formats):
            return False
        topics = {topic for format_ in formats for topic in format_.topics}
        self.goal = self.goal or _offsets(reported, "latestOffset", topics)
        reached = _offsets(reported, "endOffset", topics)
        return bool(self.goal) and all(reached.get(place, -1) >= offset for place, offset in self.goal.items())


def table_rows(reported: Mapping[str, Any]) -> int:
    """The number of rows of tables in a batch; a table without any may not be reported at all."""
    observed: Mapping[str, Any] = reported.get("observedMetrics") or {}
    total = 0
    for name, values in observed.items():
        if name.startswith(TABLE):
            metrics = cast("Mapping[str, Any]", values if isinstance(values, Mapping) else values.asDict())
            # Through Spark Connect, values come with a separate schema.
            total += int(metrics["rows"] if "rows" in metrics else metrics["values"][0])
    return total


def _offsets(reported: Mapping[str, Any], which: str, topics: set[str]) -> dict[tuple[str, str], int]:
    latest: dict[tuple[str, str], int] = {}
    for source in reported["sources"]:
        offsets: Any = source.get(which)
        if isinstance(offsets, Mapping):
            by_topic = cast("Mapping[str, Mapping[str, int]]", offsets)
            for topic in topics & by_topic.keys():
                latest |= {(topic, partition): offset for partition, offset in by_topic[topic].items()}
    return latest


_NO_DRIVER = ("No suitable driver", "ClassNotFoundException")
"""Java's errors about a missing driver, looked up by an address and by a name."""


class JdbcConnector(SourceConnector[Jdbc]):
    """Reads tables of databases."""

    def load(self, spark: SparkSession, schema: str | None, options: Mapping[str, str]) -> DataFrame:
        """Read the source with Spark. Java finds a driver that came with a package by its name only."""
        driver = driver_of(self.source)
        further = (
            [{**options, "driver": driver.name}] if driver and "driver" not in self.source.lowercase_options else []
        )
        for attempt in (options, *further):
            try:
                frame = super().load(spark, schema, attempt)
                _ = frame.schema
            except Exception as error:
                if all(word not in str(error) for word in _NO_DRIVER):
                    raise
            else:
                return frame
        raise WatersmeetError([self.format.driver_refusal])
