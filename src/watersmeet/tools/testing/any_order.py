"""The rows of a case in other batches, in other orders, with restarts and in other numbers of shards.

A query gives the same rows in total, however its input is cut, ordered within its lag, restarted or spread over shards.
`check_any_order` tries that with the rows of a case, on the kernels: a schedule says in which batch each row arrives,
before which batches the query restarts, and how many shards there are. No row may be late in it, because a late row is
dropped by definition; rows that are late in the case itself are left out of all schedules. The totals are over all
batches and the end of input: the rows of a stream, the content of a table, and unmatched rows.

The changes of a table keep their order among themselves: the last one of a key counts. A batch that moves the clock, or
says that tables are loaded, stays as it is. Some queries go by the order of arrival: a difference that only another
order or other batches make is then reported, and is not a failure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa

from watersmeet.catalog import Source
from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.local.casts import in_session
from watersmeet.local.cells import CHANGE, FAILURES, NeedsSparkError
from watersmeet.local.query import WHERE, BatchOutput, LocalQuery
from watersmeet.logical.nodes import Script
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.matching import as_int64
from watersmeet.operators.core.operator import END_OF_INPUT, LOADED, NOW, StepError, Watermarks
from watersmeet.operators.core.python_values import python_values
from watersmeet.operators.core.rowwise import freeze
from watersmeet.operators.core.watermarks import watermark_behind
from watersmeet.operators.time_zones import follows_ansi, zone_of_script
from watersmeet.physical import JoinPlan, QueryPlan, join_plans, read_sources
from watersmeet.tools.testing.case import Case, script_of
from watersmeet.tools.testing.execute import SHARDS, Result, analyze_case, end_of_case, outcome_of, plan_case, run_case
from watersmeet.tools.trace import Batch, trace_query

RANDOM_SCHEDULES = 60
"""The number of schedules of a case that are chosen at random, besides those that every case gets."""
MOST_RUNS = 400
"""The largest number of runs in the search for the smallest difference."""


@dataclass(frozen=True)
class _Event:
    """A row, or watermarks and a clock from outside: what a batch is made of.

    ``times``: the row's times by watermarked column, with their lag. ``batch`` is that of the case. ``epoch``: events
    stay in theirs; ``is_fixed``: it is one batch.
    """

    number: int
    batch: int
    epoch: int
    source: str = ""
    row: pa.Table | None = None
    is_ordered: bool = False
    times: tuple[tuple[str, int, int], ...] = ()
    watermarks: Watermarks | None = None
    is_fixed: bool = False


def _advance(watermarks: dict[str, int], event: _Event) -> None:
    """Move the watermarks of columns as an event does."""
    ahead = dict(event.watermarks or {}) | {c: watermark_behind(time, lag) for c, time, lag in event.times}
    for column, value in ahead.items():
        watermarks[column] = max(value, watermarks.get(column, value))


def _is_behind(watermarks: Mapping[str, int], event: _Event) -> bool:
    """Whether the watermark of a column has passed the time that a row has there, or its end has come."""
    return any(
        watermarks.get(column, time) > time or watermarks.get(column) == END_OF_INPUT for column, time, _ in event.times
    )


@dataclass(frozen=True)
class _Schedule:
    """In which batch each event arrives, by number and in order; ``restarts``: the batches before which it restarts."""

    batches: tuple[tuple[int, ...], ...]
    restarts: frozenset[int] = frozenset()
    shards: int = 1

    def without(self, numbers: frozenset[int]) -> _Schedule:
        """The same without some events; batches that become empty are left out."""
        batches = [tuple(n for n in batch if n not in numbers) for batch in self.batches]
        places = [place for place, batch in enumerate(batches) if batch]
        restarts = frozenset(new for new, place in enumerate(places) if place in self.restarts)
        return replace(self, batches=tuple(batches[place] for place in places), restarts=restarts)

    @property
    def order(self) -> tuple[int, ...]:
        """The events in their order."""
        return tuple(number for batch in self.batches for number in batch)


Totals = Mapping[str, Counter[Any]] | str
"""All rows that came out, by output; or the reason why the query stopped."""


class _CountingQuery(LocalQuery):
    """A query that counts its late rows, those in the joins of a chain too."""

    late = 0

    def step_join(self, plan: JoinPlan, tables: dict[int, pa.Table], watermarks: Watermarks) -> BatchOutput:
        """The output of a join, its late rows counted."""
        stepped = super().step_join(plan, tables, watermarks)
        self.late += sum(stepped.report.late)
        return stepped


@dataclass(frozen=True)
class _Trial:
    """A case whose events are scheduled."""

    case: Case
    script: Script
    plan: QueryPlan
    events: tuple[_Event, ...]

    def run(self, schedule: _Schedule) -> Totals | None:
        """The totals of a schedule; None if a row is late in it."""
        query = _CountingQuery(self.plan, "kernel", schedule.shards)
        totals: dict[str, Counter[Any]] = {}
        empty, end = end_of_case(self.plan, self.script)
        inputs = [self._input(batch, empty) for batch in schedule.batches]
        try:
            for place, (rows, watermarks) in enumerate([*inputs, (empty, end)]):
                if place in schedule.restarts:
                    query.restart()
                self._add(totals, query.step(rows, watermarks))
                if query.late:
                    return None
        except StepError as error:
            return Refusal(error.condition, {"join": self.case.name, **error.parameters}).message
        except FAILURES as error:
            return str(error)
        return {name: Counter({row: n for row, n in rows.items() if n}) for name, rows in totals.items()}

    def _input(self, batch: Sequence[int], empty: Mapping[str, pa.Table]) -> tuple[Mapping[str, pa.Table], Watermarks]:
        rows: dict[str, list[pa.Table]] = {name: [] for name in empty}
        watermarks: dict[str, int] = {}
        for event in (self.events[number] for number in batch):
            if event.row is not None:
                rows[event.source].append(event.row)
            for name, value in (event.watermarks or {}).items():
                watermarks[name] = max(value, watermarks.get(name, value))
        return {name: pa.concat_tables(own) if own else empty[name] for name, own in rows.items()}, watermarks

    def _add(self, totals: dict[str, Counter[Any]], step: BatchOutput) -> None:
        outcome = outcome_of(self.plan, step)
        sides = {
            "out": outcome.out,
            "unmatched_left": outcome.unmatched_left,
            "unmatched_right": outcome.unmatched_right,
            "duplicates": outcome.duplicates,
        }
        for name, tables in sides.items():
            for table in tables or ():
                count = totals.setdefault(name, Counter())
                signed = name == "out" and self.plan.is_changelog and table.column_names[:1] == [CHANGE]
                for row in zip(*map(python_values, table.columns), strict=True):
                    values = freeze(row[1:] if signed else row)
                    count[values] += -1 if signed and row[0] == "-" else 1

    def allows(self, closed: Sequence[int], left: Sequence[int]) -> bool:
        """Whether a batch may end where these events have come and those are left: none of them becomes late."""
        watermarks: dict[str, int] = {}
        for number in closed:
            _advance(watermarks, self.events[number])
        return not any(_is_behind(watermarks, self.events[number]) for number in left)

    def cut(self, order: Sequence[int], wants_cut: Callable[[int], bool]) -> tuple[tuple[int, ...], ...]:
        """The events in that order as batches: a new one begins wherever it is wanted and makes no row late."""
        batches: list[list[int]] = [[]]
        for place, number in enumerate(order):
            before = self.events[order[place - 1]] if place else None
            is_epoch = before is not None and before.epoch != self.events[number].epoch
            may_cut = is_epoch or (not self.events[number].is_fixed and wants_cut(place))
            if batches[-1] and may_cut and (is_epoch or self.allows(order[:place], order[place:])):
                batches.append([])
            batches[-1].append(number)
        return tuple(map(tuple, batches))

    @cached_property
    def original(self) -> _Schedule:
        """The batches of the case."""
        numbers = sorted({event.batch for event in self.events})
        return _Schedule(tuple(tuple(e.number for e in self.events if e.batch == batch) for batch in numbers))

    def shuffle(self, order: Sequence[int], random: Random) -> tuple[int, ...]:
        """Another order: rows move by some places; the clock, watermarks and the changes of a table keep theirs."""
        reach = random.choice((2, 4, len(order)))
        places = {number: place + random.uniform(0, reach) for place, number in enumerate(order)}
        moved = sorted(order, key=lambda n: (self.events[n].epoch, places[n]))
        fixed: dict[str, Iterator[int]] = {
            name: iter([n for n in order if self._chain(n) == name]) for name in {self._chain(n) for n in order} - {""}
        }
        return tuple(next(fixed[name]) if (name := self._chain(number)) else number for number in moved)

    def _chain(self, number: int) -> str:
        """The group within which a row keeps its order; "" for the row of a stream."""
        event = self.events[number]
        return "#" if event.row is None else event.source if event.is_ordered else ""

    def schedules(self) -> Iterator[_Schedule]:
        """The schedules that every case gets, then some at random, the same in each run."""
        original = self.original
        every = frozenset(range(len(original.batches) + 1))
        yield from (replace(original, shards=shards) for shards in (2, SHARDS))
        yield replace(original, restarts=every)
        order = original.order
        yield _Schedule(self.cut(order, lambda place: False))
        single = self.cut(order, lambda place: True)
        yield _Schedule(single)
        yield _Schedule(single, frozenset(range(len(single) + 1)), SHARDS)
        for seed in range(RANDOM_SCHEDULES):
            random = Random(seed)
            often = random.choice((0.2, 0.5, 0.9))
            shuffled = order if random.random() < 0.2 else self.shuffle(order, random)
            batches = self.cut(shuffled, lambda place, random=random, often=often: random.random() < often)
            restarts = frozenset(n for n in range(len(batches) + 1) if random.random() < 0.3)
            yield _Schedule(batches, restarts, random.choice((1, 2, 3, SHARDS)))


@dataclass(frozen=True)
class _Difference:
    """Two schedules of the same events with different totals."""

    base: _Schedule
    other: _Schedule
    expected: Totals
    actual: Totals


def check_any_order(case: Case) -> Result:
    """Run a case as it is, then in other batches, orders, restarts and shards; the totals must stay the same."""
    result = run_case(case, "kernel")
    if result.status != "passed" or case.fails is not None:
        return result
    script = script_of(case)
    try:
        plan, arrivals = plan_case(case, script, analyze_case(case, script))
        with in_session(zone_of_script(script), is_ansi=follows_ansi(script)):
            trial = _Trial(case, script, plan, _events_of(plan, arrivals))
            difference = _find_difference(trial)
    except NeedsSparkError as needed:
        return Result(case, "not run", f"only Spark can evaluate {needed}")
    except WatersmeetError as error:
        return Result(case, "failed", str(error))
    if difference is None:
        return result
    reasons = dict.fromkeys(
        join.operator.arrival_rule for join in join_plans(plan.relation) if join.operator.arrival_rule
    )
    text = "\n".join(_difference_lines(trial, difference))
    if reasons and difference.other.batches != difference.base.batches:
        return Result(case, "varies", "\n".join([*(f"by arrival: {reason}" for reason in reasons), text]))
    return Result(case, "failed", text)


def _events_of(plan: QueryPlan, arrivals: Sequence[tuple[Mapping[str, pa.Table], Watermarks]]) -> tuple[_Event, ...]:
    """The rows, watermarks and clocks of a case, in order, without rows that a watermark had passed when they came.

    Some of those are late, others go into a window that is still open: whether they do depends on the batches.
    """
    marked = [
        Batch({name: _with_places(table, batch) for name, table in rows.items()}, watermarks)
        for batch, (rows, watermarks) in enumerate(arrivals)
    ]
    lineage = trace_query(plan, marked, OPERATORS)
    late = {
        (arrival.source, arrival.where)
        for arrival in lineage.arrivals
        if any(outcome.what == "late" for outcome in lineage.of(arrival.number))
    }
    events: list[_Event] = []
    watermarks: dict[str, int] = {}
    epoch = 0
    for batch, (rows, outside) in enumerate(arrivals):
        is_fixed = NOW in outside or LOADED in outside
        epoch += is_fixed
        before = dict(watermarks)
        for source in {source.name: source for source in read_sources(plan.relation)}.values():
            is_ordered = source.kind == "table" or source.order is not None
            table = rows[source.name]
            for place in range(table.num_rows):
                row = table.slice(place, 1)
                times = _times_of(source, row)
                event = _Event(
                    len(events), batch, epoch, source.name, row, is_ordered, times, is_fixed=is_fixed
                )  # fmt: skip
                if (source.name, f"{batch}/{place}") not in late and not _is_behind(before, event):
                    events.append(event)
                    _advance(watermarks, event)
        if outside:
            named = {**outside, **_by_source(plan, outside)}
            event = _Event(len(events), batch, epoch, watermarks=named, is_fixed=is_fixed)
            events.append(event)
            _advance(watermarks, event)
        epoch += is_fixed
    return tuple(events)


def _times_of(source: Source, row: pa.Table) -> tuple[tuple[str, int, int], ...]:
    """The times of a row that watermarks follow, with their lag; none is NULL."""
    columns = [(w.column, w.lag.value) for w in source.watermarks if w.column in row.column_names]
    return tuple(
        (f"{source.name}.{column}", int(as_int64(row.column(column).combine_chunks())[0]), lag)
        for column, lag in columns
        if row.column(column).null_count == 0
    )


def _with_places(table: pa.Table, batch: int) -> pa.Table:
    places = [f"{batch}/{place}" for place in range(table.num_rows)]
    return table.append_column(WHERE, pa.array(places, pa.string()))


def _by_source(plan: QueryPlan, watermarks: Watermarks) -> dict[str, int]:
    """The watermarks by ``source.column``, as the times of rows are named; a query ignores these names."""
    names = {scan.alias: scan.source.name for scan in plan.relation.leaves}
    named = ((column.rpartition(".")[0], column.rpartition(".")[2], value) for column, value in watermarks.items())
    return {f"{names[alias]}.{column}": value for alias, column, value in named if alias in names}


def _find_difference(trial: _Trial) -> _Difference | None:
    """The smallest difference between the case and a schedule that gives other totals; None: no schedule does."""
    expected = trial.run(trial.original)
    if expected is None:
        return None
    for schedule in trial.schedules():
        actual = trial.run(schedule)
        if actual is not None and actual != expected:
            return _shrink(trial, _Difference(trial.original, schedule, expected, actual))
    return None


def _shrink(trial: _Trial, difference: _Difference) -> _Difference:
    """The difference with fewer events, and then with a schedule that is closer to that of the case."""
    runs = 0
    is_changed = True
    while is_changed:
        is_changed = False
        for base, other in _smaller(trial, difference):
            runs += 2
            if runs > MOST_RUNS:
                return difference
            expected = difference.expected if base == difference.base else trial.run(base)
            actual = trial.run(other)
            if None not in (expected, actual) and expected != actual:
                assert expected is not None and actual is not None
                difference, is_changed = _Difference(base, other, expected, actual), True
                break
    return difference


def _smaller(trial: _Trial, difference: _Difference) -> Iterator[tuple[_Schedule, _Schedule]]:
    """Pairs of schedules that are smaller by one step: by an event, a shard, a restart, a batch or a move."""
    base, other = difference.base, difference.other
    for number in base.order:
        yield base.without(frozenset({number})), other.without(frozenset({number}))
    if other.shards > 1:
        yield from ((base, replace(other, shards=shards)) for shards in (1, 2) if shards < other.shards)
    for restart in other.restarts:
        yield base, replace(other, restarts=other.restarts - {restart})
    if other.batches != base.batches:
        yield (
            base,
            replace(base, shards=other.shards, restarts=frozenset(n for n in other.restarts if n <= len(base.batches))),
        )
    for place, (batch, following) in enumerate(pairwise(other.batches)):
        if trial.events[batch[-1]].epoch != trial.events[following[0]].epoch:
            continue
        batches = (*other.batches[:place], (*batch, *following), *other.batches[place + 2 :])
        yield base, replace(other, batches=batches, restarts=frozenset(n - (n > place) for n in other.restarts))
    for place, batch in enumerate(other.batches):
        if list(batch) != sorted(batch):
            batches = (*other.batches[:place], tuple(sorted(batch)), *other.batches[place + 1 :])
            yield base, replace(other, batches=batches)
    for place, (batch, following) in enumerate(pairwise(other.batches)):
        if batch[-1] > following[0]:
            swapped = ((*batch[:-1], following[0]), (batch[-1], *following[1:]))
            yield base, replace(other, batches=(*other.batches[:place], *swapped, *other.batches[place + 2 :]))


def _difference_lines(trial: _Trial, difference: _Difference) -> Iterator[str]:
    base, other = difference.base, difference.other
    what: list[str] = []
    if other.order != base.order:
        what.append("in another order")
    elif other.batches != base.batches:
        what.append("in other batches")
    what += [f"in {other.shards} shards"] if other.shards > 1 else []
    what += [f"with a restart before {_batch_names(other)}"] if other.restarts else []
    rows = [number for number in base.order if trial.events[number].row is not None]
    yield f"the same {'row' if len(rows) == 1 else 'rows'} {' and '.join(what)} give another total:"
    for title, schedule in (("in the case", base), ("here", other)):
        yield f"  {title}:"
        for number, batch in enumerate(schedule.batches, 1):
            yield f"    batch {number}: {'; '.join(_event_text(trial.events[n]) for n in batch)}"
    if isinstance(difference.expected, str) or isinstance(difference.actual, str):
        for sign, totals in (("-", difference.expected), ("+", difference.actual)):
            yield f"  {sign} the query {f'stops: {totals}' if isinstance(totals, str) else 'gives its rows'}"
        return
    for name in dict.fromkeys([*difference.expected, *difference.actual]):
        expected, actual = (totals.get(name, Counter()) for totals in (difference.expected, difference.actual))
        for sign, more, less in (("-", expected, actual), ("+", actual, expected)):
            for row, count in more.items():
                for _ in range(max(0, count - less.get(row, 0))):
                    yield f"  {name}: {sign} {_row_text(row)}"


def _batch_names(schedule: _Schedule) -> str:
    names = [f"batch {n + 1}" if n < len(schedule.batches) else "the end" for n in sorted(schedule.restarts)]
    return ", ".join(names)


def _event_text(event: _Event) -> str:
    if event.row is not None:
        return f"{event.source} {_row_text([values[0] for values in map(python_values, event.row.columns)])}"
    names = {NOW: "now", LOADED: "loaded"}
    shown = {names.get(name, name): value for name, value in (event.watermarks or {}).items()}
    return f"watermarks {json.dumps(shown, default=str)}"


def _row_text(row: Sequence[Any]) -> str:
    return json.dumps(list(row), default=str, ensure_ascii=False)
