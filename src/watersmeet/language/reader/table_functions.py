"""Functions behind FROM that stand for a source: ``TABLE(IMPOSE_ORDER(...))`` and those of windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from watersmeet.catalog import Amount, Span, Watermark
from watersmeet.language.reader.clauses import at_clause
from watersmeet.language.reader.cursor import Cursor
from watersmeet.language.reader.leaves import read_amount
from watersmeet.plan.nodes import Scan, WindowFunction

_ORDER = "write `TABLE(IMPOSE_ORDER(TABLE orders, DESCRIPTOR(order_time), INTERVAL '5' SECONDS))`, for example."
_ARGUMENTS = ("input", "timeCol", "lag")
_WINDOWS = {
    "TUMBLE": (("size",), "write `TABLE(TUMBLE(TABLE bids, DESCRIPTOR(t), INTERVAL '10' MINUTES))`, for example."),
    "HOP": (
        ("slide", "size"),
        "write `TABLE(HOP(TABLE bids, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '10' MINUTES))`, for example.",
    ),
    "CUMULATE": (
        ("step", "size"),
        "write `TABLE(CUMULATE(TABLE bids, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '1' HOUR))`, for example.",
    ),
    "SESSION": (
        ("gap",),
        "write `TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(t), INTERVAL '5' MINUTES))`.",
    ),
}
"""The functions of windows, each with what its lengths are called, and how one writes it."""


@dataclass(frozen=True)
class NamedSource:
    """What a source is before it has its alias; without a ``name`` it needs one. A union has several scans."""

    scans: tuple[Scan, ...]
    name: str | None
    span: Span


ReadNamed = Callable[[Cursor], NamedSource]
"""What reads a source in brackets or another function."""


def read_name(cursor: Cursor) -> tuple[str, Span]:
    """The name of a source and its place; ``STREAM`` may stand before it."""
    bracket = cursor.at("STREAM", "(")
    if bracket or (cursor.at("STREAM") and cursor.peek(1).is_name and not _after_stream_name(cursor)):
        cursor.skip(2 if bracket else 1)
    hint = "write `FROM orders AS o`, for example."
    if cursor.at_any({"ON", "WHERE", "JOIN", "SELECT"}):
        raise cursor.failure("the name of a stream", hint)
    name = cursor.take_name("the name of a stream", hint)
    if bracket:
        cursor.expect(")", "write `STREAM(name)`.")
    if cursor.at("."):
        raise cursor.failure("an alias or a clause", "put a name that contains a dot in backticks.")
    return name.value, cursor.span_of(name)


def _after_stream_name(cursor: Cursor) -> bool:
    """Whether STREAM is itself the name of a source: what follows it is a clause."""
    cursor.position += 1
    follows = at_clause(cursor)
    cursor.position -= 1
    return follows


def with_watermark(named: NamedSource, watermark: Watermark) -> NamedSource:
    """The same source with a further watermark."""
    scan = named.scans[0]
    return replace(named, scans=(replace(scan, watermarks=(*scan.watermarks, watermark)),))


def read_table_function(cursor: Cursor, read_named: ReadNamed) -> NamedSource:
    """``TABLE(IMPOSE_ORDER(TABLE name, DESCRIPTOR(column), lag))``, its arguments also with their names."""
    first = cursor.position
    if cursor.at_any(set(_WINDOWS), ahead=2):
        return _read_windowed(cursor, read_named)
    if cursor.peek(2).is_name and cursor.at_any({")"}, ahead=3):
        raise cursor.refuse_unsupported("TABLE(...) around a name", f"write the name alone: `{cursor.peek(2).text}`.")
    if not cursor.at_any({"IMPOSE_ORDER"}, ahead=2):
        function = cursor.peek(2).text
        hint = "write IMPOSE_ORDER, TUMBLE, HOP, CUMULATE or SESSION, or group with `GROUP BY window(t, '5 minutes')`."
        raise cursor.refuse_unsupported(f"TABLE({function}...) as a source", hint)
    cursor.skip(3)
    cursor.expect("(", _ORDER)
    _read_argument(cursor, 0, _ARGUMENTS)
    named = _read_ordered(cursor, read_named, _ORDER)
    cursor.expect(",", _ORDER)
    _read_argument(cursor, 1, _ARGUMENTS)
    begin = cursor.position
    column = _read_descriptor(cursor, _ORDER)
    cursor.expect(",", _ORDER)
    _read_argument(cursor, 2, _ARGUMENTS)
    lag = read_amount(cursor)
    watermark = Watermark(column, lag, cursor.span_from(begin))
    cursor.expect(")", _ORDER)
    cursor.expect(")", _ORDER)
    return replace(with_watermark(named, watermark), span=cursor.span_from(first))


def _read_windowed(cursor: Cursor, read_named: ReadNamed) -> NamedSource:
    """``TABLE(TUMBLE(TABLE name, DESCRIPTOR(column), size))``; HOP has the slide before the size, CUMULATE the step.

    SESSION may say PARTITION BY behind the name: what the query groups by besides the window, in any case. Arguments
    may have their names.
    """
    first, function = cursor.position, cursor.peek(2).word
    called, hint = _WINDOWS[function]
    arguments = ("data", "timeCol", *called)
    cursor.skip(3)
    cursor.expect("(", hint)
    _read_argument(cursor, 0, arguments)
    named = _read_ordered(cursor, read_named, hint)
    if named.scans[0].window is not None:
        raise cursor.refuse_unsupported(
            "Windows of windows", "name the stream itself, or group the inner windows in a view."
        )
    by = _read_partition(cursor, hint) if function == "SESSION" else ()
    cursor.expect(",", hint)
    _read_argument(cursor, 1, arguments)
    column = _read_descriptor(cursor, hint)
    lengths: list[Amount] = []
    for number in range(2, len(arguments)):
        cursor.expect(",", hint)
        _read_argument(cursor, number, arguments)
        lengths.append(_read_length(cursor, hint))
    _check_lengths(cursor, function, lengths, hint)
    cursor.expect(")", hint)
    cursor.expect(")", hint)
    if function == "CUMULATE" and lengths[0] == lengths[1]:
        # One step is the whole window.
        function, lengths = "TUMBLE", lengths[:1]
    window = WindowFunction(function, column, tuple(reversed(lengths)), cursor.span_from(first), by)
    return replace(named, scans=(replace(named.scans[0], window=window),), span=cursor.span_from(first))


def _read_descriptor(cursor: Cursor, hint: str) -> str:
    """``DESCRIPTOR(column)``."""
    cursor.expect("DESCRIPTOR", hint)
    cursor.expect("(", hint)
    column = cursor.take_name("the name of a column", hint).value
    cursor.expect(")", hint)
    return column


def _read_length(cursor: Cursor, hint: str) -> Amount:
    before = cursor.peek()
    length = read_amount(cursor)
    if not length.is_interval or not length.value:
        raise cursor.failure("a duration", hint, before)
    return length


def _check_lengths(cursor: Cursor, function: str, lengths: list[Amount], hint: str) -> None:
    """Refuse lengths that make no windows: a step must go into the size, a slide is at most as long."""
    step, size = lengths[0].value, lengths[-1].value
    if function == "CUMULATE" and size % step:
        raise cursor.failure("a size that is a multiple of the step", hint, cursor.previous)
    if function == "HOP" and step > size:
        raise cursor.failure("a size of at least the slide", hint, cursor.previous)


def _read_partition(cursor: Cursor, hint: str) -> tuple[str, ...]:
    """``PARTITION BY a, b``, also in parentheses."""
    if not cursor.take("PARTITION"):
        return ()
    cursor.expect("BY", hint)
    is_closed = cursor.take("(")
    names = [cursor.take_name("the name of a column", hint).value]
    while cursor.at(",") and not cursor.at(",", "DESCRIPTOR"):
        cursor.skip(1)
        names.append(cursor.take_name("the name of a column", hint).value)
    if is_closed:
        cursor.expect(")", hint)
    return tuple(names)


def _read_argument(cursor: Cursor, number: int, names: tuple[str, ...]) -> None:
    """``name =>`` if it comes next, which must be the name of this argument."""
    if cursor.peek(1).word != "=>":
        return
    name = cursor.peek().value.lower().replace("_", "")
    if name != names[number].lower():
        raise cursor.failure(f"`{names[number]}`", f"write the arguments in this order: {', '.join(names)}.")
    cursor.position += 2


def _read_ordered(cursor: Cursor, read_named: ReadNamed, hint: str) -> NamedSource:
    """What such a function is applied to: a table by name, a query, or an IMPOSE_ORDER. ``hint`` has an example."""
    if cursor.at("(", "TABLE"):
        cursor.next()
        named = _read_ordered(cursor, read_named, hint)
        cursor.expect(")", hint)
        return named
    if cursor.at("TABLE", "(") and cursor.peek(2).is_name and cursor.at_any({")"}, ahead=3):
        cursor.skip(2)
        name, span = read_name(cursor)
        cursor.expect(")", hint)
        return NamedSource((Scan(name, name, span),), name, span)
    if cursor.at("TABLE", "(") or cursor.at("("):
        named = read_named(cursor)
        if len(named.scans) > 1:
            raise cursor.failure("`)`", "give each part of the union its own watermark.", cursor.previous)
        return named
    cursor.expect("TABLE", hint)
    name, span = read_name(cursor)
    return NamedSource((Scan(name, name, span),), name, span)
