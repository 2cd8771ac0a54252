"""Plans of two producers over the same three small tables, each with the producer's own answer.

DataFusion writes and answers its plans here. ibis-substrait needs an older sqlglot than Watersmeet, so its plans and
the answers of ibis were written down once, by `make_ibis_plans.py`, which stands beside this file.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]

COLUMNS = {
    "orders": "id BIGINT, customer BIGINT, amount DOUBLE, note STRING, placed TIMESTAMP_NTZ, day DATE, "
    "price DECIMAL(10,2), pieces INT",
    "customers": "customer_id BIGINT, name STRING, city STRING",
    "items": "order_id BIGINT, sku STRING, packed INT",
}

ROWS: Mapping[str, list[Row]] = {
    "orders": [
        (1, 10, 2.5, "asap", datetime(2024, 1, 1, 10), date(2024, 1, 1), Decimal("1.25"), 3),
        (2, 10, 0.5, None, datetime(2024, 1, 1, 11), date(2024, 1, 2), Decimal("9.99"), 7),
        (3, 20, 4.0, "gift", datetime(2024, 1, 2, 9, 30), date(2024, 2, 1), None, -5),
        (4, 40, 8.0, "", None, None, Decimal("0.10"), 0),
        (5, None, 16.0, "a%b", datetime(2023, 12, 31), date(2023, 12, 31), Decimal("100.00"), None),
        (5, None, 16.0, "a%b", datetime(2023, 12, 31), date(2023, 12, 31), Decimal("100.00"), None),
        (6, 20, None, "Asap", datetime(2024, 3, 1), date(2024, 3, 1), Decimal("-2.50"), 1),
    ],
    "customers": [(10, "Ada", "Ulm"), (20, "Ben", None), (20, "Ben", None), (30, "Cid", "Jena"), (None, "Dee", "Ulm")],
    "items": [(1, "x", 1), (1, "y", 2), (3, "x", None), (7, "z", 5), (None, "w", 0)],
}

QUERIES = {
    "filter and project": "SELECT id, upper(note) AS note, amount / 2 AS half FROM orders WHERE note LIKE 'a%'",
    "inner join": "SELECT o.id, c.name FROM orders o JOIN customers c ON o.customer = c.customer_id",
    "left join with a rest": "SELECT o.id, o.amount, c.name, c.customer_id FROM orders o "
    "LEFT JOIN customers c ON o.customer = c.customer_id AND o.pieces < c.customer_id - 15 WHERE o.id <> 6",
    "right join": "SELECT o.id, c.name FROM orders o RIGHT JOIN customers c ON o.customer = c.customer_id",
    "full join of filtered tables": "SELECT o.id, c.name FROM (SELECT * FROM orders WHERE amount > 1) o "
    "FULL JOIN (SELECT * FROM customers WHERE city IS NULL OR city <> 'Jena') c ON o.customer = c.customer_id",
    "semi join": "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE c.customer_id = o.customer)",
    "anti join": "SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM items i WHERE i.order_id = o.id)",
    "an inequality": "SELECT o.id, c.customer_id FROM orders o JOIN customers c ON o.pieces * 4 < c.customer_id",
    "three tables": "SELECT c.name, o.id, i.sku FROM customers c LEFT JOIN orders o ON o.customer = c.customer_id "
    "LEFT JOIN items i ON i.order_id = o.id",
    "a join on the right side": "SELECT c.name, x.id, x.sku FROM customers c LEFT JOIN "
    "(SELECT o.id, o.customer, i.sku FROM orders o JOIN items i ON i.order_id = o.id) x ON x.customer = c.customer_id",
    "a computed key on the padded side": "SELECT o.id, c.label FROM orders o LEFT JOIN "
    "(SELECT customer_id * 2 AS twice, coalesce(city, 'none') AS label FROM customers) c ON o.customer * 2 = c.twice",
    "a table with itself": "SELECT a.id, b.id FROM orders a JOIN orders b ON a.customer = b.customer AND a.id < b.id",
    "union all": "SELECT id, note FROM orders WHERE id > 2 UNION ALL SELECT customer_id, name FROM customers",
    "a join with a union": "SELECT u.key, i.sku FROM (SELECT id AS key FROM orders UNION ALL "
    "SELECT customer_id FROM customers) u JOIN items i ON u.key = i.order_id",
    "text": "SELECT id, lower(note) l, substr(note, 1, 2) s, note || '!' c, concat(note, '!') k, length(note) n, "
    "trim(note) t, replace(note, 's', 'it''s \\ ') r, starts_with(note, 'as') b, note ILIKE 'A%' e "
    "FROM orders",
    "numbers": "SELECT id, pieces / 2 q, pieces % 2 m, -pieces n, abs(pieces) a, amount * 1e10 f, price * 2 d, "
    "price + amount s, CAST(amount AS INT) i, id - pieces j FROM orders",
    "logic": "SELECT id, customer IS NULL a, NOT (amount > 3) b, customer IS DISTINCT FROM 20 c, id IN (1, 3, 5) d, "
    "CASE WHEN amount > 3 THEN 'big' WHEN amount > 1 THEN 'mid' ELSE 'small' END e, CASE id WHEN 1 THEN 'one' END f, "
    "coalesce(note, 'none') g, nullif(id, 3) h, (amount > 3) IS TRUE i, id BETWEEN 2 AND 4 j, "
    "coalesce(note, CAST(pieces AS VARCHAR)) k FROM orders",
    "times": "SELECT id, extract(year FROM placed) y, extract(month FROM day) m, extract(hour FROM placed) h, "
    "placed > timestamp '2024-01-01 10:30:00' a, day <= date '2024-01-01' b, placed + interval '90 minutes' c "
    "FROM orders",
}
"""Queries for DataFusion by what they are about."""

_IBIS = Path(__file__).with_name("ibis_plans.json")


@dataclass(frozen=True)
class PlanWithRows:
    """A plan, and the rows that its producer gives for it."""

    plan: bytes
    rows: Counter[tuple[str, ...]]


@cache
def datafusion() -> Any:
    """A DataFusion context that knows the tables."""
    import pyarrow as pa
    from datafusion import SessionContext

    from watersmeet.schema import arrow_type

    context = SessionContext()
    for table, columns in COLUMNS.items():
        names = [(part.split()[0], part.split()[1]) for part in columns.replace("10,2", "10;2").split(", ")]
        types = [arrow_type(type_.replace(";", ",")) for _, type_ in names]
        arrays = [pa.array(values, t) for values, t in zip(zip(*ROWS[table], strict=True), types, strict=True)]
        batch = pa.record_batch(arrays, names=[name for name, _ in names])
        context.register_record_batches(table, [[batch]])
    return context


def plan_of(sql: str) -> bytes:
    """The plan that DataFusion writes for a query."""
    from datafusion.substrait import Serde

    return Serde.serialize_bytes(sql, datafusion())


def by_datafusion(sql: str) -> PlanWithRows:
    """The plan and the answer of DataFusion."""
    tables = datafusion().sql(sql).collect()
    rows = [tuple(column[i].as_py() for column in batch.columns) for batch in tables for i in range(batch.num_rows)]
    return PlanWithRows(plan_of(sql), count_rows(rows))


def ibis_names() -> list[str]:
    """What the plans of ibis are about."""
    return list(json.loads(_IBIS.read_text("utf-8"))["plans"])


def by_ibis(name: str) -> PlanWithRows:
    """A plan of ibis-substrait and the answer of ibis, as they were written down."""
    found = json.loads(_IBIS.read_text("utf-8"))["plans"][name]
    return PlanWithRows(base64.b64decode(found["plan"]), Counter(tuple(row) for row in found["rows"]))


def count_rows(rows: Iterable[Row]) -> Counter[Any]:
    """Rows as a multiset of texts, in which a number is the same whatever type it came in."""
    return Counter(tuple(_value_text(value) for value in row) for row in rows)


def _value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float | Decimal):
        return f"{Decimal(str(value)).normalize():f}"
    return str(value)
