"""A Substrait plan read into a script: its tables, and the one query that it is.

The tables of the plan are bags of rows under their names, and its result is a table. Everything that follows (names,
operators, refusals) is what follows for a query written in SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.language.substrait.expressions import Expressions
from watersmeet.language.substrait.messages import decode_plan
from watersmeet.language.substrait.relations import QueryBlock, Relations, query_of
from watersmeet.language.substrait.types import names_inside, refuse_unsupported
from watersmeet.plan.nodes import Script


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
    for field, value in message.ListFields():
        if field.message_type is not None:
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
    """The name of each column. Names inside structs are left out; a name that is there twice gets a number."""
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
