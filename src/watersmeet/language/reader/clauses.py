"""Where clauses begin, and which this version does not run: a word is an alias only where no clause begins."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.errors import WatersmeetError
from watersmeet.language.reader import elsewhere
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.leaves import starts_amount
from watersmeet.plan.nodes import JoinKind

_ORDER_HINT = "leave it out: rows are emitted as they match."

_CLAUSES: tuple[elsewhere.ForeignSyntax, ...] = (
    (("CROSS", "JOIN"), "CROSS JOIN", "write JOIN with ON or WITHIN, so that the state stays bounded."),
    (("NATURAL", elsewhere.NAME), "NATURAL JOIN", "name the columns: `JOIN b USING (id)`."),
    (("WINDOW", "BY"), "WINDOW BY", "write `GROUP BY window(t, '5 minutes')`, for example."),
    (("EVENTTIME", "BY"), "EVENTTIME BY", "declare it: `WATERMARK FOR t AS t - INTERVAL 5 SECONDS` in CREATE STREAM."),
    (("SORT", "BY"), "SORT BY", _ORDER_HINT),
    (("CLUSTER", "BY"), "CLUSTER BY", _ORDER_HINT),
    (("DISTRIBUTE", "BY"), "DISTRIBUTE BY", _ORDER_HINT),
    (("LIMIT",), "LIMIT without ORDER BY", "write `ORDER BY x DESC LIMIT 10`, or leave it out: a stream has no end."),
    (
        ("UNION",),
        "UNION of queries",
        "write it as a source: `FROM (SELECT STREAM * FROM a UNION ALL SELECT STREAM * FROM b) AS u`.",
    ),
    (("EXCEPT",), "EXCEPT", "write LEFT ANTI JOIN with a condition on all columns."),
    (("INTERSECT",), "INTERSECT", "write LEFT SEMI JOIN with a condition on all columns."),
    *elsewhere.CLAUSES,
)

_STATEMENTS: tuple[elsewhere.ForeignSyntax, ...] = (
    *elsewhere.STATEMENTS,
    (("CREATE", "OR", "REFRESH"), "CREATE OR REFRESH", "write CREATE SINK: each run declares everything again."),
    (("CREATE", "TEMPORARY"), "CREATE TEMPORARY", "write CREATE STREAM or CREATE VIEW."),
    (("CREATE", "OR"), "CREATE OR REPLACE", "write CREATE STREAM: each run declares everything again."),
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


def refuse_clause(cursor: Cursor) -> WatersmeetError | None:
    """The refusal of the clause that begins here, if it is one that is not supported."""
    return _find_refusal(cursor, _CLAUSES)


def refuse_statement(cursor: Cursor) -> WatersmeetError | None:
    """The refusal of the statement that begins here, if it is one that is not supported."""
    return _find_refusal(cursor, _STATEMENTS)


def _find_refusal(cursor: Cursor, table: tuple[elsewhere.ForeignSyntax, ...]) -> WatersmeetError | None:
    for words, what, hint in table:
        if all(elsewhere.matches(cursor, i, word) for i, word in enumerate(words)):
            shown = [word for word in words if word not in (elsewhere.NAME, elsewhere.VALUE, "(")]
            return cursor.refuse_unsupported(what, hint, len(shown))
    return None


LATE, MALFORMED = ("LATE", "INTO"), ("MALFORMED", "INTO")

KINDS: dict[tuple[str, ...], JoinKind] = {
    ("JOIN",): "inner",
    ("INNER", "JOIN"): "inner",
    ("LEFT", "JOIN"): "left",
    ("LEFT", "OUTER", "JOIN"): "left",
    ("RIGHT", "JOIN"): "right",
    ("RIGHT", "OUTER", "JOIN"): "right",
    ("FULL", "JOIN"): "full",
    ("FULL", "OUTER", "JOIN"): "full",
    ("OUTER", "JOIN"): "full",
    ("LEFT", "SEMI", "JOIN"): "semi",
    ("SEMI", "JOIN"): "semi",
    ("LEFT", "ANTI", "JOIN"): "anti",
    ("ANTI", "JOIN"): "anti",
}

_SUPPORTED = (
    ("QUALIFY", "ROW_NUMBER"),
    ("QUALIFY", "RANK"),
    ("USING", "("),
    LATE,
    MALFORMED,
    ("GROUP", "BY"),
    ("ORDER", "BY"),
    ("STORE", "KEY", "AS"),
    ("STORE", "VALUE", "AS"),
)


def at_clause(cursor: Cursor) -> bool:
    """Whether a clause begins here, so that the next word is no alias."""
    if cursor.at_any({"JOIN", "ON", "WHERE", "HAVING", "AS"}) or cursor.at_statement or refuse_clause(cursor):
        return True
    if cursor.nesting > 0 and cursor.at("UNION"):
        return True
    if join_words(cursor, KINDS) or any(cursor.at(*words) for words in _SUPPORTED) or _at_clause_of_family(cursor):
        return True
    is_within = cursor.at("WITHIN") and (starts_amount(cursor, 1) or cursor.at_any({"("}, ahead=1))
    return is_within or at_watermark(cursor) or at_lateral(cursor)


def _at_clause_of_family(cursor: Cursor) -> bool:
    return any(
        grammar.at_clause(cursor) or any(cursor.at(*words) for words in (*grammar.joins, *grammar.outputs))
        for grammar in cursor.grammars
    )


def at_watermark(cursor: Cursor) -> bool:
    """Whether ``WATERMARK column DELAY OF`` begins here, Spark's clause behind a source."""
    return cursor.at("WATERMARK") and cursor.peek(1).is_name and cursor.at_any({"DELAY"}, ahead=2)


def at_lateral(cursor: Cursor) -> bool:
    """Whether ``LATERAL array AS name`` begins here, and not an alias of that name before a clause."""
    if not cursor.at("LATERAL") or not (cursor.peek(1).is_name or cursor.at_any({"(", "["}, ahead=1)):
        return False
    cursor.position += 1
    is_alias = at_clause(cursor)
    cursor.position -= 1
    return not is_alias


def join_words(cursor: Cursor, kinds: Mapping[tuple[str, ...], JoinKind]) -> tuple[str, ...]:
    """The words of the join that begins here, if it is one of these kinds."""
    return next((words for words in kinds if cursor.at(*words)), ())


def at_join(cursor: Cursor, ahead: int = 0) -> bool:
    """Whether a join of any family begins here, or so many tokens ahead."""
    cursor.position += ahead
    is_join = any(join_words(cursor, kinds) for kinds in (KINDS, *(grammar.joins for grammar in cursor.grammars)))
    cursor.position -= ahead
    return is_join


def read_alias(cursor: Cursor) -> str | None:
    """The alias that comes next, with or without AS."""
    if cursor.at("AS", "OF") and (refused := refuse_clause(cursor)):
        raise refused
    if cursor.take("AS"):
        return cursor.take_name("an alias", "write `orders AS o`, for example.").value
    if cursor.peek().is_name and not at_clause(cursor):
        return cursor.take_bare_alias().value
    return None
