"""Questions about the rows of queries that have run: which queries are meant, what they have read, and the answers."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from watersmeet.answers.answer import Answer, Made
from watersmeet.answers.question import Question, texts_of
from watersmeet.answers.summary import Summary, summary_of
from watersmeet.catalog import Source
from watersmeet.errors import WatersmeetError, did_you_mean, refuse
from watersmeet.families import OPERATORS
from watersmeet.fates.telling import Batch, Detail, told_of, traced
from watersmeet.fates.words import row_in_words, value_in_words
from watersmeet.joins.core.python_values import python_rows
from watersmeet.local.rows import FAILURES, NeedsSparkError
from watersmeet.physical import Limits, QueryPlan, join_plans, limits_of, plan_query, read_sources
from watersmeet.plan.nodes import Script
from watersmeet.plan.query import AnalyzedQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.fates import Told
    from watersmeet.fates.trace import Trace
    from watersmeet.spark.past.reading import Past

ROWS_APART = 48
"""At least about so many rows are looked at together, where only equal keys can meet."""


@dataclass(frozen=True)
class Ran:
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

    def wanted(self, given: Sequence[str]) -> dict[str, str]:
        """What is asked of its result, by column; refused if it has no such column."""
        return texts_of([output.name for output in self.plan.outputs], f"in the result of {self.name}", given)


def ran(script: Script, queries: Sequence[AnalyzedQuery], storage: Path, command: str, name: str | None) -> list[Ran]:
    """The queries of a script, or the one of that name; refused if there is none, or it never ran."""
    found: list[Ran] = []
    for number, (asked, query) in enumerate(zip(script.queries, queries, strict=True), 1):
        called = asked.into or f"query{number}"
        if name is None or called.lower() == name.lower():
            plan = plan_query(query, OPERATORS, late="kept", limits=_limits(script))
            found.append(Ran(called, plan, script, storage / "checkpoints" / called, storage))
    if not found:
        known = [asked.into for asked in script.queries if asked.into is not None]
        raise refuse("UNKNOWN_QUERY", query=name, suggestion=did_you_mean(name or "", known))
    for one in found:
        if not any((one.checkpoint / "commits").glob("[0-9]*")):
            raise refuse("NEVER_RAN", query=one.name, checkpoint=one.checkpoint, command=command)
    return found


def _limits(script: Script) -> Limits | None:
    """The limits by which rows are dropped; one that would have stopped the query has not."""
    limits = limits_of(script)
    return limits if limits is not None and limits.overflow == "drop_oldest" else None


def readers(queries: Sequence[Ran], question: Question) -> list[Ran]:
    """The queries that read the source of a question."""
    found = [one for one in queries if any(source.name == question.source.name for source in one.sources)]
    if not found:
        read = sorted({source.name for one in queries for source in one.sources})
        raise refuse("UNKNOWN_SOURCE", source=question.source.name, suggestion=f"the queries read {', '.join(read)}.")
    return found


def showing(queries: Sequence[Ran], given: Sequence[str]) -> list[Ran]:
    """The queries whose results have the columns that are named."""
    found: list[Ran] = []
    for query in queries:
        with suppress(WatersmeetError):
            query.wanted(given)
            found.append(query)
    if not found:
        queries[0].wanted(given)
    return found


@dataclass(frozen=True)
class Read:
    """A query with all that it has read."""

    query: Ran
    past: Past
    spark: SparkSession

    @property
    def rows(self) -> int:
        """How many rows it has read."""
        return sum(table.num_rows for batch in self.past.batches for table in batch.rows.values())

    def told(self, question: Question | None = None) -> Told:
        """What became of its rows; with a question, of those that share keys with what is meant."""
        return told_of(self.traced(question), self.query.name)

    def traced(self, question: Question | None = None, detail: Detail = "sentences") -> Trace:
        """Its rows, followed; with a question, those that share keys with what is meant."""
        from watersmeet.spark.past.evaluating import evaluating

        try:
            with evaluating(self.spark), _kept():
                return traced_past(self.query.plan, self.past.batches, question, detail)
        except NeedsSparkError as needed:
            raise refuse("NOT_TOLD", query=self.query.name, reason=needed) from None
        except FAILURES as error:
            raise refuse("NOT_TOLD", query=self.query.name, reason=f"what follows from this: {error}") from None


@contextmanager
def _kept() -> Generator[None]:
    """Without looking for garbage while this is entered: millions of values are made, and nearly all of them stay."""
    was_looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_looking:
            gc.enable()


def read(spark: SparkSession, query: Ran) -> Read:
    """A query with all that it has read, by the log of its checkpoint."""
    from watersmeet.spark.past.log import read_log
    from watersmeet.spark.past.reading import read_past
    from watersmeet.spark.run.owner import rebuilt_batch

    log, rebuilt = read_log(query.checkpoint), rebuilt_batch(query.checkpoint)
    return Read(query, read_past(spark, query.script, query.plan, log, query.storage, rebuilt), spark)


def answer(read: Read, question: Question) -> Answer:
    """What became of the rows that are meant, in a query."""
    query, past = read.query, read.past
    found = read.told(question)
    rows = [
        one.number
        for one in found.arrivals
        if one.source == question.source.name and all(_is(one.values.get(n), v) for n, v in question.values.items())
    ]
    asked = f"{question.source.name} {'has' if len(rows) == 1 else 'have'} {question}"
    notes = tuple(_notes(past, question, rows))
    return Answer(query.name, asked, found, tuple(rows), notes, _unknown(query, past), past.uncertain_until)


def summary(read: Read) -> Summary:
    """What became of all rows of a query."""
    query, past = read.query, read.past
    malformed: dict[str, int] = {}
    for one in past.malformed:
        malformed[one.source] = malformed.get(one.source, 0) + 1
    trace = read.traced(detail="counts")
    with _kept():
        return summary_of(query.name, trace, malformed, _unknown(query, past), past.uncertain_until)


def made(read: Read, given: Sequence[str]) -> Made:
    """What the rows of a result were made of that have these values."""
    query, past = read.query, read.past
    found = read.told()
    wanted = query.wanted(given)
    places = [
        place
        for place, row in enumerate(found.results)
        if all(text in _texts(row.values[name]) for name, text in wanted.items())
    ]
    asked = " and ".join(f"{name} {text}" for name, text in wanted.items())
    return Made(query.name, asked, found, tuple(places), _unknown(query, past), past.uncertain_until)


def traced_past(
    plan: QueryPlan, batches: Sequence[Batch], question: Question | None = None, detail: Detail = "sentences"
) -> Trace:
    """The rows that came in these batches, followed; with a question, those that share keys with what is meant."""
    size = sum(table.num_rows for batch in batches for table in batch.rows.values())
    trace_keys = None
    if question is not None:
        only = [Batch({n: _meant(question, n, t) for n, t in b.rows.items()}, {}, False, b.number) for b in batches]
        trace_keys = _keys(plan, only)
    # Each part takes every batch, so that many batches make small parts dear.
    apart = max(ROWS_APART, 2 * len(batches))
    buckets = 1 + size // apart if trace_keys is None else 1
    return traced(plan, batches, OPERATORS, buckets, trace_keys, detail)


def _keys(plan: QueryPlan, batches: Sequence[Batch]) -> frozenset[object] | None:
    """The keys of the rows that are meant, where nothing else can matter to them; None: anything may."""
    joins = join_plans(plan.relation)
    if len(joins) != 1 or len(joins[0].ports) != 2:
        return None
    [stage] = traced(plan, batches, OPERATORS).stages.values()
    if not stage.family.by_key or not all(side.keys for side in stage.sides):
        return None
    return frozenset(stage.key(p, row) for p, rows in enumerate(stage.entered) for row, _ in rows.values())


def _meant(question: Question, name: str, table: pa.Table) -> pa.Table:
    return table.filter(question.holds(table)) if name == question.source.name else table.slice(0, 0)


def _notes(past: Past, question: Question, rows: Sequence[int]) -> Iterator[str]:
    """What is to be said of rows that did not arrive."""
    name = question.source.name
    tables = [batch.rows[name] for batch in past.batches if name in batch.rows]
    waiting = past.waiting.get(name)
    if waiting is not None:
        for row in python_rows(waiting.filter(question.holds(waiting))):
            values = {f.name: row[f.name] for f in question.source.fields if f.name in row}
            yield f"{row_in_words(values)} is in {name}, but no batch has read it so far ({row['#where']})."
    for bad in past.malformed:
        if bad.source == name and all(_text_of(value) in bad.text for value in question.values.values()):
            batch = "" if bad.batch is None else f" in batch {bad.batch}"
            told = f"A row that could not be read may be meant{batch}, {bad.where}: {bad.reason}"
            yield f"{told}. Its text: {bad.text[:200]}"
    if not rows:
        near = question.near(tables)
        yield f"No row of {name} that was read has {question}.{f' {near}' if near else ''}"


def _text_of(value: object) -> str:
    return "" if value is None else str(value)


def _unknown(query: Ran, past: Past) -> tuple[str, ...]:
    found = list(past.unknown)
    operators = [join.operator for join in join_plans(query.plan.relation)]
    if any(operator.needs_clock for operator in operators):
        found.append("The clock is that of the beginning of each batch: what it evicted may have left a batch later.")
    if any(operator.max_rows is not None and operator.overflow == "drop_oldest" for operator in operators):
        found.append("Rows are dropped shard by shard: which ones the limit met may differ from what is told here.")
    return tuple(found)


def _texts(value: object) -> set[str]:
    """The texts by which a value of a result may be asked for."""
    return {"NULL", "null"} if value is None else {str(value), value_in_words(value).strip("'")}


def _is(value: object, wanted: object) -> bool:
    return value is None if wanted is None else value == wanted
