"""Runs a case: on the definition, on the kernels in the process, or on Spark; asserts one, or traces its rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from unittest import SkipTest

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.arguments import check_choice, check_session, wrong
from watersmeet.catalog import Source
from watersmeet.duration import parse_duration
from watersmeet.errors import Refusal, WatersmeetError, refuse
from watersmeet.local.casts import in_session
from watersmeet.local.cells import CHANGE, FAILURES, NeedsSparkError, arrow_table, cell, change_table, to_signed_rows
from watersmeet.local.query import BatchOutput, LocalQuery
from watersmeet.logical.nodes import Script
from watersmeet.logical.query import AnalyzedQuery, AnalyzedTop
from watersmeet.logical.words import without_generated_names
from watersmeet.operators import OPERATORS
from watersmeet.operators.core.changes import WEIGHT
from watersmeet.operators.core.operator import END_OF_INPUT, LOADED, NOW, StepError, Watermarks
from watersmeet.operators.core.rowwise import event_time
from watersmeet.operators.time_zones import follows_ansi, in_zone_of_script, zone_of_script
from watersmeet.physical import QueryPlan, input_times, join_plans, leaf_plans, limits_of, plan_query, view_plans
from watersmeet.queries import analyze
from watersmeet.schema import arrow_type
from watersmeet.tools.testing.case import (
    Case,
    CaseBatch,
    CaseRow,
    Outcome,
    QueryStoppedError,
    RowList,
    cells_of,
    compare,
    compare_reasons,
    compare_rows,
    in_file,
    read_case,
    script_of,
)
from watersmeet.tools.trace import Batch, Lineage, trace_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Executor = Literal["reference", "kernel", "spark"]
"""The executor of a case: on the definition, on the kernels in the process, or on Spark."""

Status = Literal["passed", "failed", "not run", "varies"]
"""``varies``: only `check_any_order`: a query that goes by the order of arrival gives other rows in another order."""

SHARDS = 7
"""A case on the kernels runs in one shard, and in so many: the keys 1 to 6 then are in shards of their own."""


@dataclass(frozen=True)
class Result:
    """The result of a case; ``detail`` shows what differs, or why it was not run."""

    case: Case
    status: Status
    detail: str = ""


Arrivals = tuple[Mapping[str, pa.Table], Watermarks]


def run_case(case: Case, on: Executor = "spark", spark: SparkSession | None = None) -> Result:
    """Run a case where ``on`` says; on Spark in the session given, or in the one that is active."""
    if case.fails is not None:
        return _check_refusal(case)
    try:
        script = script_of(case)
        queries = analyze_case(case, script)
    except WatersmeetError as error:
        return Result(case, "failed", str(error))
    try:
        plan, arrivals = plan_case(case, script, queries)
        _check_expected_columns(case, plan)
        reasons = _reasons(case, plan, script, arrivals)
        for shards in _numbers_of_shards(plan, on):
            result = _compare_outcomes(case, plan, _outcomes(case, script, plan, arrivals, on, spark, shards), reasons)
            if result.status == "failed":
                return result if shards == 1 else replace(result, detail=f"in {shards} shards: {result.detail}")
    except NeedsSparkError as needed:
        return Result(case, "not run", f"only Spark can evaluate {needed}")
    except StepError as error:
        refusal = Refusal(error.condition, {"join": case.name, **error.parameters})
        return Result(case, "failed", f"the query stops: {refusal.message}")
    except (QueryStoppedError, *FAILURES) as error:
        return Result(case, "failed", f"the query stops: {error}")
    except WatersmeetError as error:
        if error.getCondition() == "WRONG_CASE":
            raise
        # What only Spark finds wrong with the query.
        return Result(case, "failed", str(error))
    return Result(case, "passed")


def _numbers_of_shards(plan: QueryPlan, on: Executor) -> tuple[int, ...]:
    """The numbers of shards that a case runs with: on the kernels several, to detect wrong routing of matching rows.

    One comes first, so that a case that fails in both is shown without shards.
    """
    is_routed = any(port.route != "one" for join in join_plans(plan.relation) for port in join.ports)
    return (1, SHARDS) if on == "kernel" and is_routed else (1,)


def outcomes_of(case: Case, on: Executor = "kernel", spark: SparkSession | None = None) -> tuple[Outcome, ...]:
    """The outcome of each batch of a case, and of the end if it has one, whatever it expects.

    Raises `NeedsSparkError` for expressions that only Spark can evaluate.
    """
    script = script_of(case)
    plan, arrivals = plan_case(case, script, analyze_case(case, script))
    return _outcomes(case, script, plan, arrivals, on, spark)


def analyze_case(case: Case, script: Script) -> tuple[AnalyzedQuery, ...]:
    """The queries of a case's script as they may run; refused with places in the file of the case."""
    with in_file(case):
        return analyze(script)


def plan_case(case: Case, script: Script, queries: Sequence[AnalyzedQuery]) -> tuple[QueryPlan, list[Arrivals]]:
    """The plan of the one query of a case, and what arrives in each batch."""
    if len(queries) != 1:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its script has {len(queries)} queries, not one")
    query = in_zone_of_script(queries[0], script)
    plan = plan_query(query, OPERATORS, late="side_output", limits=limits_of(script))
    return plan, arrivals_of(case, plan, script)


def _outcomes(
    case: Case,
    script: Script,
    plan: QueryPlan,
    arrivals: Sequence[Arrivals],
    on: Executor,
    spark: SparkSession | None,
    shards: int = 1,
) -> tuple[Outcome, ...]:
    stretches = _split_at_restarts(_all_batches(case), arrivals)
    with in_session(zone_of_script(script), is_ansi=follows_ansi(script)):
        stepped = _on_spark(script, stretches, spark) if on == "spark" else _in_process(plan, stretches, on, shards)
    outcomes = [outcome_of(plan, step) for step in stepped]
    if not plan.is_changelog:
        return tuple(outcomes)
    so_far = [sum_rows(plan, outcomes[: number + 1]) for number in range(len(outcomes))]
    return tuple(replace(each, table=(content,)) for each, content in zip(outcomes, so_far, strict=True))


def sum_rows(plan: QueryPlan, outcomes: Sequence[Outcome]) -> pa.Table:
    """The rows that came out in all batches; of a table its content after them."""
    tables = [table for outcome in outcomes for table in outcome.out if table.num_columns]
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    if not plan.is_changelog or CHANGE not in rows.column_names:
        return rows
    net = _as_signed_rows(rows)
    return net.filter(pc.equal(net.column(CHANGE), "+")).drop_columns([CHANGE])


def _all_batches(case: Case) -> list[CaseBatch]:
    """The batches of a case, and its end as one more."""
    return [*case.batches, *([CaseBatch(out=case.end)] if case.ends else [])]


def lineage_of_case(case: Case, plan: QueryPlan, arrivals: Sequence[Arrivals]) -> Lineage:
    """Trace the rows of a case by the definitions."""
    restarts = [*(batch.restart for batch in case.batches), False]
    came = zip(arrivals, restarts, strict=False)
    batches = [Batch(tables, watermarks, restart) for (tables, watermarks), restart in came]
    script = script_of(case)
    with in_session(zone_of_script(script), is_ansi=follows_ansi(script)):
        return trace_query(plan, batches, OPERATORS)


def _reasons(case: Case, plan: QueryPlan, script: Script, arrivals: Sequence[Arrivals]) -> str | None:
    if not case.why:
        return None
    return compare_reasons(
        case, lineage_of_case(case, plan, arrivals), {source.name: source for source in script.sources}
    )


def arrivals_of(case: Case, plan: QueryPlan, script: Script) -> list[Arrivals]:
    """The arrivals of each batch of a case, and of its end."""
    arrivals = [_arrivals(case, batch, plan, script) for batch in case.batches]
    if case.ends:
        arrivals.append(end_of_case(plan, script))
    return arrivals


def end_of_case(plan: QueryPlan, script: Script) -> Arrivals:
    """The end of input, as the last batch of a case."""
    return _empty_arrivals(script), dict.fromkeys(input_times(plan), END_OF_INPUT)


def _check_refusal(case: Case) -> Result:
    """Whether a case that must be refused is, and with that condition."""
    try:
        analyze_case(case, script_of(case))
    except WatersmeetError as error:
        conditions = [refusal.condition for refusal in error.refusals]
        if case.fails not in conditions:
            return Result(case, "failed", f"expected {case.fails}, but it was refused with\n{error}")
        if case.fails_with is not None and case.fails_with not in str(error):
            return Result(case, "failed", f"expected the words `{case.fails_with}` in\n{error}")
        return Result(case, "passed")
    return Result(case, "failed", f"expected {case.fails}, but the script was accepted")


def _in_process(
    plan: QueryPlan, stretches: list[list[Arrivals]], on: Literal["reference", "kernel"], shards: int
) -> list[BatchOutput]:
    query = LocalQuery(plan, on, shards)
    stepped: list[BatchOutput] = []
    for stretch in stretches:
        query.restart()
        stepped += [query.step(*arrivals) for arrivals in stretch]
    return stepped


def _on_spark(script: Script, stretches: list[list[Arrivals]], spark: SparkSession | None) -> list[BatchOutput]:
    from watersmeet.spark.session import session
    from watersmeet.tools.testing.on_spark import SparkQuery

    with tempfile.TemporaryDirectory(prefix="watersmeet-case-") as folder:
        query = SparkQuery(spark or session(), script, Path(folder))
        return [step for stretch in stretches for step in query.run(stretch)]


def _split_at_restarts(batches: Sequence[CaseBatch], arrivals: Sequence[Arrivals]) -> list[list[Arrivals]]:
    """The batches between restarts."""
    stretches: list[list[Arrivals]] = [[]]
    for batch, arrived in zip(batches, arrivals, strict=True):
        if batch.restart and stretches[-1]:
            stretches.append([])
        stretches[-1].append(arrived)
    return stretches


def _compare_outcomes(case: Case, plan: QueryPlan, outcomes: Sequence[Outcome], reasons: str | None) -> Result:
    failures: list[str] = []
    for number, (batch, outcome) in enumerate(zip(_all_batches(case), outcomes, strict=True), 1):
        difference = compare(batch, outcome, ordered=case.ordered)
        if difference is not None:
            failures.append(f"{'end' if number > len(case.batches) else f'batch {number}'}, {difference}")
    if case.total is not None:
        difference = compare_rows("total", case.total, (sum_rows(plan, outcomes),))
        failures += [] if difference is None else [difference]
    failures += [] if reasons is None else [reasons]
    return Result(case, "failed" if failures else "passed", "\n".join(failures))


def outcome_of(plan: QueryPlan, step: BatchOutput) -> Outcome:
    """The output of a batch as cases compare it."""
    joins = join_plans(plan.relation)
    ports = joins[-1].ports if joins else ()
    sides = [without_generated_names("+".join(leaf.alias for leaf in leaf_plans(port.input))) for port in ports]
    types = _time_types(plan)
    partitions = step.report.partitions
    alone = [tuple(table for p, table in step.unmatched if p == port) for port in (0, 1)]
    is_deduplicated = bool(joins) and isinstance(joins[-1].analyzed, AnalyzedTop)
    return Outcome(
        out=(_as_signed_rows(step.rows) if plan.is_changelog else step.rows,),
        late=tuple(table for _, table in step.late),
        unmatched_left=() if is_deduplicated else alone[0],
        unmatched_right=alone[1],
        duplicates=alone[0] if is_deduplicated else (),
        state=dict(zip(sides, step.report.state, strict=False)),
        partitions=dict(zip(sides, partitions, strict=True)) if partitions else None,
        watermarks={
            without_generated_names(name): _as_time(watermark, types[name])
            for name, watermark in step.report.watermarks.items()
            if name in types
        },
    )


def _as_signed_rows(changes: pa.Table) -> pa.Table:
    """Changes as cases list them, from any executor."""
    if CHANGE not in changes.column_names:
        return changes
    weights = [1 if change == "+" else -1 for change in changes.column(CHANGE).to_pylist()]
    return to_signed_rows(changes.drop_columns([CHANGE]).append_column(WEIGHT, pa.array(weights, pa.int64())))


def _empty_arrivals(script: Script) -> dict[str, pa.Table]:
    return {source.name: table_of(source, ()) for source in script.sources}


def table_of(source: Source, rows: Iterable[CaseRow], path: str = "case") -> pa.Table:
    """Rows of a source; those of a table with their change."""
    try:
        cells = [source_cells(source, row) for row in rows]
    except ValueError as error:
        raise refuse("WRONG_CASE", path=path, reason=error) from None
    return (change_table if source.kind == "table" else arrow_table)(source.fields, cells, path)


def source_cells(source: Source, row: CaseRow) -> Sequence[Any]:
    """The cells of a row of a source by position; of one of a table that names its columns with the change in front."""
    columns = [field.name for field in source.fields]
    cells = cells_of(row, [CHANGE, *columns] if source.kind == "table" else columns, f"`{source.name}`")
    if source.kind == "table" and cells is not row and cells[0] not in ("+", "-"):
        raise ValueError(f"`{CHANGE}` of {row} is neither `+` nor `-`")
    return cells


def _check_expected_columns(case: Case, plan: QueryPlan) -> None:
    """Refuse an expected row that names a column that what it is compared with does not have."""
    joins = join_plans(plan.relation)
    result = [*([CHANGE] if plan.is_changelog else []), *(output.name for output in plan.outputs)]
    late = [port.late for join in joins for port in join.ports]
    unmatched = [[side.unmatched] for side in joins[-1].operator.ports] if joins else []
    content = [name for name in result if name != CHANGE]
    if not plan.is_changelog and any(batch.table is not None for batch in case.batches):
        raise refuse(
            "WRONG_CASE", path=case.path, reason="`table` needs a result that is a table; this one is a stream"
        )
    try:
        _check_columns(case.total, [content], "the result")
        for batch in _all_batches(case):
            _check_columns(batch.out, [result], "the result")
            _check_columns(batch.table, [content], "the result")
            _check_columns(batch.late, late, "the late rows")
            for rows, columns in zip((batch.unmatched_left, batch.unmatched_right), unmatched, strict=False):
                _check_columns(rows, columns, "the unmatched rows")
    except ValueError as error:
        raise refuse("WRONG_CASE", path=case.path, reason=error) from None


def _check_columns(rows: RowList | None, tables: Sequence[Sequence[str]], of: str) -> None:
    """Raise a ValueError for a row whose columns none of the tables has."""
    for row in rows or ():
        problems: list[ValueError] = []
        for columns in tables:
            try:
                cells_of(row, columns, of)
            except ValueError as error:
                problems.append(error)
        if tables and len(problems) == len(tables) and isinstance(row, Mapping):
            # First a name that is in no table, then names that are not in the same one.
            bare = dict.fromkeys(column.partition(".")[2] or column for columns in tables for column in columns)
            cells_of({name.partition(".")[2] or name: None for name in row}, list(bare), of)
            raise problems[0]


def _arrivals(case: Case, batch: CaseBatch, plan: QueryPlan, script: Script) -> Arrivals:
    """The rows of a batch per source, and its watermarks per ``alias.column``."""
    sources = {source.name: source for source in script.sources}
    for name in batch.rows:
        if name not in sources:
            raise refuse(
                "WRONG_CASE", path=case.path, reason=f"`in` names `{name}`, which is not a source of the script"
            )
    tables = {name: table_of(s, batch.rows.get(name, ()), case.path) for name, s in sources.items()}
    watermarks: dict[str, int] = {} if batch.now is None else {NOW: _clock(case, batch.now)}
    watermarks |= {LOADED: 1} if batch.loaded else {}
    for name, value in batch.input_watermarks.items():
        for column in _watermark_columns(case, name, plan):
            watermarks[column] = _watermark_value(case, value, column, _time_types(plan)[column])
    return tables, watermarks


def _clock(case: Case, now: str) -> int:
    try:
        return parse_duration(now)
    except ValueError as error:
        raise refuse("WRONG_CASE", path=case.path, reason=f"`now` is {now!r}: {error}") from None


def _watermark_columns(case: Case, name: str, plan: QueryPlan) -> list[str]:
    """The watermarked columns for a name in ``input_watermarks``: those of a source or alias, or one column."""
    columns = [
        f"{scan.alias}.{w.column}"
        for scan in plan.relation.leaves
        for w in scan.source.watermarks
        if name in {scan.alias, scan.source.name, f"{scan.alias}.{w.column}", f"{scan.source.name}.{w.column}"}
    ]
    if not columns:
        raise refuse(
            "WRONG_CASE", path=case.path, reason=f"`input_watermarks` names `{name}`, which is not a watermarked source"
        )
    return columns


def _watermark_value(case: Case, value: Any, column: str, kind: Any) -> int:
    try:
        number = event_time(cell(value, kind))
    except ValueError:
        number = None
    if number is None:
        raise refuse("WRONG_CASE", path=case.path, reason=f"{value!r} is not a watermark of `{column}`")
    return number


def _time_types(plan: QueryPlan) -> dict[str, pa.DataType]:
    """The watermarked columns of a query with their types."""
    types = {
        f"{scan.alias}.{w.column}": arrow_type(f.type)
        for scan in plan.relation.leaves
        for w in scan.source.watermarks
        for f in scan.source.fields
        if f.name == w.column
    }
    for view in view_plans(plan.relation):
        types |= {outer: types[inner] for inner, outer in view.watermarks if inner in types}
    return types


def _as_time(watermark: int, kind: Any) -> int | datetime | date:
    """A watermark in the type of its column; the end, and times outside the years 1 to 9999, stay numbers."""
    if watermark == END_OF_INPUT or pa.types.is_integer(kind):
        return watermark
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=watermark)
    except OverflowError:
        return watermark
    return moment.date() if pa.types.is_date(kind) else moment if kind.tz else moment.replace(tzinfo=None)


def trace_case(case: Case) -> Lineage:
    """The outcome of each row of a case, by the definitions; refused as its script is.

    An expression that only Spark can evaluate raises `NeedsSparkError`.

    >>> from watersmeet.tools.testing.case import parse_case
    >>> case = parse_case('''
    ... name: a pair
    ... sql: |
    ...   CREATE STREAM l (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
    ...   CREATE STREAM r (id BIGINT, t BIGINT, WATERMARK FOR t AS t - 0);
    ...   SELECT STREAM l.id, l.t, r.t FROM l LEFT JOIN r ON l.id = r.id AND r.t BETWEEN l.t AND l.t + 4;
    ... batches:
    ... - {in: {l: [[1, 5]]}, out: []}
    ... - {in: {r: [[1, 12]]}, out: [[1, 5, null]]}
    ... ''')
    >>> fate = trace_case(case).end(0)
    >>> fate.what, fate.batch, fate.until, fate.by
    ('padded', 1, 9, 1)
    """
    script = script_of(case)
    queries = analyze_case(case, script)
    if len(queries) != 1 or case.fails is not None:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its script has {len(queries)} queries to explain, not one")
    plan = plan_query(in_zone_of_script(queries[0], script), OPERATORS, late="side_output", limits=limits_of(script))
    return lineage_of_case(case, plan, arrivals_of(case, plan, script))


def test(
    case: Case | Path | str, on: Executor = "kernel", spark: SparkSession | None = None, *, any_order: bool = False
) -> None:
    """Run a case in your own tests. If it fails, an AssertionError shows the difference.

    ``on``: ``"kernel"`` and ``"reference"`` run in this process, ``"spark"`` runs in a session. A case that cannot run
    there is skipped. ``any_order``: the case is also run with other batches, orders, restarts and numbers of shards, in
    this process; a query that goes by the order of arrival may then give other rows.

    Example::

        @pytest.mark.parametrize("path", sorted(Path("cases").glob("*.yaml")))
        def test_case(path):
            ws.test(path)
    """
    check_choice("on", on, ("kernel", "reference", "spark"))
    if spark is not None:
        check_session("spark", spark)
    if any_order:
        # It builds on this module.
        from watersmeet.tools.testing.any_order import check_any_order

        result = check_any_order(_case(case))
    else:
        result = run_case(_case(case), on, spark)
    if result.status == "not run":
        raise SkipTest(result.detail)
    if result.status == "failed":
        raise AssertionError(f"{result.case.path}: {result.case.name}\n{result.detail}")


# pytest would take it for a test wherever it is imported by name.
test.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


def _case(case_or_path: Any) -> Case:
    if isinstance(case_or_path, Case):
        return case_or_path
    if not isinstance(case_or_path, Path | str):
        raise wrong("case", case_or_path, "it is not a case", 'name its file: ws.test("cases/late.yaml").')
    return read_case(Path(case_or_path))
