"""Where a query writes to: its sink, and those of rows that are late, that stayed alone, or of single ports."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.column_types import is_same
from watersmeet.analyze.draft import Draft
from watersmeet.catalog import Field, Sink, Source, Span
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.nodes import PRESERVED, Join, Query, Side, Star, SyncJoin, leaves
from watersmeet.plan.words import kind_in_words


def check_outputs(draft: Draft) -> Iterator[Refusal]:
    """Sinks that are not there, and outputs that the query does not have."""
    yield from _check_known(draft)
    yield from _check_late(draft)
    if draft.query.unmatched_left_into is not None or draft.query.unmatched_right_into is not None:
        yield from _check_unmatched(draft)
    if draft.query.ports_into:
        yield from _check_ports(draft)


def _check_known(draft: Draft) -> Iterator[Refusal]:
    sinks = [sink.name for sink in draft.script.sinks]
    for name, span in _sinks(draft.query):
        if name.lower() not in [sink.lower() for sink in sinks]:
            yield draft.refusal("UNKNOWN_SINK", span, sink=name, suggestion=did_you_mean(name, sinks))


def _sinks(query: Query) -> Iterator[tuple[str, Span]]:
    """The sinks that must be declared. Without INSERT INTO, unmatched rows go to whoever runs the query."""
    if query.into is not None:
        yield query.into, query.into_span
        unmatched = (
            (query.unmatched_left_into, query.unmatched_left_span),
            (query.unmatched_right_into, query.unmatched_right_span),
        )
        yield from ((name, span) for name, span in unmatched if name is not None)
    if query.late_into is not None:
        yield query.late_into, query.late_into_span
    yield from query.ports_into


def _check_late(draft: Draft) -> Iterator[Refusal]:
    query = draft.query
    if query.late_into is None:
        return
    if query.late_into.lower() == (query.into or "").lower():
        hint = "declare a sink of their own with CREATE SINK: late rows have other columns than the result."
        yield _unsupported(draft, query.late_into_span, "LATE INTO the sink of the result", hint)
    if len(leaves(query.relation)) == 1:
        hint = "leave LATE INTO out: rows are late for a join."
        yield _unsupported(draft, query.late_into_span, "LATE INTO without a join", hint)
    elif isinstance(query.relation, Join) and query.relation.is_windowed:
        hint = "leave LATE INTO out: windows follow the order of arrival, in which nothing is late."
        yield _unsupported(draft, query.late_into_span, "LATE INTO of a window join", hint)
    sink = _sink(draft, query.late_into)
    if sink is not None and sink.fields:
        yield _wrong(
            draft, query.late_into_span, "Late rows", f"{sink.name} declares columns, and late rows have their own",
            "declares columns", f"declare {sink.name} without columns.",
        )  # fmt: skip


def _check_unmatched(draft: Draft) -> Iterator[Refusal]:
    query, relation = draft.query, draft.query.relation
    given: tuple[tuple[Side, str | None, Span], ...] = (
        ("left", query.unmatched_left_into, query.unmatched_left_span),
        ("right", query.unmatched_right_into, query.unmatched_right_span),
    )
    asked = [one for one in given if one[1] is not None]
    if any(leaf.window for leaf in leaves(relation)) and len(leaves(relation)) != 2:
        # Windows elsewhere than in a join of two sources have been refused.
        return
    if not isinstance(relation, Join) or not relation.is_windowed:
        for side, _, span in asked:
            what = f"UNMATCHED {side.upper()} INTO of a join without windows"
            hint = "leave it out: rows that stay alone come out padded with NULL."
            yield _unsupported(draft, span, what, hint)
        return
    for side, name, span in asked:
        leaf = leaves(relation)[0 if side == "left" else 1]
        source = draft.scope.sources.get(leaf.alias, Source(leaf.alias, ()))
        what = f"UNMATCHED {side.upper()} INTO {name}"
        if relation.kind not in PRESERVED[side]:
            kind = kind_in_words(relation.kind)
            reason = f"{kind} JOIN drops the rows of {source.name} that stay alone"
            hint = f"leave it out, or write {side.upper()} or FULL JOIN."
            yield _wrong(draft, span, what, reason, f"{source.name} is not preserved", hint)
        elif relation.kind == "full" and len(asked) == 1:
            other = "RIGHT" if side == "left" else "LEFT"
            reason = "the other side's rows that stay alone would come out among the pairs"
            hint = f"add `UNMATCHED {other} INTO sink`, or leave both out."
            yield _wrong(draft, span, what, reason, f"no UNMATCHED {other} INTO", hint)
        yield from _check_columns(draft, name, span, what, source)


def _check_ports(draft: Draft) -> Iterator[Refusal]:
    query, span = draft.query, draft.query.ports_into[0][1]
    if not isinstance(query.relation, SyncJoin):
        what, hint = "PORTS INTO without a SYNC JOIN", "write INSERT INTO: other joins have one output."
        yield _unsupported(draft, span, what, hint)
        return
    ports = query.relation.inputs
    if len(ports) != len(query.ports_into):
        reason = f"{len(ports)} ports need {len(ports)} sinks"
        hint = f"name {len(ports)} sinks, in the order of the sources."
        yield _wrong(draft, span, "PORTS INTO", reason, f"{len(query.ports_into)} named", hint)
    if query.into is not None:
        reason, hint = "its rows go to the sinks of the ports", "leave INSERT INTO out."
        yield _wrong(draft, query.into_span, "The result", reason, "beside PORTS INTO", hint)
    if [item.alias if isinstance(item, Star) else "" for item in query.items] != [None]:
        reason, hint = "each port's rows go out as they came in", "write `SELECT STREAM *`."
        yield _wrong(draft, span, "A projection of ports", reason, "PORTS INTO", hint)
    for port, (name, place) in zip(ports, query.ports_into, strict=False):
        source = draft.scope.sources.get(port.alias, Source(port.alias, ()))
        yield from _check_columns(draft, name, place, f"The port {port.alias}", source)


def _check_columns(draft: Draft, name: str | None, span: Span, what: str, source: Source) -> Iterator[Refusal]:
    """A sink that declares columns takes whole rows of a source only if they are the columns of that source."""
    sink = _sink(draft, name)
    if sink is not None and sink.fields and source.fields and not _is_alike(sink.fields, source.fields):
        reason = f"its columns are those of {source.name}, and {name} declares others"
        hint = f"declare {name} with the columns of {source.name}, or without any."
        yield _wrong(draft, span, what, reason, f"not the columns of {source.name}", hint)


def _is_alike(fields: tuple[Field, ...], others: tuple[Field, ...]) -> bool:
    pairs = zip(fields, others, strict=False)
    return len(fields) == len(others) and all(
        a.name.lower() == b.name.lower() and is_same(a.type, b.type) for a, b in pairs
    )


def _sink(draft: Draft, name: str | None) -> Sink | None:
    return next((s for s in draft.script.sinks if name is not None and s.name.lower() == name.lower()), None)


def _unsupported(draft: Draft, span: Span, what: str, hint: str) -> Refusal:
    return draft.refusal("UNSUPPORTED_STATEMENT", span, what=what, hint=hint)


def _wrong(draft: Draft, span: Span, what: str, reason: str, cause: str, hint: str) -> Refusal:
    return draft.refusal("WRONG_OUTPUT", span, what=what, reason=reason, cause=cause, hint=hint)
