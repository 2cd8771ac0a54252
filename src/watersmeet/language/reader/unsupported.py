"""What the language has, or other SQL has, and this version does not run: each with what to write instead."""

from __future__ import annotations

from watersmeet.errors import WatersmeetError
from watersmeet.language.reader.cursor import Cursor

_NAME = ""
"""Stands for any name in the table below."""

_ORDER_HINT = "leave it out: rows come out as they meet."

_CLAUSES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("CROSS", "JOIN"), "CROSS JOIN", "write JOIN with ON or WITHIN, so that the state stays bounded."),
    (("NATURAL", _NAME), "NATURAL JOIN", "name the columns: `JOIN b USING (id)`."),
    (
        ("HAVING",),
        "HAVING",
        "write a query over this one: `WITH v AS (SELECT ... GROUP BY ...) SELECT ... FROM v WHERE ...`.",
    ),
    (("WINDOW", "BY"), "WINDOW BY", "write `GROUP BY window(t, '5 minutes')`, for example."),
    (("EVENTTIME", "BY"), "EVENTTIME BY", "declare it: `WATERMARK FOR t AS t - INTERVAL 5 SECONDS` in CREATE STREAM."),
    (("ORDER", "BY"), "ORDER BY", _ORDER_HINT),
    (("SORT", "BY"), "SORT BY", _ORDER_HINT),
    (("CLUSTER", "BY"), "CLUSTER BY", _ORDER_HINT),
    (("DISTRIBUTE", "BY"), "DISTRIBUTE BY", _ORDER_HINT),
    (("LIMIT",), "LIMIT", "leave it out: a stream has no end."),
    (
        ("UNION",),
        "UNION of queries",
        "write it as a source: `FROM (SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`.",
    ),
    (("EXCEPT",), "EXCEPT", "write LEFT ANTI JOIN with a condition on all columns."),
    (("INTERSECT",), "INTERSECT", "write LEFT SEMI JOIN with a condition on all columns."),
)

_STATEMENTS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("CREATE", "TEMPORARY"), "CREATE TEMPORARY", "write CREATE STREAM or CREATE VIEW."),
    (("CREATE", "OR"), "CREATE OR REPLACE", "write CREATE STREAM: a script declares everything anew."),
    (("CREATE", "MATERIALIZED"), "CREATE MATERIALIZED VIEW", "write CREATE VIEW, and SELECT TABLE in its query."),
    (("CREATE", "EXTERNAL"), "CREATE EXTERNAL", "write CREATE STREAM."),
    (("INSERT", "OVERWRITE"), "INSERT OVERWRITE", "write INSERT INTO: a stream adds rows."),
    (("DROP",), "DROP", "delete the declaration from the script."),
    (("DELETE",), "DELETE", "filter with WHERE in a query."),
    (("UPDATE",), "UPDATE", "compute the new value in SELECT."),
    (("MERGE",), "MERGE", "write INSERT INTO ... SELECT."),
    (("ALTER",), "ALTER", "change the declaration in the script."),
    (("EXPLAIN",), "EXPLAIN", "run `watersmeet explain` on the script."),
    (("SHOW",), "SHOW", "run `watersmeet check` on the script."),
    (("DESCRIBE",), "DESCRIBE", "run `watersmeet explain` on the script."),
    (("USE",), "USE", "name every stream without a database."),
    (("CACHE",), "CACHE", "leave it out: a stream is read once."),
)


def refused_clause(cursor: Cursor) -> WatersmeetError | None:
    """The refusal of the clause that begins here, if it is one that is not supported."""
    return _find(cursor, _CLAUSES)


def refused_statement(cursor: Cursor) -> WatersmeetError | None:
    """The refusal of the statement that begins here, if it is one that is not supported."""
    return _find(cursor, _STATEMENTS)


def _find(cursor: Cursor, table: tuple[tuple[tuple[str, ...], str, str], ...]) -> WatersmeetError | None:
    for words, what, hint in table:
        if all(_matches(cursor, i, word) for i, word in enumerate(words)):
            return cursor.unsupported(what, hint, len([word for word in words if word not in (_NAME, "(")]))
    return None


def _matches(cursor: Cursor, ahead: int, word: str) -> bool:
    if word == _NAME:
        return cursor.peek(ahead).is_name
    return cursor.at_any({word}, ahead)
