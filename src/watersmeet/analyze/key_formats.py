"""The formats of keys (LN-15): what the key of a record is, joins by keys of different formats, and STORE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from watersmeet.analyze.draft import Draft, format_list
from watersmeet.analyze.scope import KEY
from watersmeet.catalog import Field, Source, Span
from watersmeet.errors import Refusal
from watersmeet.formats import sink_format
from watersmeet.formats.records import JSON, KEY_TYPES, format_of_key
from watersmeet.formats.sink import Changes
from watersmeet.plan.expressions import Expr, conjuncts
from watersmeet.plan.nodes import Lateral, ParsedJoin, Relation, StorageFormats
from watersmeet.plan.words import word

_NUMBERS = ("int", "long", "double")


def with_record_key(source: Source) -> Source:
    """The source with the key of its records as a column that ``*`` leaves out, if nothing else is its ``_key``.

    >>> source = Source("orders", (), format="kafka", options={"value.format": "json", "key.format": "long"})
    >>> with_record_key(source).field("_key")
    Field(name='_key', type='BIGINT', nullable=True, hidden=True)
    """
    format_ = format_of_key(source)
    if format_ is None or source.format is None or source.key:
        return source
    type_ = KEY_TYPES.get(format_, "BINARY")
    return replace(source, fields=(*source.fields, Field(KEY, type_, hidden=True)))


def key_formats(draft: Draft) -> Draft:
    """The draft with the refusal of joins by keys whose formats differ, and of formats in which nothing is stored."""
    return draft.with_refusals([*_check_joins(draft, draft.query.relation), *_check_store(draft, draft.query.store)])


def _check_joins(draft: Draft, relation: Relation) -> Iterator[Refusal]:
    if isinstance(relation, Lateral):
        yield from _check_joins(draft, relation.input)
    if isinstance(relation, ParsedJoin):
        yield from _check_joins(draft, relation.left)
        for part in conjuncts(relation.on):
            if part.op == "=" and all(_is_key(arg) for arg in part.args):
                yield from _check_keys(draft, part, relation.span)


def _is_key(expr: Expr) -> bool:
    """Whether the text asks for the key of a record, whatever column that is."""
    return expr.op == "column" and bool(expr.refs[0].source) and expr.refs[0].parts[-1].lower() == KEY


def _check_keys(draft: Draft, equality: Expr, join: Span) -> Iterator[Refusal]:
    aliases = [arg.refs[0].source for arg in equality.args]
    formats = [format_of_key(draft.scope.sources[alias]) for alias in aliases]
    if None in formats or formats[0] == formats[1]:
        return
    names = [draft.name_of(alias) for alias in aliases]
    span = equality.span if equality.span != Span(0, 0) else join
    yield draft.refusal(
        "KEY_FORMATS_DIFFER", span, left=names[0], right=names[1], left_format=formats[0], right_format=formats[1],
        hint=_hint([str(format_) for format_ in formats], names, [draft.scope.sources[a].kind for a in aliases]),
    )  # fmt: skip


def _hint(formats: list[str], names: list[str], kinds: list[str]) -> str:
    unread = next((n for n, format_ in enumerate(formats) if format_ not in KEY_TYPES or format_ == JSON), None)
    if unread is not None:
        other = formats[1 - unread] if formats[1 - unread] in KEY_TYPES else "string"
        return f"write {names[unread]} again with `STORE KEY AS {other}`, and read that."
    view = f"CREATE VIEW {word(names[1])}_by_{formats[0]} AS SELECT {kinds[1].upper()} * FROM {word(names[1])}"
    return f"write `{view} STORE KEY AS {formats[0]}`, and join with that."


def _check_store(draft: Draft, store: StorageFormats | None) -> Iterator[Refusal]:
    if store is None:
        return
    if store.value not in (None, JSON):
        what, hint = f"STORE VALUE AS {store.value}", f"write `STORE VALUE AS {JSON}`, or leave it out."
        yield draft.refuse_unsupported(store.span, what, hint)
    if store.key is None:
        return
    what, hint = f"STORE KEY AS {store.key}", None
    sink = draft.script.sink(draft.query.into)
    format_ = sink_format(sink) if sink is not None and sink_format(sink).has_text_keys else None
    if store.key not in KEY_TYPES:
        hint = f"write {format_list(KEY_TYPES, 'or')}, for example `STORE KEY AS string`."
    elif store.key in _NUMBERS and format_ is not None:
        what = f"{what} into {format_.title}"
        hint = f"leave it out, and add `key.format '{store.key}'` to the OPTIONS of {format_.sink.name}."
    elif format_ is not None and not format_.is_encoded(cast("Changes | None", format_.changes)):
        what = f"{what} into {format_.title}, where rows have their own columns `key` and `value`,"
        hint = f"add `value.format 'json'` to the OPTIONS of {format_.sink.name}, or select the key AS `key`."
    elif not draft.refusals and draft.is_bounded:
        finished = replace(draft, query=replace(draft.query, store=None)).finish()
        key = finished.key
        if not key:
            what, hint = f"{what} of a result without a key", "add `... AS _key` to the columns."
        elif len(key) > 1 and store.key != JSON:
            what, hint = f"{what} of a key of {len(key)} columns", f"write `STORE KEY AS {JSON}`."
        elif format_ is not None and finished.result == "table" and len(key) == 1 and store.key != "string":
            what, hint = (
                f"{what} of a table into {format_.title}",
                "write `STORE KEY AS string`: its key is a string there.",
            )
    if hint is not None:
        yield draft.refuse_unsupported(store.span, what, hint)
