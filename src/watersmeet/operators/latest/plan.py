"""The entry of the latest row per key: of a stream that is shown as a table, and of a source that gives upserts.

`FORECAST` says what the state will hold: one row per key.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.catalog import Source
from watersmeet.logical.expressions import Expr
from watersmeet.logical.query import AnalyzedQuery, Output
from watersmeet.logical.relation import AnalyzedScan, AnalyzedView
from watersmeet.operators.core.changes import OP, POSITION
from watersmeet.operators.core.operator import Port
from watersmeet.operators.explainer import PortRetention
from watersmeet.operators.latest.kernel import LatestOperator
from watersmeet.physical.nodes import JoinPlan, PortPlan, ScanPlan, StagePlanner, Types, ViewPlan
from watersmeet.physical.ports import CODE, leaf_column
from watersmeet.schema import EXACT

LATEST = "#latest"
"""The source of the rows of which the latest per key is stored."""


def rows(query: AnalyzedQuery, outputs: tuple[Output, ...]) -> tuple[AnalyzedView, tuple[Output, ...]]:
    """The result with its key; and the columns of that result."""
    assert query.key, "the analysis refuses a table without a key"
    keys = tuple(Output(f"#key{n}", expr) for n, expr in enumerate(query.key))
    inner = replace(query, outputs=(*outputs, *keys), result="stream")
    shown = tuple(Output(output.name, leaf_column(LATEST, output.name)) for output in outputs)
    return AnalyzedView(LATEST, Source(LATEST, ()), inner), shown


def plan(query: AnalyzedQuery, view: AnalyzedView, rows: ViewPlan, types: Types) -> JoinPlan:
    """The plan of a table that has the latest row of a stream for every key."""
    keys = tuple(f"{LATEST}.#key{n}" for n in range(len(query.key)))
    columns = tuple(column for column in rows.columns if column not in keys)
    port = _port(columns, keys, query.key, types)
    why = (
        "latest row per key: the result is a table, in which a row replaces the previous one with its key",
        "sharded by the key of the result",
    )
    return JoinPlan(
        (_port_plan(rows, rows.columns, port),),
        LatestOperator(port, append=True),
        columns,
        (),
        why,
        query,
        name_prefix="the table ",
    )


def table(scan: AnalyzedScan, plan: ScanPlan, types: Types) -> JoinPlan:
    """A table with a primary key as changes with weights: the stage that finds the row that an upsert replaces."""
    names = [field.name for key in scan.source.primary_key if (field := scan.source.field(key)) is not None]
    keys = tuple(f"{scan.alias}.{name}" for name in names)
    columns = tuple(f"{scan.alias}.{name}" for name in plan.columns)
    port = _port(columns, keys, tuple(leaf_column(scan.alias, name) for name in names), types)
    why = ("table by its primary key: an upsert retracts the row that it replaces", "sharded by the primary key")
    return JoinPlan(
        (_port_plan(plan, (*columns, OP), port),),
        LatestOperator(port),
        columns,
        (),
        why,
        scan,
        name_prefix="the table ",
    )


def _port(columns: tuple[str, ...], keys: tuple[str, ...], exprs: tuple[Expr, ...], types: Types) -> Port:
    exact = len(keys) == 1 and types.type_of(exprs[0]) in EXACT
    return Port(columns, (), keys, keys[0] if exact else CODE, exact)


def _port_plan(rows: ViewPlan | ScanPlan, columns: tuple[str, ...], port: Port) -> PortPlan:
    hashed = () if port.exact else port.keys
    return PortPlan(rows, columns, code=port.code, hashed=hashed, route="key", position=POSITION)


PLAN = StagePlanner(lambda query: query.result == "table" and query.relation.result == "stream", rows, plan, table)


def forecast(plan: JoinPlan) -> tuple[PortRetention, ...]:
    """A row per key."""
    return (PortRetention(0, "keys", law="the latest row of every key"),)


FORECAST = forecast
