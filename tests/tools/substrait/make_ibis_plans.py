"""Writes `ibis_plans.json`: plans of ibis-substrait, and what ibis itself answers on DuckDB.

It runs in an environment of its own, since ibis-substrait needs versions that Watersmeet does not:

    python -m venv ibis
    ibis/bin/pip install "ibis-substrait==4.0.1" "ibis-framework[duckdb]==9.5.0" "substrait==0.16.0"
    ibis/bin/python -m tests.tools.substrait.make_ibis_plans
"""

from __future__ import annotations

import base64
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.tools.substrait.substrait_plans import COLUMNS, ROWS, count_rows

# A join that is projected at once gets the columns of the join and the names of the projection: a filter or a mutate
# between them is what ibis-substrait 4.0.1 needs.
QUERIES = {
    "filter and project": "orders.filter([orders.amount > 1, orders.note.like('a%')])"
    ".select('id', half=orders.amount / 2, loud=orders.note.upper())",
    "inner join": "orders.inner_join(customers, orders.customer == customers.customer_id)"
    ".filter(lambda r: r.amount > 1).select('id', 'name')",
    "left join": "orders.left_join(customers, orders.customer == customers.customer_id)",
    "right join": "orders.right_join(customers, orders.customer == customers.customer_id)"
    ".mutate(more=ibis._.customer_id + 1).select('id', 'name', 'more')",
    "full join with a rest": "orders.outer_join(customers, [orders.customer == customers.customer_id, "
    "orders.pieces < customers.customer_id]).filter(lambda r: r.name.notnull() | (r.id > 1)).select('id', 'name')",
    "semi join": "orders.semi_join(customers, orders.customer == customers.customer_id)",
    "filtered sides": "orders.filter(orders.amount > 1).left_join(customers.filter(customers.city != 'Ulm'), "
    "[('customer', 'customer_id')])",
    "union all": "ibis.union(orders.select('id', 'note'), customers.select(id='customer_id', note='name'))",
    "members": "orders.filter(orders.note.isin(['asap', 'gift'])).select('id')",
    "times": "orders.filter([orders.placed > ibis.timestamp('2024-01-01 10:30:00'), "
    "orders.day > ibis.date('2024-01-15')]).select('id', year=orders.day.year(), month=orders.day.month())",
    "decimals": "orders.filter(orders.amount.between(1, 10)).select('id', twice=orders.price * 2)",
}

REFUSED = {
    "aggregate": "orders.group_by('customer').agg(n=orders.count())",
    "fetch": "orders.limit(3)",
    "sort": "orders.order_by('id')",
}


def main() -> None:
    """Write the file again."""
    import ibis
    import pandas as pd
    from ibis_substrait.compiler.core import SubstraitCompiler

    connection = ibis.duckdb.connect()
    names = {"ibis": ibis, **{table: ibis.table(schema(columns), name=table) for table, columns in COLUMNS.items()}}
    for table, rows in ROWS.items():
        frame = pd.DataFrame(rows, columns=pd.Index([name for name, _ in schema(COLUMNS[table])]), dtype=object)
        connection.raw_sql(f"CREATE TABLE {table} ({COLUMNS[table].replace('STRING', 'VARCHAR').replace('_NTZ', '')})")
        connection.con.register("frame", frame)
        connection.raw_sql(f"INSERT INTO {table} SELECT * FROM frame")

    def plan_text(text: str) -> str:
        return base64.b64encode(SubstraitCompiler().compile(eval(text, names)).SerializeToString()).decode()

    def answer(text: str) -> list[tuple[str, ...]]:
        found: Any = connection.raw_sql(ibis.to_sql(eval(text, names), dialect="duckdb")).fetchall()
        return sorted(count_rows(found).elements())

    plans = {name: {"query": q, "plan": plan_text(q), "rows": answer(q)} for name, q in QUERIES.items()}
    made = {package: version(package) for package in ("ibis-substrait", "ibis-framework", "substrait")}
    written = {"made with": made, "plans": plans, "refused": {name: plan_text(text) for name, text in REFUSED.items()}}
    Path(__file__).with_name("ibis_plans.json").write_text(json.dumps(written, indent=1) + "\n")


def schema(columns: str) -> list[tuple[str, str]]:
    """The columns of a table in the types of ibis."""
    types = {"BIGINT": "int64", "INT": "int32", "DOUBLE": "float64", "TIMESTAMP_NTZ": "timestamp"}
    pairs = (part.split(" ", 1) for part in columns.replace("10,2", "10;2").split(", "))
    return [(name, types.get(type_, type_.lower().replace(";", ","))) for name, type_ in pairs]


if __name__ == "__main__":
    main()
