"""``CREATE [OR REPLACE] [TEMPORARY] VIEW name AS query``: a query under a name."""

from __future__ import annotations

from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.queries import read_inner
from watersmeet.language.reader.subqueries import close_query
from watersmeet.plan.nodes import View

_HINT = "write `CREATE VIEW recent AS SELECT STREAM * FROM orders`, for example."
_BEGINNINGS = tuple(
    ("CREATE", *replace, *temporary, "VIEW")
    for replace in ((), ("OR", "REPLACE"))
    for temporary in ((), ("TEMPORARY",), ("TEMP",))
)
"""All that is ignored before VIEW: a script declares everything anew, and only for itself."""


def at_view(cursor: Cursor) -> bool:
    """Whether CREATE VIEW begins here, in any of its spellings."""
    return any(cursor.at(*words) for words in _BEGINNINGS)


def read_view(cursor: Cursor) -> View:
    """A view, up to the end of its statement."""
    first = cursor.position
    cursor.skip(next(len(words) for words in _BEGINNINGS if cursor.at(*words)))
    cursor.take("IF", "NOT", "EXISTS")
    name = cursor.take_name("the name of the view", _HINT)
    if cursor.at("("):
        raise cursor.unsupported("A list of columns behind a name", "name the columns in the query, with AS.")
    cursor.expect("AS", _HINT)
    opening = cursor.position
    if not cursor.at("("):
        return View(name.value, read_inner(cursor), cursor.span_from(first))
    cursor.next()
    cursor.nesting += 1
    query = read_inner(cursor)
    close_query(cursor, opening)
    if not cursor.at_end:
        raise cursor.failure("`;`", "end the statement with `;`.")
    return View(name.value, query, cursor.span_from(first))
