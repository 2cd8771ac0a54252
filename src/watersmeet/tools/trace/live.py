"""Answer questions about rows of a running query, one at a time, and only if that is not much work.

All that a query has read is read once more, by the session that runs it. So a question about a query that has read many
rows is refused, with what to type instead, and one that takes too long is broken off.

Also here: questions about DataFrames, and about queries that a program started with its own checkpoint.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from watersmeet.catalog import Source
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.local.query import Batch
from watersmeet.locations import Storage, query_of
from watersmeet.logical.nodes import Script
from watersmeet.logical.query import AnalyzedQuery
from watersmeet.operators.core.changes import CHANGE
from watersmeet.operators.core.operator import END_OF_INPUT, LOADED
from watersmeet.physical import QueryPlan, join_plans
from watersmeet.schema import arrow_type
from watersmeet.tools.trace import questions as asking
from watersmeet.tools.trace.answer import Answer
from watersmeet.tools.trace.questions import Question, RecordedQuery, ReplayedQuery, answer, read, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MOST_ROWS = 200_000
"""A query that has read more rows is not traced here."""
MOST_SECONDS = 60.0
TAG = "watersmeet-why"
"""The group of the jobs of questions, so that no others are broken off with them."""
BUSY = "Another question is being answered. Ask again in a moment."
_UNTOLD = ("BINARY", "ARRAY", "MAP", "STRUCT", "INTERVAL", "VARIANT")
"""Types whose values cannot be parsed from their displayed text."""
_CUT = 200
"""A text of that length may have been longer."""


@dataclass
class LiveDiagnosis:
    """Answers about the queries of a project that runs in this process; ``project`` is the argument of its run."""

    spark: SparkSession
    script: Script
    queries: Sequence[AnalyzedQuery]
    storage: Storage
    project: str
    _busy: Lock = field(default_factory=Lock, init=False, repr=False)

    def why(self, query: str, row: Mapping[str, str | None], rows_read: int) -> str:
        """The outcome of the displayed row with these values, as text; or why it is not available."""
        if not self._busy.acquire(blocking=False):
            return BUSY
        try:
            [ran] = asking.find_queries(
                self.script, self.queries, self.storage, f"watersmeet run {self.project}", query
            )
            questions = questions_of(ran.plan, row)
            if not questions:
                return "The columns of this row do not identify a row of a source."
            if rows_read > MOST_ROWS:
                read = f"{query} has read {rows_read:,} rows, and the page traces at most {MOST_ROWS:,}."
                return f"{read} In a terminal: {_command(self.project, questions[0])}"
            return self._answer(ran, questions)
        except WatersmeetError as error:
            return "\n".join(f"{refusal.message} {refusal.hint}".strip() for refusal in error.refusals)
        finally:
            self._busy.release()

    def _answer(self, ran: asking.RecordedQuery, questions: Sequence[Question]) -> str:
        from pyspark.errors import PySparkException

        late = Timer(MOST_SECONDS, lambda: self.spark.interruptTag(TAG))
        self.spark.addTag(TAG)
        late.start()
        try:
            read = asking.read(self.spark, ran)
            answers = [asking.answer(read, question) for question in questions]
        except PySparkException as error:
            if late.is_alive():
                return f"Spark could not read the input of {ran.name} again: {str(error).splitlines()[0]}"
            command = _command(self.project, questions[0])
            return f"It took longer than {MOST_SECONDS:g} s and was stopped. In a terminal: {command}"
        finally:
            late.cancel()
            self.spark.removeTag(TAG)
        return max(answers, key=lambda answer: len(answer.rows)).text()


def questions_of(plan: QueryPlan, row: Mapping[str, str | None]) -> list[Question]:
    """The questions about a displayed row with these values: about the first side that it has a row of.

    For a union there is one for each of its sources, as the display does not show which it came from. Values whose text
    is cut off are left out.
    """
    for scan in plan.relation.leaves:
        mine = {name.partition(".")[2]: text for name, text in row.items() if name.partition(".")[0] == scan.alias}
        questions = [
            Question(source, values)
            for source in scan.parts or (scan.source,)
            if (values := _readable_values(source, mine))
        ]
        if questions:
            return questions
    return []


def _readable_values(source: Source, shown: Mapping[str, str | None]) -> dict[str, Any]:
    """The values of a row that can be parsed from their texts; empty if all of them are NULL."""
    values: dict[str, Any] = {}
    for column in source.fields:
        text = shown.get(column.name, "")
        is_whole = column.name in shown and (text is None or len(text) < _CUT)
        if is_whole and not column.type.upper().startswith(_UNTOLD):
            with suppress(WatersmeetError):
                values |= values_of([column], source.name, [f"{column.name}={'NULL' if text is None else text}"])
    return values if any(value is not None for value in values.values()) else {}


def _command(project: str, question: Question) -> str:
    """The command that asks the same question."""
    values = (f"{name}={'NULL' if value is None else value}" for name, value in question.values.items())
    return shlex.join(["watersmeet", "why", project, question.source.name, *values])


def find_checkpoint_query(script: Script, query: AnalyzedQuery, checkpoint: Storage) -> RecordedQuery:
    """A query that was started with that checkpoint; refused if it has no finished batch."""
    name = query.into or query_of(checkpoint)
    if not any((checkpoint / "commits").glob("[0-9]*")):
        raise refuse("NEVER_RAN", query=name, checkpoint=checkpoint, command="start(...).awaitTermination()")
    # A program has no storage as `run` has: watermarks come as frames, tables as streams.
    return RecordedQuery.of(name, query, script, checkpoint, checkpoint)


def answer_from_checkpoint(spark: SparkSession, query: RecordedQuery, question: Question) -> Answer:
    """Answer a question about the rows of a query that has run."""
    return answer(read(spark, query), question)


def answer_of_frames(
    spark: SparkSession, script: Script, query: AnalyzedQuery, frames: Mapping[str, DataFrame], question: Question
) -> Answer:
    """Trace the rows of batch DataFrames: all arrive at once, and then the input ends."""
    from watersmeet.tools.trace.input_history import InputHistory, session_zone

    ran = RecordedQuery.of(query.into or "the query", query, script, Path(), Path()).in_zone(session_zone(spark))
    plan = ran.plan
    sources = {scanned.name: scanned for scan in plan.relation.leaves for scanned in (scan.parts or (scan.source,))}
    tables = {name: _collect_rows(source, frames[name]) for name, source in sources.items()}
    lags = [lag.source for join in join_plans(plan.relation) for port in join.ports for lag in port.lags]
    times = [
        f"{scan.alias}.{watermark.column}" for scan in plan.relation.leaves for watermark in scan.source.watermarks
    ]
    watermarks = {**dict.fromkeys((*times, *lags), END_OF_INPUT), LOADED: 1}
    return answer(ReplayedQuery(ran, InputHistory((Batch(tables, watermarks),)), spark), question)


def _collect_rows(source: Source, frame: DataFrame) -> pa.Table:
    """All rows of a DataFrame, in the types of its source."""
    names = [field.name for field in source.fields]
    change_columns = [CHANGE] if source.kind == "table" and CHANGE in frame.columns and CHANGE not in names else []
    table = frame.select(*(f"`{name}`" for name in (*names, *change_columns))).toArrow()
    columns: dict[str, Any] = {f.name: table.column(f.name).cast(arrow_type(f.type)) for f in source.fields}
    if source.kind == "table":
        columns[CHANGE] = table.column(CHANGE) if change_columns else pa.array(["+"] * table.num_rows, pa.string())
    return pa.table(columns)
