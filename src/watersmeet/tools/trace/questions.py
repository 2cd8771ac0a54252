"""Questions about rows: the queries, the source or result, the values; and the rows read for them."""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Field, Source
from watersmeet.errors import WatersmeetError, did_you_mean, refuse
from watersmeet.local.cells import FAILURES, NeedsSparkError, cell
from watersmeet.local.query import Batch
from watersmeet.locations import Storage, checkpoint_at
from watersmeet.logical.nodes import Script
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.python_values import python_rows, python_values
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.outcomes import row_in_words, value_in_words
from watersmeet.operators.time_zones import in_zone_of_script
from watersmeet.physical import Limits, QueryPlan, join_plans, limits_of, plan_query, read_sources
from watersmeet.schema import arrow_type
from watersmeet.tools.trace.answer import Answer, Provenance, Summary, summary_of
from watersmeet.tools.trace.query import Detail, NearKeys, lineage_of, run_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.tools.trace import Lineage
    from watersmeet.tools.trace.input_history import InputHistory
    from watersmeet.tools.trace.tracing import Trace


@dataclass(frozen=True)
class Question:
    """The requested rows of a source: those with all of these values."""

    source: Source
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return " and ".join(f"{name} {value_in_words(value)}" for name, value in self.values.items())

    def row_mask(self, rows: pa.Table) -> pa.Array:
        """A mask of the requested rows."""
        mask = pa.array([True] * rows.num_rows, pa.bool_())
        for name, value in self.values.items():
            column = rows.column(name)
            same = column.is_null() if value is None else _equal(column, value)
            mask = pc.and_(mask, pc.fill_null(same, False))
        return mask

    def describe_near_keys(self, tables: Sequence[pa.Table]) -> str | None:
        """The near misses of the question's values among the rows of its source."""
        rows_by_key: dict[Any, tuple[Any, ...]] = {}
        for table in tables:
            columns = [python_values(table.column(name)) for name in self.values]
            rows_by_key |= {freeze(row): row for row in zip(*columns, strict=True) if None not in row}
        return (
            NearKeys(rows_by_key, rows_by_key).describe_nearest(freeze(tuple(self.values.values())))
            if None not in self.values.values()
            else None
        )


def question_of(sources: Sequence[Source], name: str, assignments: Sequence[str]) -> Question:
    """The question that was typed: a source, and ``column=value`` for each value; refused if there is no such thing.

    >>> orders = Source("orders", (Field("id", "BIGINT"), Field("item", "STRING")))
    >>> question_of([orders], "Orders", ["id=17"]).values
    {'id': 17}
    """
    source = find_source(sources, name)
    return Question(source, values_of(source.fields, f"in {source.name}", assignments))


def find_source(sources: Sequence[Source], name: str) -> Source:
    """The source of that name; refused if it does not exist."""
    source = next((candidate for candidate in sources if candidate.name.lower() == name.lower()), None)
    if source is None:
        raise refuse(
            "UNKNOWN_SOURCE", source=name, suggestion=did_you_mean(name, [candidate.name for candidate in sources])
        )
    return source


def convert_values(source: Source, row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row as a program has them, in the types of their columns."""
    fields = {field.name.lower(): field for field in source.fields}
    values: dict[str, Any] = {}
    for name, value in row.items():
        field = fields.get(name.lower())
        if field is None:
            suggestion = did_you_mean(name, [column.name for column in source.fields])
            raise refuse("UNKNOWN_COLUMN", column=name, where=f"in {source.name}", suggestion=suggestion)
        try:
            values[field.name] = cell(value, arrow_type(field.type))
        except ValueError:
            reason, hint = f"it is not a value of `{field.name}`", f"{field.name} is {field.type.upper()}."
            raise refuse("WRONG_QUESTION", given=f"{name}={value}", reason=reason, hint=hint) from None
    return values


def values_of(fields: Sequence[Field], where: str, assignments: Sequence[str]) -> dict[str, Any]:
    """The values that were typed, in the types of their columns."""
    fields_by_name = {field.name: field for field in fields}
    return {
        name: _value(fields_by_name[name], text)
        for name, text in texts_of(list(fields_by_name), where, assignments).items()
    }


def texts_of(names: Sequence[str], where: str, assignments: Sequence[str]) -> dict[str, str]:
    """The typed values by column; refused if there is no such column, or no value is named."""
    columns = {name.lower(): name for name in names}
    texts: dict[str, str] = {}
    for text in assignments:
        name, is_given, value = text.partition("=")
        if not is_given:
            first = names[0] if names else "column"
            raise refuse("WRONG_QUESTION", given=text, reason="it does not name a value", hint=f"write `{first}=...`.")
        if name.strip().lower() not in columns:
            suggestion = did_you_mean(name.strip(), names)
            raise refuse("UNKNOWN_COLUMN", column=name.strip(), where=where, suggestion=suggestion)
        texts[columns[name.strip().lower()]] = value
    return texts


def _value(field: Field, text: str) -> Any:
    """Convert a text to a value of a column; NULL becomes None."""
    kind = arrow_type(field.type)
    if text.strip().upper() == "NULL":
        return None
    try:
        return cell(_read(text, kind), kind)
    except (ValueError, InvalidOperation):
        shape = "one of its values as JSON" if pa.types.is_nested(kind) else "one of its values"
        hint = f"{field.name} is {field.type}: write {shape}, or NULL."
        reason = f"`{text}` is not a value of `{field.name}`"
        raise refuse("WRONG_QUESTION", given=f"{field.name}={text}", reason=reason, hint=hint) from None


def _equal(column: pa.ChunkedArray, value: Any) -> Any:
    """A mask of the values that equal one; Arrow cannot compare structs, lists and maps."""
    if pa.types.is_nested(column.type):
        return pa.array([cell_value == value for cell_value in python_values(column)], pa.bool_())
    return pc.equal(column, pa.scalar(value, column.type))


def _read(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_nested(kind):
        return json.loads(text)
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_boolean(kind):
        if text.strip().lower() not in ("true", "false"):
            raise ValueError(text)
        return text.strip().lower() == "true"
    return text


ROWS_PER_BUCKET = 48
"""At least about so many rows are looked at together, where only equal keys can meet."""


@dataclass(frozen=True)
class RecordedQuery:
    """A query that has run: its plan, and where its checkpoint is."""

    name: str
    plan: QueryPlan
    script: Script
    checkpoint: Storage
    storage: Storage
    analyzed: AnalyzedQuery
    limits: Limits | None = None

    @staticmethod
    def of(
        name: str,
        query: AnalyzedQuery,
        script: Script,
        checkpoint: Storage,
        storage: Storage,
        limits: Limits | None = None,
    ) -> RecordedQuery:
        """A query as it runs in UTC."""
        plan = plan_query(query, OPERATORS, late="side_output", limits=limits)
        return RecordedQuery(name, plan, script, checkpoint, storage, query, limits)

    def in_zone(self, zone: str) -> RecordedQuery:
        """The query as it runs in a session with that time zone."""
        query = in_zone_of_script(self.analyzed, self.script, zone)
        return (
            self
            if query is self.analyzed
            else replace(self, plan=plan_query(query, OPERATORS, late="side_output", limits=self.limits))
        )

    @property
    def sources(self) -> list[Source]:
        """The sources that the query reads."""
        return read_sources(self.plan.relation)

    def parse_values(self, assignments: Sequence[str]) -> dict[str, str]:
        """The question about the result, by column; refused if it has no such column."""
        return texts_of([output.name for output in self.plan.outputs], f"in the result of {self.name}", assignments)


def find_queries(
    script: Script, queries: Sequence[AnalyzedQuery], storage: Storage, command: str, name: str | None
) -> list[RecordedQuery]:
    """The queries of a script, or the one of that name; refused if it does not exist, or never ran."""
    recorded: list[RecordedQuery] = []
    for number, (parsed, query) in enumerate(zip(script.queries, queries, strict=True), 1):
        called = parsed.into or f"query{number}"
        if name is None or called.lower() == name.lower():
            place = checkpoint_at(storage, called)
            recorded.append(RecordedQuery.of(called, query, script, place, storage, _limits(script)))
    if not recorded:
        names = [parsed.into for parsed in script.queries if parsed.into is not None]
        raise refuse("UNKNOWN_QUERY", query=name, suggestion=did_you_mean(name or "", names))
    for query_run in recorded:
        if not any((query_run.checkpoint / "commits").glob("[0-9]*")):
            raise refuse("NEVER_RAN", query=query_run.name, checkpoint=query_run.checkpoint, command=command)
    return recorded


def _limits(script: Script) -> Limits | None:
    """The limits by which rows are dropped; one that would have stopped the query has not."""
    limits = limits_of(script)
    return limits if limits is not None and limits.overflow == "drop_oldest" else None


def queries_reading(queries: Sequence[RecordedQuery], question: Question) -> list[RecordedQuery]:
    """The queries that read the source of a question."""
    matches = [query for query in queries if any(source.name == question.source.name for source in query.sources)]
    if not matches:
        read = sorted({source.name for query in queries for source in query.sources})
        raise refuse("UNKNOWN_SOURCE", source=question.source.name, suggestion=f"the queries read {', '.join(read)}.")
    return matches


def queries_with_columns(queries: Sequence[RecordedQuery], assignments: Sequence[str]) -> list[RecordedQuery]:
    """The queries whose results have the columns that are named."""
    matches: list[RecordedQuery] = []
    for query in queries:
        with suppress(WatersmeetError):
            query.parse_values(assignments)
            matches.append(query)
    if not matches:
        queries[0].parse_values(assignments)
    return matches


@dataclass(frozen=True)
class ReplayedQuery:
    """A query with all that it has read."""

    query: RecordedQuery
    replay: InputHistory
    spark: SparkSession

    @property
    def rows(self) -> int:
        """The number of rows that it has read."""
        return sum(table.num_rows for batch in self.replay.batches for table in batch.rows.values())

    def build_lineage(self, question: Question | None = None) -> Lineage:
        """The outcomes of its rows; with a question, of those that share keys with the selected rows."""
        return lineage_of(self.run_trace(question), self.query.name)

    def run_trace(self, question: Question | None = None, detail: Detail = "sentences") -> Trace:
        """Trace its rows; with a question, those that share keys with the selected rows."""
        from watersmeet.tools.trace.input_history import evaluate_on_spark

        try:
            with evaluate_on_spark(self.spark), _pause_gc():
                return trace_batches(self.query.plan, self.replay.batches, question, detail)
        except NeedsSparkError as needed:
            raise refuse("NOT_TOLD", query=self.query.name, reason=f"only Spark can evaluate {needed}") from None
        except FAILURES as error:
            raise refuse("NOT_TOLD", query=self.query.name, reason=f"evaluating it failed with {error}") from None


@contextmanager
def _pause_gc() -> Generator[None]:
    """Without looking for garbage while this is entered: millions of values are made, and nearly all of them stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read(spark: SparkSession, query: RecordedQuery) -> ReplayedQuery:
    """A query with all that it has read, by the log of its checkpoint."""
    from watersmeet.spark.state.offset_log import read_log
    from watersmeet.spark.state.owner import last_change
    from watersmeet.tools.trace.input_history import read_input_history, session_zone

    query = query.in_zone(session_zone(spark))
    log, change = read_log(query.checkpoint), last_change(query.checkpoint)
    return ReplayedQuery(query, read_input_history(spark, query.script, query.plan, log, query.storage, change), spark)


def answer(read: ReplayedQuery, question: Question) -> Answer:
    """Answer a question: the outcome of the requested rows, in a query."""
    query, replay = read.query, read.replay
    lineage = read.build_lineage(question)
    rows = [
        arrival.number
        for arrival in lineage.arrivals
        if arrival.source == question.source.name
        and all(_is(arrival.values.get(n), v) for n, v in question.values.items())
    ]
    question_text = f"{question.source.name} {'has' if len(rows) == 1 else 'have'} {question}"
    notes = tuple(_notes(replay, question, rows))
    return Answer(
        query.name, question_text, lineage, tuple(rows), notes, _unknown(query, replay), replay.uncertain_until
    )


def summary(read: ReplayedQuery) -> Summary:
    """Summarize the outcomes of all rows of a query."""
    query, replay = read.query, read.replay
    malformed: dict[str, int] = {}
    for row in replay.malformed:
        malformed[row.source] = malformed.get(row.source, 0) + 1
    trace = read.run_trace(detail="counts")
    with _pause_gc():
        return summary_of(query.name, trace, malformed, _unknown(query, replay), replay.uncertain_until)


def find_provenance(read: ReplayedQuery, assignments: Sequence[str]) -> Provenance:
    """Find the input rows behind the result rows that have these values."""
    query, replay = read.query, read.replay
    lineage = read.build_lineage()
    wanted = query.parse_values(assignments)
    places = [
        place
        for place, row in enumerate(lineage.results)
        if all(text in _texts(row.values[name]) for name, text in wanted.items())
    ]
    question_text = " and ".join(f"{name} {text}" for name, text in wanted.items())
    return Provenance(
        query.name, question_text, lineage, tuple(places), _unknown(query, replay), replay.uncertain_until
    )


def trace_batches(
    plan: QueryPlan, batches: Sequence[Batch], question: Question | None = None, detail: Detail = "sentences"
) -> Trace:
    """Trace the rows of these batches; with a question, those that share keys with the selected rows."""
    size = sum(table.num_rows for batch in batches for table in batch.rows.values())
    trace_keys = None
    if question is not None:
        only = [
            Batch({n: _select_rows(question, n, t) for n, t in b.rows.items()}, {}, False, b.number) for b in batches
        ]
        trace_keys = _keys(plan, only)
    # Each part takes every batch, so that many batches make small parts dear.
    rows_per_bucket = max(ROWS_PER_BUCKET, 2 * len(batches))
    buckets = 1 + size // rows_per_bucket if trace_keys is None else 1
    return run_trace(plan, batches, OPERATORS, buckets, trace_keys, detail)


def _keys(plan: QueryPlan, batches: Sequence[Batch]) -> frozenset[object] | None:
    """The keys of the rows that are meant, where nothing else can matter to them; None: anything may."""
    joins = join_plans(plan.relation)
    if len(joins) != 1 or len(joins[0].ports) != 2:
        return None
    [stage] = run_trace(plan, batches, OPERATORS).stages.values()
    if not stage.family.by_key or not all(side.keys for side in stage.ports):
        return None
    return frozenset(stage.key(p, row) for p, rows in enumerate(stage.entered) for row, _ in rows.values())


def _select_rows(question: Question, name: str, table: pa.Table) -> pa.Table:
    return table.filter(question.row_mask(table)) if name == question.source.name else table.slice(0, 0)


def _notes(replay: InputHistory, question: Question, rows: Sequence[int]) -> Iterator[str]:
    """Describe rows that did not arrive."""
    name = question.source.name
    tables = [batch.rows[name] for batch in replay.batches if name in batch.rows]
    waiting = replay.waiting.get(name)
    if waiting is not None:
        for row in python_rows(waiting.filter(question.row_mask(waiting))):
            values = {f.name: row[f.name] for f in question.source.fields if f.name in row}
            yield f"{row_in_words(values)} is in {name}, but no batch has read it yet ({row['#where']})."
    for bad in replay.malformed:
        if bad.source == name and all(_text_of(value) in bad.text for value in question.values.values()):
            batch = "" if bad.batch is None else f" in batch {bad.batch}"
            sentence = f"A malformed row may be the one you ask about{batch}, {bad.where}: {bad.reason}"
            yield f"{sentence}. Its text: {bad.text[:200]}"
    if not rows:
        near = question.describe_near_keys(tables)
        yield f"No row of {name} that was read has {question}.{f' {near}' if near else ''}"


def _text_of(value: object) -> str:
    return "" if value is None else str(value)


def _unknown(query: RecordedQuery, replay: InputHistory) -> tuple[str, ...]:
    sentences = list(replay.unknown)
    operators = [join.operator for join in join_plans(query.plan.relation)]
    if any(operator.needs_clock for operator in operators):
        sentences.append(
            "The clock is read at the start of each batch, so a row that it evicted may have left one batch later."
        )
    if any(operator.max_rows is not None and operator.overflow == "drop_oldest" for operator in operators):
        sentences.append(
            "The limit applies to each shard, so the query may have dropped other rows than those shown here."
        )
    return tuple(sentences)


def _texts(value: object) -> set[str]:
    """The texts by which a value of a result may be asked for."""
    return {"NULL", "null"} if value is None else {str(value), value_in_words(value).strip("'")}


def _is(value: object, wanted: object) -> bool:
    return value is None if wanted is None else value == wanted
