"""The names that an expression can mention, and the key of a result.

The key is what ``_key`` is made of (LN-17, LN-23), in the format that ``STORE KEY AS`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from watersmeet.catalog import Field, Source
from watersmeet.errors import did_you_mean
from watersmeet.formats.records import JSON, KEY_TYPES
from watersmeet.logical.expressions import GROUP, Expr, Reference, column
from watersmeet.logical.nodes import StorageFormats
from watersmeet.logical.passes.column_types import fields_inside
from watersmeet.logical.query import AnalyzedQuery, Output
from watersmeet.logical.relation import AnalyzedJoin, AnalyzedLateral, AnalyzedLeaf, AnalyzedRelation
from watersmeet.schema import quote

KEY, VALUE = "_key", "_value"
"""The facets of a record."""
WINDOW_FIELDS = ("start", "end")


@dataclass(frozen=True)
class ScopeColumn:
    """A column that ``*`` shows: its name, the alias it belongs to and the expression that gives it.

    The column of USING is shown once, whichever side has its value.
    """

    name: str
    alias: str
    type: str
    expr: Expr


@dataclass(frozen=True)
class UnresolvedName:
    """A name that means nothing, or too much: the condition that refuses it and its parameters."""

    condition: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Scope:
    """Sources by alias, and the columns that need no alias. An unknown source may have any column.

    ``hidden`` are the aliases that cannot be named here, each with the words of the join that hides them;
    ``extra_columns`` are columns of the join itself, which ``*`` leaves out and which columns of a source take
    precedence over; ``unavailable_columns`` are such columns of other joins, each with the hint for a reference here.
    """

    sources: Mapping[str, Source] = field(default_factory=dict[str, Source])
    columns: tuple[ScopeColumn, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict[str, str])
    extra_columns: tuple[ScopeColumn, ...] = ()
    unavailable_columns: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def visible(self) -> dict[str, Source]:
        """The sources that can be named, by alias."""
        return {alias: source for alias, source in self.sources.items() if alias not in self.hidden}

    @property
    def is_whole(self) -> bool:
        """True if every source is known that can be named."""
        return all(source.fields for source in self.visible.values())

    def combine(self, other: Scope) -> Scope:
        """The names of both."""
        # An alias that is given again has been refused as such; it then means the later source.
        hidden = {alias: join for alias, join in self.hidden.items() if alias not in other.sources}
        sources, unavailable = (
            {**self.sources, **other.sources},
            {**self.unavailable_columns, **other.unavailable_columns},
        )
        return Scope(sources, self.columns + other.columns, {**hidden, **other.hidden}, unavailable_columns=unavailable)

    def with_hidden(self, other: Scope, join: str) -> Scope:
        """The names of this side, those of the other being hidden by a join of those words."""
        hidden = {**self.hidden, **other.hidden, **dict.fromkeys(other.sources, join)}
        return Scope(
            {**self.sources, **other.sources}, self.columns, hidden, unavailable_columns=self.unavailable_columns
        )

    def alias(self, name: str) -> str | None:
        """The alias as its author spelled it; None if it does not exist or is hidden."""
        return next((alias for alias in self.visible if alias.lower() == name.lower()), None)

    def hint(self, name: str) -> str | None:
        """The reason why an alias, or a column of one, cannot be named here; None if no join hides it."""
        for alias, join in self.hidden.items():
            if alias.lower() == name.lower() or self.sources[alias].field(name):
                only = f"use `{alias}` only in its ON."
                return f"a {join} JOIN shows the left side only: {only}"
        return None

    def find_columns(self, name: str) -> tuple[ScopeColumn, ...]:
        """The columns of that name."""
        return self._by_name.get(name.lower(), ())

    @cached_property
    def _by_name(self) -> dict[str, tuple[ScopeColumn, ...]]:
        """The columns by their names in small letters."""
        columns_by_name = dict[str, list[ScopeColumn]]()
        for shown in self.columns:
            columns_by_name.setdefault(shown.name.lower(), []).append(shown)
        return {name: tuple(columns) for name, columns in columns_by_name.items()}

    def find_unlisted(self, name: str) -> tuple[ScopeColumn, ...]:
        """The columns of that name that can be named though ``*`` leaves them out: facets, and those of a join."""
        facets = (show_column(alias, source, name) for alias, source in self.visible.items())
        own = tuple(shown for shown in facets if shown is not None)
        return own or tuple(shown for shown in self.extra_columns if shown.name == name.lower())

    @cached_property
    def _name_cache(self) -> dict[tuple[str, ...], Expr | UnresolvedName | None]:
        return {}

    def find(self, parts: tuple[str, ...]) -> Expr | UnresolvedName | None:
        """The meaning of a name. None: unknown, because a source is unknown and refused as such."""
        if parts not in self._name_cache:
            self._name_cache[parts] = self._find(parts)
        return self._name_cache[parts]

    def _find(self, parts: tuple[str, ...]) -> Expr | UnresolvedName | None:
        """An alias goes before a column with fields, as in Spark."""
        first, *rest = parts
        alias = self.alias(first) if rest else None
        if alias is not None:
            rest = rest[1:] if _is_facet(self.sources[alias], rest) else rest
            shown = show_column(alias, self.sources[alias], rest[0])
            if shown is not None:
                return _resolve_path(shown, rest[1:])
            if not self.sources[alias].fields:
                return None
        elif rest and first.lower() == VALUE and not self.find_columns(first):
            return self.find(tuple(rest))
        candidates = self.find_columns(first) or self.find_unlisted(first)
        # Two columns of one alias are those of an alias that is given twice, which has been refused as such.
        if len({shown.alias for shown in candidates}) > 1:
            return _ambiguous(parts, candidates)
        if candidates:
            return _resolve_path(candidates[-1], rest)
        return self._explain_missing(first, rest, alias) if self.is_whole or alias else None

    def _explain_missing(self, first: str, rest: list[str], alias: str | None) -> UnresolvedName:
        dotted = ".".join([first, *rest])
        if alias is not None:
            source = self.sources[alias]
            suggestion = did_you_mean(rest[0], [f.name for f in source.fields])
            return _unknown(dotted, f"in {_name(alias, source)}", suggestion)
        visible = self.visible
        names = [_name(alias, source) for alias, source in visible.items() if not alias.startswith("#")]
        where = f"in {' or '.join(dict.fromkeys(names)) or 'the rows of the query'}"
        hidden = self.hint(first)
        if hidden:
            return _unknown(dotted, where, hidden)
        alias_in_scope = next((a for a, s in visible.items() if rest and s.name.lower() == first.lower()), None)
        if alias_in_scope:
            return _unknown(
                dotted,
                where,
                f"`{first}` is called `{alias_in_scope}` here: write `{alias_in_scope}.{'.'.join(rest)}`.",
            )
        if first.lower() in self.unavailable_columns and not self.extra_columns:
            return _unknown(dotted, where, self.unavailable_columns[first.lower()])
        candidates = [alias for alias in visible if not alias.startswith("#")] if rest else []
        candidates = candidates or [shown.name for shown in self.columns if not shown.alias.startswith("#")]
        candidates = candidates or [shown.name for shown in self.columns]
        return _unknown(dotted, where, did_you_mean(first, candidates))


def _name(alias: str, source: Source) -> str:
    """The name of a source in messages: a subquery has a generated one."""
    return alias if source.name.startswith("#") else source.name


@dataclass(frozen=True)
class NestedScope(Scope):
    """The names inside a subquery: those of its source, ``written`` there, before those around it."""

    outer: Scope = field(default_factory=Scope)
    written: str = ""
    alias_here: str = ""

    def _find(self, parts: tuple[str, ...]) -> Expr | UnresolvedName | None:
        is_own = len(parts) > 1 and parts[0].lower() == self.written.lower()
        meaning = super()._find((self.alias_here, *parts[1:]) if is_own else parts)
        if is_own or not isinstance(meaning, UnresolvedName) or meaning.condition != "UNKNOWN_COLUMN":
            return meaning
        around = self.outer.find(parts)
        return meaning if isinstance(around, UnresolvedName) and around.condition == "UNKNOWN_COLUMN" else around


def scope_of(alias: str, source: Source) -> Scope:
    """The names of one source."""
    shown = (show_column(alias, source, f.name) for f in source.fields if not f.hidden)
    return Scope({alias: source}, tuple(s for s in shown if s))


def show_column(alias: str, source: Source, name: str) -> ScopeColumn | None:
    """A column of a source, spelled as declared; or a facet: its key, or all columns that are not keys."""
    column_field = source.field(name)
    if column_field is None:
        return _facet(alias, source, name.lower())
    leaf = column((alias, column_field.name))
    ref = replace(leaf.refs[0], source=alias, name=column_field.name)
    return ScopeColumn(column_field.name, alias, column_field.type, replace(leaf, refs=(ref,)))


def _facet(alias: str, source: Source, name: str) -> ScopeColumn | None:
    """Resolve ``_key`` or ``_value``; None for any other name, or if the source has no key."""
    if name == KEY:
        parts = [show_column(alias, source, column) for column in source.key]
    elif name == VALUE:
        parts = [show_column(alias, source, f.name) for f in source.fields if not f.hidden and f.name not in source.key]
    else:
        return None
    shown_parts = [part for part in parts if part is not None]
    if not shown_parts:
        return None
    if name == KEY and len(shown_parts) == 1:
        return replace(shown_parts[0], name=KEY)
    return ScopeColumn(name, alias, "", struct_of([(part.name, part.expr) for part in shown_parts]))


def _is_facet(source: Source, rest: list[str]) -> bool:
    """Whether a column is named by way of ``_value``, as in ``orders._value.id``."""
    return len(rest) > 1 and rest[0].lower() == VALUE and source.field(VALUE) is None


def struct_of(parts: Iterable[tuple[str, Expr]]) -> Expr:
    """Columns as one value, with their names as fields.

    >>> struct_of([("id", column(("a", "id")))]).text
    "named_struct('id', `a`.`id`)"
    """
    shell, holes = "named_struct(", list[tuple[Reference, Expr]]()
    for name, expr in parts:
        quoted = name.replace("\\", "\\\\").replace("'", "\\'")
        shell += f"{', ' if holes else ''}'{quoted}', "
        holes.append((Reference((), len(shell), len(shell) + 1), expr))
        shell += "?"
    return splice(Expr("other", text=f"{shell})"), holes)


def make_extra_columns(source: str, fields: tuple[Field, ...]) -> tuple[ScopeColumn, ...]:
    """Columns of a join itself, under a generated source name."""
    return tuple(shown for f in fields if (shown := show_column(source, Source(source, fields), f.name)))


def coalesce(left: Expr, right: Expr) -> Expr:
    """The first of two columns that is not null."""
    shell = Expr("other", text="coalesce(?, ?)")
    return splice(shell, [(Reference((), 9, 10), left), (Reference((), 12, 13), right)])


def splice(leaf: Expr, replacements: Iterable[tuple[Reference, Expr]]) -> Expr:
    """A leaf with stretches of its text replaced by other leaves, whose references it takes over."""
    text, refs, position = "", list[Reference](), 0
    for ref, other in sorted(replacements, key=lambda pair: pair[0].start):
        text += leaf.text[position : ref.start]
        refs += [replace(r, start=r.start + len(text), end=r.end + len(text)) for r in other.refs]
        text += other.text
        position = ref.end
    return replace(leaf, text=text + leaf.text[position:], refs=tuple(refs))


def _resolve_path(shown: ScopeColumn, path: list[str]) -> Expr | UnresolvedName:
    within, spelled = shown.type, list[str]()
    for part in path:
        fields = fields_inside(within)
        if fields is None:
            spelled.append(part)
            continue
        inner = next((f for f in fields if f.name.lower() == part.lower()), None)
        if inner is None:
            # The element of an array is named after its alias, so the alias is not repeated.
            owner = () if shown.alias == shown.name else (shown.alias,)
            outer = ".".join((*owner, shown.name, *spelled))
            hint = did_you_mean(part, [f.name for f in fields]) if fields else f"`{outer}` is of type {within}."
            return _unknown(f"{outer}.{part}", f"inside `{outer}`", hint)
        within = inner.type
        spelled.append(inner.name)
    if shown.expr.op == "column":
        return replace(shown.expr, refs=(replace(shown.expr.refs[0], path=tuple(spelled)),))
    fields = (part if part in WINDOW_FIELDS else quote(part) for part in spelled)
    return replace(shown.expr, text=".".join((shown.expr.text, *fields)))


def _unknown(name: str, where: str, suggestion: str) -> UnresolvedName:
    return UnresolvedName("UNKNOWN_COLUMN", {"column": name, "where": where, "suggestion": suggestion})


def _ambiguous(parts: tuple[str, ...], candidates: tuple[ScopeColumn, ...]) -> UnresolvedName:
    sources = " or ".join(f"`{shown.alias}`" for shown in candidates)
    example = ".".join((candidates[0].alias, *parts))
    return UnresolvedName("AMBIGUOUS_COLUMN", {"column": ".".join(parts), "sources": sources, "example": example})


def result_key(query: AnalyzedQuery, group_by: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The key of a result's rows or groups; empty without a key.

    A column ``_key`` of the projection comes first, then GROUP BY, then the keys of the join or of the only source.
    """
    chosen = next((output.expr for output in query.outputs if output.name.lower() == KEY), None)
    if chosen is not None:
        return (chosen,)
    if query.group is not None:
        return tuple(group_column(by.name) for by in query.group.by)
    return group_by or key_of(query.relation)


def group_column(name: str) -> Expr:
    """A reference to what a grouping gives."""
    return Expr("column", text=name, refs=(Reference((name,), 0, len(name), GROUP, name),))


def key_of(relation: AnalyzedRelation) -> tuple[Expr, ...]:
    """The key of the rows of a relation: that of its last join, or of its only source."""
    if isinstance(relation, AnalyzedLateral):
        return key_of(relation.input)
    if isinstance(relation, AnalyzedLeaf):
        key = show_column(relation.alias, relation.source, KEY)
        return () if key is None else (_plain(key.expr),)
    return relation.result_key if isinstance(relation, AnalyzedJoin) else ()


def _plain(expr: Expr) -> Expr:
    """The expression under the column's own name, however it was written."""
    return replace(expr, refs=tuple(replace(ref, parts=(ref.source, ref.name)) for ref in expr.refs))


def with_stored_key(query: AnalyzedQuery, store: StorageFormats | None, *, in_records: bool = False) -> AnalyzedQuery:
    """The query with its key in the format that it is stored in, ``_key`` among its columns too.

    ``in_records``: its rows become records, whose key is ``_key``, so that there must be such a column.

    >>> from watersmeet.catalog import Source
    >>> from watersmeet.logical.relation import AnalyzedScan
    >>> from watersmeet.logical.expressions import column
    >>> query = AnalyzedQuery(AnalyzedScan("a", Source("a", ())), (), key=(column(("id",)),))
    >>> with_stored_key(query, StorageFormats("long")).key[0].sql(lambda ref: ".".join(ref.parts))
    'CAST(id AS BIGINT)'
    """
    format_ = None if store is None else store.key
    if format_ is None or format_ not in KEY_TYPES or not query.key:
        return query
    first, *rest = query.key
    if rest and format_ != JSON:
        return query
    key = Expr("cast", (first,), value=KEY_TYPES[format_], span=first.span)
    if format_ == JSON:
        key = Expr("call", (key_struct(query.key),), text="to_json")
    outputs = tuple(replace(o, expr=key) if o.name.lower() == KEY else o for o in query.outputs)
    if in_records and all(output.name.lower() != KEY for output in outputs):
        outputs = (*outputs, Output(KEY, key))
    return replace(query, outputs=outputs, key=(key,))


def key_struct(key: tuple[Expr, ...]) -> Expr:
    """The columns of a key as one value, with names: their own, or k1, k2 and so on.

    >>> key_struct((Expr("literal", text="1"), Expr("literal", text="2"))).sql()
    "named_struct('k1', 1, 'k2', 2)"
    """
    named = [(f"k{n}" if expr.op != "column" else expr.refs[0].name, expr) for n, expr in enumerate(key, 1)]
    args = tuple(part for name, expr in named for part in (_text(name), expr))
    return Expr("call", args, text="named_struct")


def _text(value: str) -> Expr:
    quoted = value.replace("\\", "\\\\").replace("'", "\\'")
    return Expr("literal", text=f"'{quoted}'", value=value)
