"""Runs a query in the process on its definitions and follows its rows; or only counts outcomes, faster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from watersmeet.local.cells import NeedsSparkError, complete_rows, output_table
from watersmeet.local.functions import value_of
from watersmeet.local.query import ROW, WHERE, BatchOutput, LocalFrame, LocalQuery, prepare_port
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import RUN, Watermarks
from watersmeet.operators.core.python_values import python_rows, python_values
from watersmeet.operators.core.rowwise import ReferenceStep, RemovedRow, Row, freeze
from watersmeet.operators.explainer import TraceableFamilies, TraceContext, tracer_of
from watersmeet.operators.outcomes import OutcomeKind, Words
from watersmeet.physical import JoinPlan, QueryPlan, ScanPlan, join_plans
from watersmeet.tools.trace.recorder import RowEvent, TraceRecorder, TraceStage, output_rows, row_column


class Trace(LocalQuery):
    """A query in progress, whose rows are followed.

    ``recorder`` say what became of them, ``results`` what came out.
    ``keys``: only rows with these keys are followed through the first join, the others count by their times.
    """

    def __init__(
        self,
        plan: QueryPlan,
        families: TraceableFamilies,
        buckets: int = 1,
        keys: Collection[Any] | None = None,
        recorder: TraceRecorder | None = None,
    ) -> None:
        super().__init__(plan, "reference")
        self.recorder = TraceRecorder() if recorder is None else recorder
        self.stages = {
            id(join): TraceStage(join, tracer_of(join.operator, families), buckets)
            for join in join_plans(plan.relation)
        }
        self.results: list[tuple[int, int, int, Mapping[str, object]]] = []
        self.keys = keys

    def arrive(self, batch: int, arrivals: Mapping[str, pa.Table], watermarks: Watermarks) -> None:
        """One batch."""
        self.recorder.batch = batch
        frame = self.relation(self.plan.relation, arrivals, watermarks)
        before = len(frame.lost)
        frame = frame.filter(self.plan.where)
        if not self.stages:
            self.recorder.note_dropped(frame.lost, Words())
        else:
            self.recorder.note_dropped(frame.lost[before:], [*self.stages.values()][-1].context.words)
        self._show(frame)

    def scan(self, plan: ScanPlan, arrivals: Mapping[str, pa.Table]) -> LocalFrame:
        """The rows of a source, with their numbers."""
        names = [part.name for part in plan.parts] or [plan.source.name]
        numbered = {name: self._number_arrivals(plan, name, arrivals[name]) for name in names}
        return super().scan(plan, {**arrivals, **numbered})

    def join(self, plan: JoinPlan, inputs: list[LocalFrame], watermarks: Watermarks) -> LocalFrame:
        """Run a join; records the rows dropped before it, and the rows that move its watermarks."""
        stage = self.stages[id(plan)]
        for number, (port, side) in enumerate(zip(plan.ports, inputs, strict=True)):
            self.recorder.note_dropped(side.lost, Words({f.name: f.type for f in side.rows.schema}))
            for lag in port.lags:
                self.recorder.note_mover(lag.watermark, lag.part, side.rows, lag.column, lag.lag)
            if side.lost:
                self._note_hidden_keys(stage, number, side)
            if self.keys is not None:
                inputs[number] = self._restrict_to_keys(stage, number, side)
        return super().join(plan, inputs, watermarks)

    def step_join(self, plan: JoinPlan, tables: dict[int, pa.Table], watermarks: Watermarks) -> BatchOutput:
        """Return the result of a join by its definition, and record the outcome of each row."""
        stage = self.stages[id(plan)]
        watermarks = {**watermarks, RUN: self.run} if plan.operator.needs_run else watermarks
        named = {
            port: table.rename_columns([row_column(port) if name == ROW else name for name in table.column_names])
            for port, table in tables.items()
        }
        before = stage.context
        rows = {port: cast("list[Row]", python_rows(table)) for port, table in named.items()}
        for port, arrived in rows.items():
            stage.entered[port] |= {row[row_column(port)]: (row, self.recorder.batch) for row in arrived}
        stage.note_types(named.values())
        steps = stage.step(rows, watermarks)
        context = replace(stage.context, received=before.received)
        self.recorder.note_watermarks(stage, watermarks)
        for step in steps:
            stage.numbers.update(_numbers(step, stage))
            self.recorder.note_late(stage, step, context)
        for port, table in named.items():
            self.recorder.note_dead(stage, port, table)
        removed = [removed_row for step in steps if isinstance(step, ReferenceStep) for removed_row in step.gone]
        emitted = [row for step in steps for row in output_rows(step)]
        numbered_rows = self._number_results(stage, output_table(emitted, stage.operator, named), named)
        frame = LocalFrame(
            complete_rows(plan, numbered_rows), np.array([True] * numbered_rows.num_rows, np.bool_), {}
        ).filter(plan.post_filters)
        self.recorder.note_outputs(stage, frame.live_rows, steps, removed)
        output_watermarks: Watermarks = {}
        for step in steps:
            output_watermarks = {**output_watermarks, **getattr(step, "watermarks", {})}
        out = frame.live_rows.drop_columns(
            [row_column(n) for n in range(len(plan.ports)) if row_column(n) in numbered_rows.column_names]
        )
        return BatchOutput(out, output_watermarks)

    def _number_arrivals(self, plan: ScanPlan, name: str, rows: pa.Table) -> pa.Table:
        bare = [column for column in rows.column_names if column != ROW]
        numbers = self.recorder.traced_rows.arrive(plan.alias, name, self.recorder.batch, rows.select(bare))
        if plan.changes not in (None, "versions"):
            numbers = self.recorder.change_table(plan, rows.select(bare), numbers.to_pylist())
        return rows.select([column for column in bare if column != WHERE]).append_column(ROW, numbers)

    def _note_hidden_keys(self, stage: TraceStage, port: int, side: LocalFrame) -> None:
        """Note the keys of rows that went no further before a join, as far as they can be computed."""
        try:
            table = prepare_port(stage.plan.ports[port], replace(side, keep=~side.keep))
        except (NeedsSparkError, pa.ArrowException, ArithmeticError):
            return
        for row in python_rows(table):
            stage.hidden[port].setdefault(stage.key(port, row), []).append(row[ROW])

    def _restrict_to_keys(self, stage: TraceStage, port: int, side: LocalFrame) -> LocalFrame:
        """The rows of a side that are followed; of the others the keys are noted."""
        if not stage.ports[port].keys or not stage.family.by_key:
            return side
        table = prepare_port(stage.plan.ports[port], side)
        values = list(zip(*(python_values(table.column(name)) for name in stage.ports[port].keys), strict=True))
        keys = [None if None in key_values else freeze(key_values) for key_values in values]
        stage.keys[port] |= {key: key_values for key, key_values in zip(keys, values, strict=True) if key is not None}
        assert self.keys is not None
        keep = side.keep.copy()
        keep[keep] = np.array([key in self.keys for key in keys], np.bool_)
        return replace(side, keep=keep)

    def _number_results(self, stage: TraceStage, table: pa.Table, arrived: Mapping[int, pa.Table]) -> pa.Table:
        """The rows of a join with numbers of their own."""
        names = [row_column(n) for n in range(len(stage.plan.ports)) if row_column(n) in table.column_names]
        if names:
            parents = zip(*(python_values(table.column(name)) for name in names), strict=True)
            numbers = [
                self.recorder.traced_rows.derive_row(id(stage), (parent for parent in row if parent is not None))
                for row in parents
            ]
        else:
            numbers = self._number_groups(stage, cast("list[Row]", python_rows(table)), arrived[0].to_pylist())
        return table.append_column(ROW, pa.array(numbers, pa.int64()))

    def _number_groups(self, stage: TraceStage, rows: list[Row], arrived: list[Row]) -> list[int]:
        """The numbers of groups: one that goes is the one that came before, one that comes is made of its members."""
        keys = stage.ports[0].keys
        for row in (arrival for arrival in arrived if arrival[row_column(0)] not in stage.late):
            self.recorder.note_counted(
                stage, row, stage.members.setdefault(freeze(tuple(row[key] for key in keys)), [])
            )
        numbers: list[int] = []
        for row in rows:
            name = freeze(tuple(row[key] for key in keys))
            if row.get(WEIGHT, 1) > 0:
                stage.shown[name] = self.recorder.traced_rows.derive_row(id(stage), stage.members.get(name, ()))
            numbers.append(stage.shown.get(name, -1))
        return numbers

    def _show(self, frame: LocalFrame) -> None:
        rows = frame.live_rows
        shown = {output.name: python_values(value_of(output.expr, rows)) for output in self.plan.outputs}
        weights = rows.column(WEIGHT).to_pylist() if self.plan.is_changelog else [1] * rows.num_rows
        for place, row_id in enumerate(rows.column(ROW).to_pylist()):
            values = {name: column[place] for name, column in shown.items()}
            self.results.append((self.recorder.batch, row_id, weights[place], values))
            if not self.stages:
                self.recorder.events.append(
                    RowEvent(row_id, "passed", self.recorder.batch, "It passed through: the query has no join.")
                )


def _numbers(step: Any, stage: TraceStage) -> dict[int, tuple[int, int | None]]:
    """The number and clock of rows that a window has numbered, by the numbers that they are followed by."""
    names = [row_column(port) for port in range(len(stage.plan.ports))]
    return {
        next(row[name] for name in names if name in row): (number, clock)
        for row, number, clock in getattr(step, "numbers", ())
    }


class CountingRecorder(TraceRecorder):
    """Notes whose events of most rows have no reason and name no other row."""

    def note_late(self, stage: TraceStage, step: Any, context: TraceContext) -> None:
        """Record late rows."""
        for port, row in getattr(step, "late", ()):
            row_id = row[row_column(port)]
            stage.late[row_id] = self.batch
            self.events.append(RowEvent(row_id, "late", self.batch, ""))

    def _note_alive(self, stage: TraceStage) -> None:
        self.events += [RowEvent(row_id, "alive", self.batch, "") for _, row_id, _ in stage.state_rows]

    def _note_output(self, stage: TraceStage, port: int, row_id: int, others: list[int], sign: int) -> None:
        if not others:
            super()._note_output(stage, port, row_id, others, sign)
            return
        self.events.append(
            RowEvent(row_id, cast("OutcomeKind", "matched" if sign > 0 else "taken back"), self.batch, "")
        )

    def _note_removal(self, stage: TraceStage, gone: RemovedRow, alone: dict[int, int]) -> None:
        row_id = gone.row[row_column(gone.port)]
        self.events += [RowEvent(row_id, kind, self.batch, "") for kind in self._removal_kinds(gone, alone)]
