"""Names of tables and columns stay names in the SQL that sinks write."""

from __future__ import annotations

import re

import pytest

from watersmeet.catalog import Sink
from watersmeet.formats.databases import PostgresSink

pytest.importorskip("psycopg", reason="the driver of Postgres is not installed")

HOSTILE = 'x"; DROP TABLE victims; --'


def test_names_stay_names_in_the_sql_of_postgres() -> None:
    from watersmeet.spark.connectors.postgres import Postgres

    sink = PostgresSink(Sink("out", "postgres", {"table": f"shop.{HOSTILE}"}))
    target = Postgres(sink, "query", (HOSTILE,))
    parts = (target._insertion([HOSTILE, "v"]), *target._matches)  # pyright: ignore[reportPrivateUsage]
    for text in (part.as_string() for part in parts):
        assert "DROP TABLE" in text
        # What is left without the quoted names is ours.
        assert "DROP" not in re.sub(r'"(?:[^"]|"")*"', "", text), text
