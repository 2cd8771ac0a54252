"""What stands at the end of a query: further outputs, and how the result is stored.

The further outputs are ``LATE INTO sink``, ``MALFORMED INTO sink`` and those of the families, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

from watersmeet.catalog import NOWHERE, Span
from watersmeet.formats.malformed import SHOWN
from watersmeet.language.reader.clauses import LATE, MALFORMED
from watersmeet.language.reader.cursor import Cursor
from watersmeet.plan.nodes import SideOutput, StorageFormats

SinkName = tuple[str | None, Span]
"""The name of a sink and its place."""

_NONE: SinkName = (None, NOWHERE)
_STORE = "write `STORE KEY AS string VALUE AS json`, for example."


@dataclass(frozen=True)
class QueryTarget:
    """Where a query writes to; ``is_inner``: it is a view or a subquery, which has no outputs of its own."""

    into: SinkName = _NONE
    store: StorageFormats | None = None
    is_inner: bool = False


@dataclass(frozen=True)
class Outputs:
    """The sinks of late rows and of others apart from the result, and how the result is stored."""

    late: SinkName = _NONE
    side_outputs: tuple[SideOutput, ...] = ()
    store: StorageFormats | None = None


def read_outputs(cursor: Cursor, target: QueryTarget) -> Outputs:
    """All outputs that come next, each at most once."""
    of_families = {words: column for grammar in cursor.grammars for words, column in grammar.outputs.items()}
    columns = {LATE: "", MALFORMED: SHOWN, **of_families}
    read = dict[tuple[str, ...], tuple[SideOutput, ...]]()
    late, store = cursor.peek(), target.store
    while True:
        words = next((words for words in columns if cursor.at(*words)), None)
        if at_store(cursor):
            store = _read_second_store(cursor, store, target)
        elif words is None:
            break
        else:
            late = cursor.peek() if words == LATE else late
            read[words] = _read_output(cursor, words, columns[words], target, is_again=words in read)
    side_outputs = tuple(output for words in columns for output in read.get(words, ()) if words != LATE)
    if LATE not in read:
        return Outputs(side_outputs=side_outputs, store=store)
    if target.into[0] is None and not any(output.is_instead for output in side_outputs):
        hint = "write `INSERT INTO sink` before SELECT: the result needs a sink if late rows have one."
        raise cursor.failure("`;`", hint, late)
    return Outputs((read[LATE][0].sink, read[LATE][0].span), side_outputs, store)


def at_store(cursor: Cursor) -> bool:
    """Whether ``STORE KEY AS`` or ``STORE VALUE AS`` begins here."""
    return cursor.at("STORE", "KEY", "AS") or cursor.at("STORE", "VALUE", "AS")


def read_store(cursor: Cursor) -> StorageFormats:
    """``STORE [KEY AS format] [VALUE AS format]``."""
    first = cursor.position
    cursor.begin_line()
    cursor.skip(1)
    formats = dict[str, str]()
    while cursor.at("KEY", "AS") or cursor.at("VALUE", "AS"):
        facet = cursor.peek()
        if facet.word in formats:
            raise cursor.failure("each facet once", _STORE)
        cursor.skip(2)
        if cursor.at("SELECT") and not cursor.at_any({"SELECT", "WITH", "VALUE", "KEY"}, ahead=1):
            raise cursor.failure("the name of a format", _STORE)
        formats[facet.word] = cursor.take_name("the name of a format", _STORE).value.lower()
    return StorageFormats(formats.get("KEY"), formats.get("VALUE"), cursor.span_from(first))


def _read_second_store(cursor: Cursor, before: StorageFormats | None, target: QueryTarget) -> StorageFormats:
    if target.into[0] is None and not target.is_inner:
        raise cursor.failure("`;`", "write `INSERT INTO sink` before SELECT: STORE says how its rows are written.")
    if before is not None:
        raise cursor.failure("`;`", "write STORE once, before or after the query.")
    return read_store(cursor)


def _read_output(
    cursor: Cursor, words: tuple[str, ...], column: str, target: QueryTarget, *, is_again: bool
) -> tuple[SideOutput, ...]:
    written = " ".join(words)
    if target.is_inner:
        hint = "write it after the query that reads the view or subquery."
        raise cursor.refuse_unsupported(f"{written} inside a view or subquery", hint, len(words))
    if is_again:
        raise cursor.failure("`;`", f"write {written} once.")
    cursor.begin_line()
    cursor.skip(len(words))
    is_list = column.endswith("_")
    hint = f"write `{written} {'sink, ...' if is_list else 'sink'}` at the end of the query."
    sinks = [cursor.take_name("the name of a sink", hint)]
    while is_list and cursor.take(","):
        sinks.append(cursor.take_name("the name of a sink", hint))
    if cursor.at("WHERE"):
        raise cursor.failure("`;`", f"write {written} at the end of the query, after WHERE.")
    of = " ".join(words[:-1])
    return tuple(
        SideOutput(of, f"{column}{number}" if is_list else column, sink.value, cursor.span_of(sink), is_list)
        for number, sink in enumerate(sinks, start=1)
    )
