"""Made-up histories of a query that joins orders and deliveries, for the tests of the page."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from watersmeet.cli.init import init_project
from watersmeet.cli.script import open_script
from watersmeet.locations import Storage
from watersmeet.metrics.history import HistoryWriter, QueryEvent
from watersmeet.metrics.metrics import OperatorMetrics, SideMetrics
from watersmeet.metrics.progress import Progress
from watersmeet.tools.studio.page.description import QueryDescription, describe_queries

SECOND = 1_000_000
JOIN = "o and d"


def batch(
    number: int, at: float, orders: int = 400, deliveries: int = 300, kept: tuple[int, int] = (900, 200), late: int = 0
) -> Progress:
    """A batch of the query that `init` writes; orders are five minutes old, deliveries six."""
    own = {"o.order_time": int((at - 300) * SECOND), "d.delivery_time": int((at - 360) * SECOND)}
    marks = {"o.order_time": own["d.delivery_time"] - 3600 * SECOND, "d.delivery_time": own["d.delivery_time"]}
    sides = {
        "left": SideMetrics(orders, late, 40, 0, kept[0]),
        "right": SideMetrics(deliveries, 0, 0, 0, kept[1]),
    }
    numbers = OperatorMetrics(
        "interval", 0.4, events=290, events_processed=orders + deliveries, matched=250, padded=40, late=late,
        state_rows=sum(kept), seconds=0.4, shards=2, sides=sides,
    )  # fmt: skip
    return Progress(
        "joined", number, orders + deliveries, 290, 250, 40, late, sum(kept), seconds=0.8, operators={JOIN: numbers},
        marks=marks, own=own, temporal=frozenset(own), sources={"orders": orders, "deliveries": deliveries},
        state_bytes=95 * sum(kept), at=at, parts={"addBatch": 0.6, "queryPlanning": 0.1, "walCommit": 0.05},
    )  # fmt: skip


def start_event(at: float) -> QueryEvent:
    """That this process has started the query."""
    return QueryEvent("started", at, process=os.getpid())


def project(folder: Path) -> QueryDescription:
    """A project as `init` writes it, and the query in it."""
    init_project(folder)
    opened = open_script(folder)
    [query] = describe_queries(opened.script, opened.queries, folder / "storage")
    return query


def write(storage: Storage, *records: Progress | QueryEvent, query: str = "joined") -> None:
    """Write a history."""
    log = HistoryWriter(storage, query)
    for record in records:
        log.append(replace(record, query=query) if isinstance(record, Progress) else record)
