"""The words with which clauses begin, clauses that are not supported, and what to write for syntax of other systems.

A word is an alias only where no clause begins.
"""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.errors import WatersmeetError
from watersmeet.logical.nodes import JoinKind
from watersmeet.parser.cursor import Cursor
from watersmeet.parser.leaves import starts_amount
from watersmeet.parser.sets import at_set_operation

ForeignSyntax = tuple[tuple[str, ...], str, str]
"""The words that begin it, what to call it, and the hint."""

NAME, VALUE = "", "'"
"""Stand for any name, and for any number or text, among the words."""

_CHANGES = "leave it out: SELECT STREAM shows rows as they come, SELECT TABLE a table with all its changes."
_FINAL = "write `EMIT FINAL`: each group comes out once, when the watermark closes its window."
_THEN = "leave it out, or write `JOIN v FOR SYSTEM_TIME AS OF a.t` for the version at the time of a row."
_VERSION = "set the start in the options of the source, for example `startingVersion`."
_FETCH = "write `ORDER BY x LIMIT 10`, or leave it out: a stream has no end."
_SIZE = "write `GROUP BY window(t, '1 hour')`, for example."

CLAUSES: tuple[ForeignSyntax, ...] = (
    (("EMIT", "CHANGES"), "EMIT CHANGES of ksqlDB", _CHANGES),
    (("EMIT", "STREAM"), "EMIT STREAM", _CHANGES),
    (("EMIT", "AFTER"), "EMIT AFTER", _FINAL),
    (("EMIT", "WITHOUT"), "EMIT WITHOUT DELAY", _CHANGES),
    (("GRACE", "PERIOD"), "GRACE PERIOD of ksqlDB",
     "declare how late rows of the stream may be: `WATERMARK FOR t AS t - INTERVAL 5 MINUTES`."),
    (("WINDOW", "TUMBLING"), "WINDOW TUMBLING of ksqlDB", _SIZE),
    (("WINDOW", "HOPPING"), "WINDOW HOPPING of ksqlDB",
     "write `GROUP BY window(t, '1 hour', '10 minutes')`, for example."),
    (("WINDOW", "SESSION"), "WINDOW SESSION of ksqlDB",
     "write `GROUP BY session_window(t, '10 minutes')`, for example."),
    (("PARTITION", "BY"), "PARTITION BY of a query",
     "leave it out: rows are partitioned by the keys of a join or of GROUP BY."),
    (("MATCH_RECOGNIZE", "("), "MATCH_RECOGNIZE", "write the pattern as joins of the stream with itself."),
    (("AS", "OF", "SYSTEM"), "AS OF SYSTEM TIME", _THEN),
    (("AS", "OF", "AT"), "AS OF AT LEAST of Materialize", _THEN),
    (("AS", "OF", "NOW"), "AS OF", _THEN),
    (("AS", "OF", VALUE), "AS OF", _THEN),
    (("TIMESTAMP", "AS", "OF"), "TIMESTAMP AS OF of Delta", _VERSION),
    (("VERSION", "AS", "OF"), "VERSION AS OF of Delta", _VERSION),
    (("OFFSET", VALUE), "OFFSET without ORDER BY",
     "write `ORDER BY x LIMIT 10 OFFSET 20`, or leave it out: without an order no row is the first."),
    (("FETCH", "FIRST"), "FETCH FIRST", _FETCH),
    (("FETCH", "NEXT"), "FETCH NEXT", _FETCH),
)  # fmt: skip
"""Clauses of queries."""

_STREAM = "write `CREATE STREAM name (columns) USING format OPTIONS (...)`."
_RUN = "run the script with `watersmeet run`: all its queries run, each into its sink."
_SET = "leave it out, and END: `watersmeet run` runs all queries of the script, each into its sink."
_NAMES = "leave it out: names belong to their script."
_FUNCTION = "register the function in Spark from Python, and call `ws.sql` there."

STATEMENTS: tuple[ForeignSyntax, ...] = (
    (("CREATE", "SOURCE"), "CREATE SOURCE of Materialize and RisingWave", _STREAM),
    (("CREATE", "CONNECTION"), "CREATE CONNECTION of Materialize",
     "write the address into the options of the source, for example `kafka.bootstrap.servers`."),
    (("CREATE", "SECRET"), "CREATE SECRET", "write `${env:NAME}` or `${file:PATH}` in OPTIONS."),
    (("CREATE", "STREAMING"), "CREATE STREAMING TABLE of Spark's pipelines",
     "write `CREATE SINK name USING format` and `INSERT INTO name SELECT STREAM ...`."),
    (("CREATE", "FLOW"), "CREATE FLOW of Spark's pipelines", "write `INSERT INTO sink SELECT STREAM ...`."),
    (("CREATE", "FUNCTION"), "CREATE FUNCTION", _FUNCTION),
    (("CREATE", "TEMPORARY", "FUNCTION"), "CREATE TEMPORARY FUNCTION", _FUNCTION),
    (("CREATE", "INDEX"), "CREATE INDEX", "leave it out: a join finds its rows by its keys."),
    (("CREATE", "CATALOG"), "CREATE CATALOG", _NAMES),
    (("CREATE", "DATABASE"), "CREATE DATABASE", _NAMES),
    (("CREATE", "SCHEMA"), "CREATE SCHEMA", _NAMES),
    (("CREATE", "CLUSTER"), "CREATE CLUSTER of Materialize", "leave it out: `watersmeet run --master` says where."),
    (("EXECUTE", "STATEMENT"), "EXECUTE STATEMENT SET of Flink", _SET),
    (("EXECUTE",), "EXECUTE", _RUN),
    (("BEGIN", "STATEMENT"), "BEGIN STATEMENT SET of Flink", _SET),
    (("BEGIN",), "BEGIN", _RUN),
    (("END",), "END", _RUN),
    (("SUBSCRIBE",), "SUBSCRIBE of Materialize", "write a SELECT without INSERT INTO: its rows go to the console."),
    (("TAIL",), "TAIL of Materialize", "write a SELECT without INSERT INTO: its rows go to the console."),
    (("PRINT",), "PRINT of ksqlDB", "write a SELECT without INSERT INTO: its rows go to the console."),
    (("TERMINATE",), "TERMINATE of ksqlDB", "stop the run with Ctrl-C; the next one continues."),
    (("ADD", "JAR"), "ADD JAR", "name it when you run: `watersmeet run --jars FILE.jar`."),
    (("RESET",), "RESET", "delete the SET from the script."),
    (("REFRESH",), "REFRESH", "leave it out: queries read new rows by themselves."),
    (("ANALYZE",), "ANALYZE", "run `watersmeet explain` on the script."),
    (("TRUNCATE",), "TRUNCATE", "delete the files, or filter with WHERE in a query."),
    (("VALUES",), "VALUES", "put the rows into a file and declare it with CREATE STREAM."),
)  # fmt: skip
"""Statements."""


def matches(cursor: Cursor, ahead: int, word: str) -> bool:
    """Whether the token so far ahead is this word, or what `NAME` and `VALUE` stand for."""
    if word == NAME:
        return cursor.peek(ahead).is_name
    if word == VALUE:
        return cursor.peek(ahead).kind in ("number", "string")
    return cursor.at_any({word}, ahead)


def refuse_if_not_exists(cursor: Cursor) -> None:
    """Refuse IF NOT EXISTS before the name of a declaration."""
    if cursor.at("IF", "NOT", "EXISTS"):
        raise cursor.refuse_unsupported("IF NOT EXISTS", "leave it out: each run declares everything again.", 3)


def refuse_after_columns(cursor: Cursor, name: str) -> WatersmeetError | None:
    """The refusal of what others write behind the columns of a source or sink; None if it is something else."""
    if cursor.at("WITH", "("):
        system, written = _translate_options(_properties(cursor))
        return cursor.refuse_unsupported(f"WITH (...) of {system}", f"write `{written}`.")
    if cursor.at("LOCATION") and cursor.peek(1).kind == "string":
        return cursor.refuse_unsupported("LOCATION", f"write `OPTIONS (path '{cursor.peek(1).value}')`.", 2)
    if cursor.at("FROM") and cursor.peek(1).is_name:
        hint = f"write `CREATE SINK {name} USING format` and `INSERT INTO {name} SELECT * FROM {cursor.peek(1).text}`."
        return cursor.refuse_unsupported("FROM after the name of a sink", hint)
    for words, hint in _BEHIND:
        if all(matches(cursor, i, word) for i, word in enumerate(words)):
            construct = " ".join(word for word in words if word not in (VALUE, "("))
            return cursor.refuse_unsupported(f"{construct} behind {name}", hint)
    return None


def refuse_watermark_after_columns(cursor: Cursor, kind: str, name: str, *, columns: bool) -> WatersmeetError:
    """The refusal of a watermark that is not among the columns of a source; ``columns``: whether it has any."""
    column = cursor.peek(2 if cursor.peek(1).word == "FOR" else 1)
    text = column.text if column.is_name else "t"
    inside = f"({'..., ' * columns}WATERMARK FOR {text} AS {text} - INTERVAL 5 SECONDS)"
    hint = f"write it in the bracket after the name: `CREATE {kind.upper()} {name} {inside}`."
    return cursor.refuse_unsupported(f"WATERMARK after {name}", hint)


_BEHIND = (
    (("PARTITIONED", "BY"), "leave it out: folders named `column=value` below the path are found automatically."),
    (("PARTITION", "BY"), "leave it out: rows are partitioned by the keys of a join."),
    (("CLUSTERED", "BY"), "leave it out: rows are partitioned by the keys of a join."),
    (("CLUSTER", "BY"), "leave it out: rows are partitioned by the keys of a join."),
    (("TBLPROPERTIES", "("), "write them as `OPTIONS (name 'value')`, if the format has them."),
    (("STORED", "AS"), "write `USING parquet`, for example."),
    (("COMMENT", VALUE), "write a comment: `-- text`."),
    (("FORMAT",), "write `OPTIONS (value.format 'json')`, for example."),
    (("ENVELOPE",), "write `CHANGES FROM debezium` after CREATE TABLE."),
)


def _translate_options(options: dict[str, str]) -> tuple[str, str]:
    """The system that writes these behind WITH, and what to write for them."""
    system = "ksqlDB" if any(name in options for name in ("kafka_topic", "value_format")) else "Flink"
    topic, path = options.get("kafka_topic") or options.get("topic"), options.get("path")
    format_ = options.get("value_format") or options.get("value.format") or options.get("format") or "json"
    if topic is not None:
        servers = options.get("properties.bootstrap.servers", "host:9092")
        options_text = f"subscribe '{topic}', kafka.bootstrap.servers '{servers}', value.format '{format_.lower()}'"
        return system, f"USING kafka OPTIONS ({options_text})"
    if path is not None:
        return system, f"USING {format_.lower()} OPTIONS (path '{path}')"
    return system, "USING format OPTIONS (name 'value')"


def refuse_instead_of_columns(cursor: Cursor, kind: str, name: str) -> WatersmeetError | None:
    """The refusal of what others write in place of the columns of a source; None if it is something else."""
    ahead = _behind_bracket(cursor, 1) if cursor.at("WITH", "(") else 0
    if not cursor.at_any({"AS"}, ahead) or not cursor.at_any({"SELECT", "WITH", "("}, ahead + 1):
        return refuse_after_columns(cursor, name) if cursor.at("WITH", "(") else None
    format_ = _translate_options(_properties(cursor))[1] if ahead else "USING format OPTIONS (name 'value')"
    stored = f"`CREATE SINK {name} {format_}` and `INSERT INTO {name} SELECT ...`"
    hint = f"write `CREATE VIEW {name} AS SELECT ...`, or to store its rows {stored}."
    return cursor.refuse_unsupported(f"CREATE {kind.upper()} AS SELECT", hint, 1)


def _behind_bracket(cursor: Cursor, ahead: int) -> int:
    """The distance to the token behind the bracket that opens ``ahead``."""
    while cursor.peek(ahead).kind != "end" and not cursor.at_any({")", ";"}, ahead):
        ahead += 1
    return ahead + 1


def refuse_constraint(cursor: Cursor, column: str = "column") -> WatersmeetError | None:
    """The refusal of what others write behind the type of a column; None if it is something else."""
    if cursor.at("PRIMARY", "KEY") and not cursor.at_any({"("}, ahead=2):
        hint = f"write `PRIMARY KEY ({column})` after the columns."
        return cursor.refuse_unsupported("PRIMARY KEY of a column", hint, 2)
    if cursor.at("NOT", "ENFORCED"):
        hint = "leave NOT ENFORCED out: a row replaces the one before it with the same key."
        return cursor.refuse_unsupported("NOT ENFORCED", hint, 2)
    for word, hint in (
        ("DEFAULT", "leave it out, and write `coalesce(x, 0)` in SELECT."),
        ("GENERATED", "compute it in a view: `CREATE VIEW v AS SELECT STREAM *, ... AS x FROM s`."),
        ("METADATA", "leave it out; `_key` is the key of a record."),
        ("UNIQUE", "leave it out: it is not checked."),
        ("REFERENCES", "leave it out: it is not checked."),
        ("CHECK", "leave it out, and filter with WHERE."),
        ("KEY", "leave it out, and name it in `OPTIONS (key 'column')`."),
        ("NULL", "leave it out: a column may be NULL unless NOT NULL says otherwise."),
    ):
        if cursor.at(word) and cursor.peek(1).word not in _TYPES_FOLLOW:
            return cursor.refuse_unsupported(f"{word} of a column", hint)
    return None


_TYPES_FOLLOW = frozenset({"STRING", "BIGINT", "INT", "DOUBLE", "BOOLEAN", "TIMESTAMP", "DATE", "DECIMAL", "BINARY"})


def _properties(cursor: Cursor) -> dict[str, str]:
    """The names and values of ``WITH (name = value, ...)``, names in small letters."""
    properties, ahead = dict[str, str](), 2
    while cursor.peek(ahead).kind != "end" and not cursor.at_any({")", ";"}, ahead):
        if cursor.at_any({"="}, ahead + 1):
            properties[cursor.peek(ahead).value.lower()] = cursor.peek(ahead + 2).value
        ahead += 1
    return properties


_ORDER_HINT = "leave it out: rows are emitted as they match."

_CLAUSES: tuple[ForeignSyntax, ...] = (
    (("WINDOW", "BY"), "WINDOW BY", "write `GROUP BY window(t, '5 minutes')`, for example."),
    (("EVENTTIME", "BY"), "EVENTTIME BY", "declare it: `WATERMARK FOR t AS t - INTERVAL 5 SECONDS` in CREATE STREAM."),
    (("SORT", "BY"), "SORT BY", _ORDER_HINT),
    (("CLUSTER", "BY"), "CLUSTER BY", _ORDER_HINT),
    (("DISTRIBUTE", "BY"), "DISTRIBUTE BY", _ORDER_HINT),
    (("LIMIT",), "LIMIT without ORDER BY", "write `ORDER BY x DESC LIMIT 10`, or leave it out: a stream has no end."),
    (("UNION", "BY", "NAME"), "UNION BY NAME", "name the columns of each part in one order, and leave BY NAME out."),
    (
        ("UNION", "ALL", "BY", "NAME"),
        "UNION ALL BY NAME",
        "name the columns of each part in one order, and leave BY NAME out.",
    ),
    (("UNION",), "UNION without a query behind it", "write `UNION ALL SELECT * FROM b`."),
    (("EXCEPT",), "EXCEPT without a query behind it", "write `EXCEPT SELECT * FROM b`."),
    (("INTERSECT",), "INTERSECT without a query behind it", "write `INTERSECT SELECT * FROM b`."),
    *CLAUSES,
)

_STATEMENTS: tuple[ForeignSyntax, ...] = (
    *STATEMENTS,
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


def _find_refusal(cursor: Cursor, table: tuple[ForeignSyntax, ...]) -> WatersmeetError | None:
    for words, construct, hint in table:
        if all(matches(cursor, i, word) for i, word in enumerate(words)):
            shown = [word for word in words if word not in (NAME, VALUE, "(")]
            return cursor.refuse_unsupported(construct, hint, len(shown))
    return None


LATE, MALFORMED, DUPLICATES = ("LATE", "INTO"), ("MALFORMED", "INTO"), ("DUPLICATES", "INTO")

EMIT_ONCE = (("EMIT", "FINAL"), ("EMIT", "ON", "WINDOW", "CLOSE"))
"""The words, of ksqlDB and of RisingWave, for what SELECT STREAM says of groups."""

_KINDS: dict[tuple[str, ...], JoinKind] = {
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

_COMPARISONS = frozenset({
    "<", "<=", "=", ">", ">=", "<>", "!=", "<=>", "+", "-", "*", "/", "%", "BETWEEN", "IN", "IS", "NOT", "DIV",
})  # fmt: skip
"""Operators that may stand behind the name of a rank in QUALIFY."""

KINDS: dict[tuple[str, ...], JoinKind] = {
    **_KINDS,
    ("CROSS", "JOIN"): "inner",
    **{("NATURAL", *words): kind for words, kind in _KINDS.items()},
}
"""The words of plain joins."""

_SUPPORTED = (
    ("QUALIFY", "ROW_NUMBER"),
    ("QUALIFY", "RANK"),
    ("QUALIFY", "DENSE_RANK"),
    ("USING", "("),
    LATE,
    MALFORMED,
    DUPLICATES,
    ("GROUP", "BY"),
    ("ORDER", "BY"),
    ("STORE", "KEY", "AS"),
    ("STORE", "VALUE", "AS"),
    *EMIT_ONCE,
)


def at_clause(cursor: Cursor) -> bool:
    """Whether a clause begins here, so that the next word is not an alias."""
    if cursor.at_any({"JOIN", "ON", "WHERE", "HAVING", "AS"}) or cursor.at_statement or refuse_clause(cursor):
        return True
    if at_set_operation(cursor):
        return True
    if join_words(cursor, KINDS) or any(cursor.at(*words) for words in _SUPPORTED) or _at_clause_of_family(cursor):
        return True
    if cursor.at("WINDOW") and cursor.peek(1).is_name and cursor.at_any({"AS"}, ahead=2):
        return True
    if cursor.at("QUALIFY") and cursor.peek(1).is_name and cursor.at_any(_COMPARISONS, ahead=2):
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
