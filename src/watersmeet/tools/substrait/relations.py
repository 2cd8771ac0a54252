"""A Substrait plan as a script: its relations as parts of a query.

A relation is read into a `Block`: what stands behind FROM, what stands in WHERE, and the columns over it. Filters and
projections change the block that they read; a join or a union takes its inputs as they are if they are tables, and
makes a view of them if they are more than that.

The tables of the plan are bags of rows under their names, and its result is a table. Names, operators and refusals
follow as for a query in SQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from watersmeet.catalog import Field, Source
from watersmeet.errors import refuse
from watersmeet.logical.expressions import Expr, column
from watersmeet.logical.nodes import (
    LEFT_ONLY,
    Item,
    Join,
    JoinKind,
    Query,
    Relation,
    Scan,
    Script,
    Star,
    Union,
    View,
)
from watersmeet.tools.substrait.expressions import Expressions, cast_to, read_selection
from watersmeet.tools.substrait.messages import decode_plan
from watersmeet.tools.substrait.types import TypedExpr, fields_of, names_inside, refuse_unsupported

JOIN_TYPES: Mapping[str, tuple[JoinKind, bool]] = {
    "INNER": ("inner", False), "OUTER": ("full", False), "LEFT": ("left", False), "RIGHT": ("right", False),
    "LEFT_SEMI": ("semi", False), "LEFT_ANTI": ("anti", False),
    "RIGHT_SEMI": ("semi", True), "RIGHT_ANTI": ("anti", True),
}  # fmt: skip
"""The kinds of joins, and whether they show the right side only, so that the sides change places."""

_FIRST_ROWS = ("the first rows of a table change with every row", "leave LIMIT out, or apply it to the result.")
_IN_ORDER = ("a table that changes has no order", "leave the order out, or apply it to the result.")
_GROUPED = ("", "write the query in SQL: `SELECT TABLE k, count(*) FROM t GROUP BY k` gives a table.")
_REFUSED = {
    "fetch": _FIRST_ROWS,
    "top_n": _FIRST_ROWS,
    "sort": _IN_ORDER,
    "window": _IN_ORDER,
    "aggregate": _GROUPED,
    "write": ("", "leave it out: the call that runs the plan says where the result goes."),
    "reference": ("", "write the shared part once for each place that reads it."),
}
"""The reason why a relation is refused, and what to do about it."""


@dataclass(frozen=True)
class QueryBlock:
    """A relation that was read, with the conditions on its rows, and its columns."""

    relation: Relation
    columns: tuple[TypedExpr, ...]
    where: tuple[Expr, ...] = ()


@dataclass
class Relations:
    """Reads relations, and collects the tables and views that they need.

    ``declared`` are tables known before, by name; ``reserved`` the names of all tables, which no view may have.
    """

    expressions: Expressions
    declared: Mapping[str, Source]
    reserved: frozenset[str]
    tables: dict[tuple[str, ...], Source] = field(default_factory=dict[tuple[str, ...], Source])
    views: list[View] = field(default_factory=list[View])
    names: set[str] = field(default_factory=set[str])

    def read(self, rel: Any, place: str) -> QueryBlock:
        """The block that a relation is."""
        kind = rel.WhichOneof("kind")
        readers: Mapping[str, Callable[[Any, str], QueryBlock]] = {
            "read": self._read, "filter": self._filter, "project": self._project, "set": self._set,
            "join": self._join, "cross": self._cross, "nested_loop_join": self._join,
            "hash_join": self._join_by_keys, "merge_join": self._join_by_keys,
        }  # fmt: skip
        if kind not in readers:
            reason, hint = _REFUSED.get(kind or "", ("", "compute it in the producer, before the tables of the plan."))
            construct = f"The relation {kind or 'of an unknown kind'}"
            raise refuse_unsupported(construct, f"{place} > {kind}" if kind else place, hint, reason)
        place = f"{place} > {kind}"
        message = getattr(rel, kind)
        for extended in (message, message.common):
            if extended.HasField("advanced_extension") and extended.advanced_extension.HasField("enhancement"):
                raise refuse_unsupported("An enhancement", place, "write the plan without extensions of your own.")
        block = readers[kind](message, place)
        if message.common.WhichOneof("kind") != "emit":
            return block
        return replace(block, columns=pick_columns(block.columns, message.common.emit.output_mapping, place))

    def _read(self, read: Any, place: str) -> QueryBlock:
        source = self._table(read, place)
        base = fields_of(read.base_schema, place)
        scan = Scan(source.name, self._unique(source.name))
        columns = tuple(TypedExpr(column((scan.alias, f.name)), f.type) for f in base)
        where = (self.expressions.read(read.filter, columns, place).expr,) if read.HasField("filter") else ()
        if read.HasField("projection"):
            items = read.projection.select.struct_items
            if any(item.HasField("child") for item in items):
                raise refuse_unsupported("A projection inside a column", place, "project whole columns.")
            columns = pick_columns(columns, [item.field for item in items], place)
        return QueryBlock(scan, columns, where)

    def _table(self, read: Any, place: str) -> Source:
        """The table that a relation reads; all that read it add the columns that they know."""
        kind = read.WhichOneof("kind")
        if kind != "named_table" or not read.named_table.names:
            hint = "name the table in the plan, and give a DataFrame of that name."
            raise refuse_unsupported(f"A read of {kind or 'nothing'}", place, hint)
        path = tuple(read.named_table.names)
        fields = fields_of(read.base_schema, place)
        table = self.tables.get(path) or self.declared.get(path[-1].lower())
        if table is None:
            taken = {source.name.lower() for source in self.tables.values()}
            # Frames are given under plain names, so the schema before a name is left out where that is clear.
            name = path[-1] if path[-1].lower() not in taken else ".".join(path)
            table = Source(name, (), kind="table")
        self.tables[path] = replace(table, fields=self._merge_fields(table, fields, place))
        return self.tables[path]

    def _merge_fields(self, table: Source, fields: tuple[Field, ...], place: str) -> tuple[Field, ...]:
        merged = table.fields
        is_declared = table.name.lower() in self.declared
        for new in fields:
            old = table.field(new.name)
            said = f"`{old.name}` {old.type}" if old is not None else "no column of that name"
            if (old is None and is_declared) or (old is not None and _normal(old.type) != _normal(new.type)):
                construct = f"The column `{new.name}` {new.type} of {table.name}"
                hint = "make the columns and types of the plan match the declaration."
                raise refuse_unsupported(construct, place, hint, f"the table has {said}")
            merged += () if old is not None else (new,)
        return merged

    def _filter(self, filter_: Any, place: str) -> QueryBlock:
        block = self.read(filter_.input, place)
        condition = self.expressions.read(filter_.condition, block.columns, place)
        return replace(block, where=(*block.where, condition.expr))

    def _project(self, project: Any, place: str) -> QueryBlock:
        block = self.read(project.input, place)
        computed = (self.expressions.read(expr, block.columns, place) for expr in project.expressions)
        return replace(block, columns=(*block.columns, *computed))

    def _set(self, set_: Any, place: str) -> QueryBlock:
        union_all = 6
        if set_.op != union_all:
            operation = set_.DESCRIPTOR.fields_by_name["op"].enum_type.values_by_number.get(set_.op)
            construct = "The set operation " + (operation.name.removeprefix("SET_OP_") if operation else str(set_.op))
            raise refuse_unsupported(construct, place, "UNION ALL is read; compute others in the producer.")
        blocks = [self.read(rel, f"{place} {number}") for number, rel in enumerate(set_.inputs, start=1)]
        first = blocks[0].columns if blocks else ()
        if not first or any(len(block.columns) != len(first) for block in blocks):
            raise refuse_unsupported("A union of different numbers of columns", place, "write the plan again.")
        names = _names(first)
        scans = tuple(self._input_of_union(block, [c.type for c in first], names) for block in blocks)
        union = Union(scans, self._unique("union", self.reserved))
        return QueryBlock(
            union, tuple(TypedExpr(column((union.alias, n)), c.type) for n, c in zip(names, first, strict=True))
        )

    def _input_of_union(self, block: QueryBlock, types: Sequence[str | None], names: tuple[str, ...]) -> Scan:
        """A view with the columns of the union, in its types."""
        columns = tuple(cast_to(c, t) for c, t in zip(block.columns, types, strict=True))
        view = self._view(replace(block, columns=columns), names)
        return Scan(view, view)

    def _join(self, join: Any, place: str) -> QueryBlock:
        """The joins that have a condition: whatever operator the plan names, ours is chosen by it."""
        left, right = self._side(join.left, f"{place} left"), self._side(join.right, f"{place} right")
        on = None
        if join.HasField("expression"):
            on = self.expressions.read(join.expression, (*left.columns, *right.columns), place).expr
        return self._build_join(join, left, right, on, place)

    def _cross(self, cross: Any, place: str) -> QueryBlock:
        left, right = self._side(cross.left, f"{place} left"), self._side(cross.right, f"{place} right")
        return QueryBlock(Join(left.relation, right.relation, "inner", TRUE), (*left.columns, *right.columns))

    def _join_by_keys(self, join: Any, place: str) -> QueryBlock:
        left, right = self._side(join.left, f"{place} left"), self._side(join.right, f"{place} right")
        is_merge = join.DESCRIPTOR.name == "MergeJoinRel"
        tests = [_key(key, left, right, place, is_merge=is_merge) for key in join.keys]
        for mine, theirs in zip(join.left_keys, join.right_keys, strict=False):
            pair = (read_selection(mine, left.columns, place).expr, read_selection(theirs, right.columns, place).expr)
            tests.append(Expr("=", pair))
        if not tests or len(join.left_keys) != len(join.right_keys):
            hint = "name the columns that must be equal, or use the join relation with a condition."
            raise refuse_unsupported("A join by keys without a key for each side", place, hint)
        if join.HasField("residual_expression"):
            both = (*left.columns, *right.columns)
            tests.append(self.expressions.read(join.residual_expression, both, place).expr)
        return self._build_join(join, left, right, conjunction(tests), place, "merge" if is_merge else None)

    def _build_join(
        self,
        join: Any,
        left: QueryBlock,
        right: QueryBlock,
        on: Expr | None,
        place: str,
        operator: Literal["merge"] | None = None,
    ) -> QueryBlock:
        word = join.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number.get(join.type)
        type_ = word.name.removeprefix("JOIN_TYPE_") if word is not None else str(join.type)
        if type_ not in JOIN_TYPES:
            hint = "use INNER, OUTER, LEFT, RIGHT, a SEMI or an ANTI join."
            raise refuse_unsupported(f"A join of type {type_}", place, hint)
        kind, is_turned = JOIN_TYPES[type_]
        first, second = (right, left) if is_turned else (left, right)
        relation = Join(first.relation, second.relation, kind, on or TRUE, operator=operator)
        block = QueryBlock(relation, first.columns if kind in LEFT_ONLY else (*first.columns, *second.columns))
        if "post_join_filter" not in join.DESCRIPTOR.fields_by_name or not join.HasField("post_join_filter"):
            return block
        after = self.expressions.read(join.post_join_filter, block.columns, place)
        return replace(block, where=(after.expr,))

    def _side(self, rel: Any, place: str) -> QueryBlock:
        """An input of a join: rows as they come from tables and other joins, or a view."""
        block = self.read(rel, place)
        is_plain = not block.where and all(
            c.expr.op == "column" and len(c.expr.refs[0].parts) == 2 for c in block.columns
        )
        is_right_join = place.endswith(" right") and isinstance(block.relation, Join)
        if is_plain and not is_right_join:
            return block
        if isinstance(block.relation, Scan) and all(c.expr.op == "column" for c in block.columns):
            return self._filter_view(block, block.relation)
        names = _names(block.columns)
        view = self._view(block, names)
        columns = tuple(TypedExpr(column((view, n)), c.type) for n, c in zip(names, block.columns, strict=True))
        return QueryBlock(Scan(view, view), columns)

    def _filter_view(self, block: QueryBlock, scan: Scan) -> QueryBlock:
        """A filtered table: its view keeps the columns, and with them the table's own order."""
        view = self._unique(f"{scan.alias}_filtered", self.reserved)
        self.views.append(View(view, Query(scan, (Star(),), conjunction(block.where), result="table")))
        parts = [(view, *c.expr.refs[0].parts[1:]) for c in block.columns]
        columns = tuple(TypedExpr(column(p), c.type) for p, c in zip(parts, block.columns, strict=True))
        return QueryBlock(Scan(view, view), columns)

    def _view(self, block: QueryBlock, names: tuple[str, ...]) -> str:
        name = self._unique("view", self.reserved)
        self.views.append(View(name, query_of(block, names)))
        return name

    def _unique(self, name: str, others: frozenset[str] = frozenset()) -> str:
        """The name, with a number behind it if it is taken or one of the others."""
        number, candidate = 1, name
        while candidate.lower() in self.names or candidate.lower() in others:
            number += 1
            candidate = f"{name}_{number}"
        self.names.add(candidate.lower())
        return candidate


TRUE = Expr("literal", text="TRUE", value=True)


def query_of(block: QueryBlock, names: Sequence[str]) -> Query:
    """The query that shows the columns of a block under these names."""
    items = tuple(Item(c.expr, name) for c, name in zip(block.columns, names, strict=True))
    return Query(block.relation, items, conjunction(block.where), result="table")


def conjunction(tests: Sequence[Expr]) -> Expr | None:
    """All tests joined by AND; None if the sequence is empty."""
    parts = tuple(part for test in tests for part in (test.args if test.op == "and" else (test,)))
    return Expr("and", parts) if len(parts) > 1 else next(iter(parts), None)


def pick_columns(columns: tuple[TypedExpr, ...], numbers: Sequence[int], place: str) -> tuple[TypedExpr, ...]:
    """The columns of these positions, in this order."""
    missing = next((number for number in numbers if not 0 <= number < len(columns)), None)
    if missing is not None:
        hint = "write the plan again with its producer."
        raise refuse_unsupported(f"A reference to column {missing} where there are {len(columns)}", place, hint)
    return tuple(columns[number] for number in numbers)


def _names(columns: Sequence[TypedExpr]) -> tuple[str, ...]:
    """Names for the columns of a view: their own where they have one that no other has."""
    own = [c.expr.refs[0].parts[-1] if c.expr.op == "column" else "" for c in columns]
    counts = Counter(name.lower() for name in own)
    taken = {name for name, times in counts.items() if times == 1}
    numbered = (name for number in count(1) if (name := f"c{number}") not in taken)
    return tuple(name if name and counts[name.lower()] == 1 else next(numbered) for name in own)


def _key(key: Any, left: QueryBlock, right: QueryBlock, place: str, *, is_merge: bool) -> Expr:
    kinds = {1: "=", 2: "<=>"}
    simple = key.comparison.simple if key.comparison.WhichOneof("kind") == "simple" else None
    if simple not in kinds or (is_merge and simple != 1):
        hint = "compare keys with EQ; write other comparisons as the condition of a join relation."
        raise refuse_unsupported("A key that is not compared by equality", place, hint)
    pair = (read_selection(key.left, left.columns, place).expr, read_selection(key.right, right.columns, place).expr)
    return Expr("=" if simple == 1 else "<=>", pair)


def _normal(type_: str) -> str:
    return "".join(type_.upper().split())


def read_substrait(plan: bytes | str, name: str = "<plan>", declared: Sequence[Source] = ()) -> Script:
    """The script that a plan is, from its bytes or its JSON; ``name`` is what refusals call it.

    ``declared`` are tables that are known already, such as those of a SQL file: a plan that reads one reads it as it is
    declared, with its key and its format.

    >>> schema = {"names": ["id"], "struct": {"types": [{"i64": {}}]}}
    >>> read = {"read": {"namedTable": {"names": ["orders"]}, "baseSchema": schema}}
    >>> import json
    >>> script = read_substrait(json.dumps({"relations": [{"root": {"input": read, "names": ["id"]}}]}), "example")
    >>> script.sources[0].name, script.sources[0].kind, script.queries[0].result
    ('orders', 'table', 'table')
    """
    message = decode_plan(plan, name)
    root = _root(message, name)
    try:
        reserved = frozenset(_tables(root.input)) | {source.name.lower() for source in declared}
        relations = Relations(_expressions(message), {source.name.lower(): source for source in declared}, reserved)
        block = relations.read(root.input, "root")
        query = query_of(block, _output_names(root, block))
    except RecursionError:
        hint = "split it: write the result of a part as a table, and read that."
        raise refuse_unsupported("Nesting this deep", "root", hint) from None
    query = replace(query, views=tuple(relations.views))
    return Script(name, "", sources=tuple(relations.tables.values()), queries=(query,))


def _expressions(message: Any) -> Expressions:
    functions = {
        declaration.extension_function.function_anchor: declaration.extension_function.name
        for declaration in message.extensions
        if declaration.WhichOneof("kind") == "extension_function"
    }
    return Expressions(functions, message.version.producer.lower())


def _tables(message: Any) -> Iterator[str]:
    """The names of the tables that are read anywhere inside."""
    if message.DESCRIPTOR.name == "NamedTable":
        yield from (".".join(message.names).lower(), *(name.lower() for name in message.names[-1:]))
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _tables(part)


def _root(message: Any, name: str) -> Any:
    """The one relation of the plan that is its result."""
    roots = [relation.root for relation in message.relations if relation.WhichOneof("kind") == "root"]
    if len(roots) != 1:
        hint = (
            "write one plan for each result." if roots else "write a plan, and not only an expression or a part of one."
        )
        reason = f"it has {len(roots)} results, but a DataFrame is the result of one"
        raise refuse("WRONG_SUBSTRAIT", plan=name, reason=reason, hint=hint)
    if len(message.relations) > 1:
        hint = "write the shared part once for each place that reads it."
        raise refuse_unsupported("A relation next to the root", "root", hint)
    return roots[0]


def _output_names(root: Any, block: QueryBlock) -> list[str]:
    """The name of each column. Names inside structs are left out; a name that occurs twice gets a number."""
    root_names, names = list(root.names), list[str]()
    for shown in block.columns:
        name = root_names.pop(0) if root_names else ""
        del root_names[: names_inside(shown.type) if shown.type is not None else 0]
        taken = {other.lower() for other in names}
        numbered = (f"{name}_{number}" for number in range(2, len(block.columns) + 2))
        names.append(name if name.lower() not in taken else next(n for n in numbered if n.lower() not in taken))
    if root_names or "" in names:
        hint = "write the plan again: its root names every column, and every field of a struct."
        raise refuse_unsupported(f"A root with {len(root.names)} names for {len(block.columns)} columns", "root", hint)
    return names
