"""Questions about the rows of queries that have run: which queries are meant, what they have read, and the answers."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from watersmeet.answers.answer import Answer, Provenance
from watersmeet.answers.question import Question, texts_of
from watersmeet.answers.summary import Summary, summary_of
from watersmeet.catalog import Source
from watersmeet.errors import WatersmeetError, did_you_mean, refuse
from watersmeet.fates.telling import Detail, lineage_of, run_trace
from watersmeet.fates.words import row_in_words, value_in_words
from watersmeet.local.query import Batch
from watersmeet.local.rows import FAILURES, NeedsSparkError
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.python_values import python_rows
from watersmeet.physical import Limits, QueryPlan, join_plans, limits_of, plan_query, read_sources
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.fates import Lineage
    from watersmeet.fates.trace import Trace
    from watersmeet.spark.past.reading import InputHistory

ROWS_PER_BUCKET = 48
"""At least about so many rows are looked at together, where only equal keys can meet."""


@dataclass(frozen=True)
class RecordedQuery:
    """A query that has run: its plan, and where its checkpoint is."""

    name: str
    plan: QueryPlan
    script: Script
    checkpoint: Path
    storage: Path

    @property
    def sources(self) -> list[Source]:
        """What it reads."""
        return read_sources(self.plan.relation)

    def parse_values(self, assignments: Sequence[str]) -> dict[str, str]:
        """What is asked of its result, by column; refused if it has no such column."""
        return texts_of([output.name for output in self.plan.outputs], f"in the result of {self.name}", assignments)


def find_queries(
    script: Script, queries: Sequence[AnalyzedQuery], storage: Path, command: str, name: str | None
) -> list[RecordedQuery]:
    """The queries of a script, or the one of that name; refused if there is none, or it never ran."""
    recorded: list[RecordedQuery] = []
    for number, (parsed, query) in enumerate(zip(script.queries, queries, strict=True), 1):
        called = parsed.into or f"query{number}"
        if name is None or called.lower() == name.lower():
            plan = plan_query(query, OPERATORS, late="kept", limits=_limits(script))
            recorded.append(RecordedQuery(called, plan, script, storage / "checkpoints" / called, storage))
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
        """How many rows it has read."""
        return sum(table.num_rows for batch in self.replay.batches for table in batch.rows.values())

    def build_lineage(self, question: Question | None = None) -> Lineage:
        """What became of its rows; with a question, of those that share keys with what is meant."""
        return lineage_of(self.run_trace(question), self.query.name)

    def run_trace(self, question: Question | None = None, detail: Detail = "sentences") -> Trace:
        """Its rows, followed; with a question, those that share keys with what is meant."""
        from watersmeet.spark.past.evaluating import evaluate_on_spark

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
    from watersmeet.spark.past.log import read_log
    from watersmeet.spark.past.reading import read_input_history
    from watersmeet.spark.run.owner import rebuilt_batch

    log, rebuilt = read_log(query.checkpoint), rebuilt_batch(query.checkpoint)
    return ReplayedQuery(query, read_input_history(spark, query.script, query.plan, log, query.storage, rebuilt), spark)


def answer(read: ReplayedQuery, question: Question) -> Answer:
    """What became of the rows that are meant, in a query."""
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
    """What became of all rows of a query."""
    query, replay = read.query, read.replay
    malformed: dict[str, int] = {}
    for row in replay.malformed:
        malformed[row.source] = malformed.get(row.source, 0) + 1
    trace = read.run_trace(detail="counts")
    with _pause_gc():
        return summary_of(query.name, trace, malformed, _unknown(query, replay), replay.uncertain_until)


def find_provenance(read: ReplayedQuery, assignments: Sequence[str]) -> Provenance:
    """What the rows of a result were made of that have these values."""
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
    """The rows that came in these batches, followed; with a question, those that share keys with what is meant."""
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
    if not stage.family.by_key or not all(side.keys for side in stage.sides):
        return None
    return frozenset(stage.key(p, row) for p, rows in enumerate(stage.entered) for row, _ in rows.values())


def _select_rows(question: Question, name: str, table: pa.Table) -> pa.Table:
    return table.filter(question.row_mask(table)) if name == question.source.name else table.slice(0, 0)


def _notes(replay: InputHistory, question: Question, rows: Sequence[int]) -> Iterator[str]:
    """What is to be said of rows that did not arrive."""
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
