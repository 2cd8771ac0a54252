"""A query in the process, by its definitions, whose rows are followed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from watersmeet.fates.family import Families, family_of
from watersmeet.fates.flights import WHERE
from watersmeet.fates.notes import Event, Notes
from watersmeet.fates.stage import Stage, row_column, rows_given
from watersmeet.fates.words import Words
from watersmeet.joins.core.changes import WEIGHT
from watersmeet.joins.core.operator import RUN, Marks
from watersmeet.joins.core.python_values import python_rows, python_values
from watersmeet.joins.core.rowwise import Row, Step, freeze
from watersmeet.local.definitions import joined_table
from watersmeet.local.query import ROW, Fed, LocalQuery, Stepped, prepared
from watersmeet.local.rows import NeedsSparkError, completed
from watersmeet.local.values import value_of
from watersmeet.physical import JoinPlan, QueryPlan, RelationPlan, ScanPlan, join_plans


class Trace(LocalQuery):
    """A query in progress, whose rows are followed.

    ``notes`` say what became of them, ``results`` what came out.
    ``keys``: only rows with these keys are followed through the first join, the others count by their times.
    """

    def __init__(
        self,
        plan: QueryPlan,
        families: Families,
        buckets: int = 1,
        keys: Collection[Any] | None = None,
        notes: Notes | None = None,
    ) -> None:
        super().__init__(plan, "reference")
        self.notes = Notes() if notes is None else notes
        self.stages = {
            id(one): Stage(one, family_of(one.operator, families), buckets) for one in join_plans(plan.relation)
        }
        self.results: list[tuple[int, int, int, Mapping[str, object]]] = []
        self.keys = keys

    def arrive(self, batch: int, arrivals: Mapping[str, pa.Table], marks: Marks) -> None:
        """One batch."""
        self.notes.batch = batch
        fed = self.relation(self.plan.relation, arrivals, marks)
        before = len(fed.lost)
        fed = fed.filtered(self.plan.where)
        if not self.stages:
            self.notes.lose(fed.lost, Words())
        else:
            self.notes.lose(fed.lost[before:], [*self.stages.values()][-1].scene.words)
        self._show(fed)

    def relation(self, plan: RelationPlan, arrivals: Mapping[str, pa.Table], marks: Marks) -> Fed:
        """The rows that a relation gives; those of a source get their numbers."""
        if isinstance(plan, ScanPlan):
            names = [part.name for part in plan.parts] or [plan.source.name]
            numbered = {name: self._numbered(plan, name, arrivals[name]) for name in names}
            arrivals = {**arrivals, **numbered}
        return super().relation(plan, arrivals, marks)

    def join(self, plan: JoinPlan, inputs: list[Fed], marks: Marks) -> Fed:
        """The rows that a join gives; which rows went no further before it, and who moves its marks."""
        stage = self.stages[id(plan)]
        for number, (port, side) in enumerate(zip(plan.ports, inputs, strict=True)):
            self.notes.lose(side.lost, Words({f.name: f.type for f in side.rows.schema}))
            for lag in port.lags:
                self.notes.mover_of(lag.mark, lag.part, side.rows, lag.column, lag.lag)
            if side.lost:
                self._hide(stage, number, side)
            if self.keys is not None:
                inputs[number] = self._only(stage, number, side)
        return super().join(plan, inputs, marks)

    def meet(self, plan: JoinPlan, tables: dict[int, pa.Table], marks: Marks) -> Stepped:
        """What a join gives, by its definition; what becomes of the rows is noted."""
        stage = self.stages[id(plan)]
        marks = {**marks, RUN: self.run} if plan.operator.needs_run else marks
        named = {
            port: table.rename_columns([row_column(port) if name == ROW else name for name in table.column_names])
            for port, table in tables.items()
        }
        before = stage.scene
        rows = {port: cast("list[Row]", python_rows(table)) for port, table in named.items()}
        for port, arrived in rows.items():
            stage.entered[port] |= {row[row_column(port)]: (row, self.notes.batch) for row in arrived}
        stage.know(named.values())
        steps = stage.step(rows, marks)
        scene = replace(stage.scene, received=before.received)
        self.notes.marks(stage, marks)
        for step in steps:
            stage.numbers.update(_numbers(step, stage))
            self.notes.late(stage, step, scene)
        for port, table in named.items():
            self.notes.dead(stage, port, table)
        gone = [one for step in steps if isinstance(step, Step) for one in step.gone]
        given = [row for step in steps for row in rows_given(step)]
        made = self._made(stage, joined_table(given, stage.operator, named), named)
        fed = Fed(completed(plan, made), np.array([True] * made.num_rows, np.bool_), {}).filtered(plan.after)
        self.notes.out(stage, fed.kept, steps, gone)
        watermarks: Marks = {}
        for step in steps:
            watermarks = {**watermarks, **getattr(step, "watermarks", {})}
        out = fed.kept.drop_columns(
            [row_column(n) for n in range(len(plan.ports)) if row_column(n) in made.column_names]
        )
        return Stepped(out, watermarks)

    def _numbered(self, plan: ScanPlan, name: str, rows: pa.Table) -> pa.Table:
        bare = [one for one in rows.column_names if one != ROW]
        numbers = self.notes.flights.arrive(plan.alias, name, self.notes.batch, rows.select(bare))
        if plan.changes not in (None, "versions"):
            numbers = self.notes.change_table(plan, rows.select(bare), numbers.to_pylist())
        return rows.select([one for one in bare if one != WHERE]).append_column(ROW, numbers)

    def _hide(self, stage: Stage, port: int, side: Fed) -> None:
        """Note the keys of rows that went no further before a join, as far as they can be computed."""
        try:
            table = prepared(stage.plan.ports[port], replace(side, keep=~side.keep))
        except (NeedsSparkError, pa.ArrowException, ArithmeticError):
            return
        for row in python_rows(table):
            stage.hidden[port].setdefault(stage.key(port, row), []).append(row[ROW])

    def _only(self, stage: Stage, port: int, side: Fed) -> Fed:
        """The rows of a side that are followed; of the others the keys are noted."""
        if not stage.sides[port].keys or not stage.family.by_key:
            return side
        table = prepared(stage.plan.ports[port], side)
        values = list(zip(*(python_values(table.column(name)) for name in stage.sides[port].keys), strict=True))
        keys = [None if None in one else freeze(one) for one in values]
        stage.keys[port] |= {key: one for key, one in zip(keys, values, strict=True) if key is not None}
        assert self.keys is not None
        keep = side.keep.copy()
        keep[keep] = np.array([key in self.keys for key in keys], np.bool_)
        return replace(side, keep=keep)

    def _made(self, stage: Stage, table: pa.Table, arrived: Mapping[int, pa.Table]) -> pa.Table:
        """The rows of a join with numbers of their own."""
        names = [row_column(n) for n in range(len(stage.plan.ports)) if row_column(n) in table.column_names]
        if names:
            parents = zip(*(python_values(table.column(name)) for name in names), strict=True)
            numbers = [self.notes.flights.made(id(stage), (one for one in row if one is not None)) for row in parents]
        else:
            numbers = self._grouped(stage, cast("list[Row]", python_rows(table)), arrived[0].to_pylist())
        return table.append_column(ROW, pa.array(numbers, pa.int64()))

    def _grouped(self, stage: Stage, rows: list[Row], arrived: list[Row]) -> list[int]:
        """The numbers of groups: one that goes is the one that came before, one that comes is made of its members."""
        keys = stage.sides[0].keys
        for row in (one for one in arrived if one[row_column(0)] not in stage.late):
            self.notes.count(stage, row, stage.members.setdefault(freeze(tuple(row[key] for key in keys)), []))
        numbers: list[int] = []
        for row in rows:
            name = freeze(tuple(row[key] for key in keys))
            if row[WEIGHT] > 0:
                stage.shown[name] = self.notes.flights.made(id(stage), stage.members.get(name, ()))
            numbers.append(stage.shown.get(name, -1))
        return numbers

    def _show(self, fed: Fed) -> None:
        rows = fed.kept
        shown = {output.name: python_values(value_of(output.expr, rows)) for output in self.plan.outputs}
        weights = rows.column(WEIGHT).to_pylist() if self.plan.is_changelog else [1] * rows.num_rows
        for place, flight in enumerate(rows.column(ROW).to_pylist()):
            values = {name: column[place] for name, column in shown.items()}
            self.results.append((self.notes.batch, flight, weights[place], values))
            if not self.stages:
                self.notes.events.append(
                    Event(flight, "passed", self.notes.batch, "It went through: the query joins nothing.")
                )


def _numbers(step: Any, stage: Stage) -> dict[int, tuple[int, int | None]]:
    """The number and clock of rows that a window has numbered, by the numbers that they are followed by."""
    names = [row_column(port) for port in range(len(stage.plan.ports))]
    return {
        next(row[name] for name in names if name in row): (number, clock)
        for row, number, clock in getattr(step, "numbers", ())
    }
