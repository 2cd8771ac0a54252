"""A query that may run, taken down as blocks of steps (see `topology`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from watersmeet.explanation.families import asof_facts, sync_facts, window_facts
from watersmeet.explanation.interval import emitted, interval_facts, kept
from watersmeet.explanation.source import pruned, scan_block
from watersmeet.explanation.tables import group_facts, lookup_facts, table_facts
from watersmeet.explanation.topology import Block, Step
from watersmeet.explanation.where import staying
from watersmeet.families.asof.relation import AnalyzedAsofJoin
from watersmeet.families.changelog.relation import AnalyzedTableJoin
from watersmeet.families.interval.relation import AnalyzedIntervalJoin
from watersmeet.families.lookup.relation import AnalyzedLookupJoin
from watersmeet.families.sync.relation import AnalyzedSyncJoin
from watersmeet.families.window.relation import AnalyzedWindowJoin
from watersmeet.plan.facts import Fact, conditions, is_unnamed, row_names, texts
from watersmeet.plan.relation import (
    AnalyzedGroup,
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedQuery,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    TimeBound,
    scans,
)
from watersmeet.plan.result_columns import ResultColumn, lines, result_columns, ungrouped
from watersmeet.plan.words import expression_in_words, kind_in_words, word

MOVED = "moved here from WHERE"


Stateful = AnalyzedJoin | AnalyzedGroup | AnalyzedQuery | AnalyzedScan
"""What keeps rows: a join, a group, and the latest rows by key of a result or of a source that is a table."""


@dataclass(frozen=True)
class Physical:
    """What is known of a query besides, once it has a physical plan.

    - ``remarks``: the operator of whatever keeps rows, and why it was chosen
    - ``read``: the columns that are asked for of a source or a view
    - ``exchange``: how the rows of an input, by its number, reach the shards; "" where nothing is kept
    - ``shards``: what is to be said of the shards of the whole query
    """

    remarks: Callable[[Stateful], Sequence[Fact]] = lambda stateful: ()
    read: Callable[[AnalyzedLeaf], Sequence[str] | None] = lambda leaf: None
    exchange: Callable[[Stateful, int], str] = lambda stateful, port: ""
    shards: Sequence[str] = ()


def query_block(query: AnalyzedQuery, physical: Physical) -> Block:
    """The whole query, with its sinks."""
    select = "SELECT TABLE" if query.result == "table" else "SELECT"
    heading = f"INSERT INTO {word(query.into)}" if query.into else select
    columns, data = _columns(query)
    project = Step("project", facts=columns, data=data)
    if query.ports_into:
        last = (
            replace(project, facts=(*columns, _ports(query), ("shards", physical.shards)), beside=_port_sinks(query)),
        )
    else:
        sink = Step("sink", heading, (*_result(query), ("shards", physical.shards)), _result_data(query))
        last = (project, *_latest(query, physical), sink)
    return _with_body(heading, query, physical, last)


def _with_body(heading: str, query: AnalyzedQuery, physical: Physical, last: tuple[Step, ...]) -> Block:
    """A query up to its columns, and the steps that follow."""
    where = Step("filter", facts=(staying(query),), data={"where": texts(query.where)})
    steps = (*((where,) if query.where else ()), *_group(query, physical), *last)
    below = _relation(query, query.relation, physical)
    if steps[0].kind == "repartition":
        # It stands with what it sends, as before a join.
        below, steps = replace(below, steps=(*below.steps, steps[0])), steps[1:]
    return Block(heading, steps, (below,), "input")


def _group(query: AnalyzedQuery, physical: Physical) -> tuple[Step, ...]:
    group = query.group
    if group is None:
        return ()
    remarks, facts = physical.remarks(group), group_facts(group)
    data = {"group": {**_data(facts), "remarks": _data(remarks)}}
    return (*_exchange(physical.exchange(group, 0)), Step("group", facts=(*remarks, *facts), data=data))


def _latest(kept: AnalyzedQuery | AnalyzedScan, physical: Physical) -> tuple[Step, ...]:
    """The latest row of each key, where a physical plan keeps it."""
    remarks = physical.remarks(kept)
    if not remarks:
        return ()
    return (*_exchange(physical.exchange(kept, 0)), Step("table", facts=tuple(remarks), data={"table": _data(remarks)}))


def _columns(query: AnalyzedQuery, hidden: Collection[str] = ()) -> tuple[tuple[Fact, ...], dict[str, object]]:
    shown = tuple(column for column in result_columns(query) if column.name not in hidden)
    return (("columns", lines(shown)),), {"columns": [_column_data(column) for column in shown]}


def _column_data(column: ResultColumn) -> dict[str, object]:
    text = expression_in_words(column.expr)
    return {"name": column.name, "expression": text, "type": column.type, "nullable": column.nullable}


def _result(query: AnalyzedQuery) -> tuple[Fact, ...]:
    is_table = query.result == "table"
    key = ", ".join(texts(tuple(ungrouped(expr, query.group) for expr in query.key)))
    return (
        ("result", ["a table: its changes, with + or - in _change"] * is_table),
        ("key", [key] if key else []),
        ("late rows", [f"into {query.late_into}"] if query.late_into else []),
    )


def _result_data(query: AnalyzedQuery) -> dict[str, object]:
    return {"result": query.result, "key": texts(tuple(ungrouped(expr, query.group) for expr in query.key))}


def _ports(query: AnalyzedQuery) -> Fact:
    names = [scan.alias for scan in scans(query.relation)]
    return "ports", [f"{name} into {sink}" for name, sink in zip(names, query.ports_into, strict=False)]


def _port_sinks(query: AnalyzedQuery) -> tuple[Step, ...]:
    return tuple(Step("sink", f"{line.replace(' into ', ' rows INTO ')}") for line in _ports(query)[1])


def _relation(query: AnalyzedQuery, relation: AnalyzedRelation, physical: Physical) -> Block:
    match relation:
        case AnalyzedScan():
            block = scan_block(relation, physical.read(relation))
            return replace(block, steps=(*block.steps, *_latest(relation, physical)))
        case AnalyzedView():
            return _view(relation, physical)
        case AnalyzedUnion():
            heading = f"union AS {word(relation.alias)}"
            data = {"union": relation.alias, "filters": texts(relation.filters)}
            step = Step(
                "view", heading, (("rows", ["those of all its sides, by the position of their columns"]),), data
            )
            sides = tuple(_relation(query, side, physical) for side in relation.sides)
            return Block(heading, (step, *_moved(conditions("filter", relation.filters, MOVED))), sides, "input")
        case AnalyzedLateral():
            below = _relation(query, relation.input, physical)
            array = expression_in_words(relation.array)
            heading = f"LATERAL {array} AS {word(relation.alias)}"
            facts = (("rows", ["each row once with every element; none for an empty array or NULL"]),)
            data = {"lateral": array, "alias": relation.alias, "filters": texts(relation.filters)}
            step = Step("lateral", heading, facts, data)
            return Block(heading, (step, *_moved(conditions("filter", relation.filters, MOVED))), (below,), "input")
        case AnalyzedJoin():
            return _join(query, relation, physical)
        case _:
            raise AssertionError(relation)


def _view(view: AnalyzedView, physical: Physical) -> Block:
    renamed = "" if view.alias == view.source.name else f" AS {word(view.alias)}"
    name = view.source.name
    heading = f"subquery AS {word(view.alias)}" if is_unnamed(name) else f"view {word(name)}{renamed}"
    facts, columns = _columns(view.query, {field.name for field in view.source.fields if field.hidden})
    read = physical.read(view)
    data = {
        "view": view.source.name,
        "alias": view.alias,
        "filters": texts(view.filters),
        "read": None if read is None else list(read),
        **columns,
        **_result_data(view.query),
    }
    step = Step("view", heading, (*facts, *pruned(view.source, read), *_result(view.query)), data)
    filters = _moved(conditions("filter", view.filters, MOVED))
    return _with_body(heading, view.query, physical, (step, *_latest(view.query, physical), *filters))


def _moved(fact: Fact) -> tuple[Step, ...]:
    return (Step("filter", facts=(fact,)),) if fact[1] else ()


def _join(query: AnalyzedQuery, join: AnalyzedJoin, physical: Physical) -> Block:
    below = tuple(
        _sent(_relation(query, side, physical), physical.exchange(join, port)) for port, side in enumerate(join.inputs)
    )
    heading, facts = join_heading(join), _facts(query, join)
    remarks = physical.remarks(join)
    data: dict[str, object] = {"join": heading, "remarks": _data(remarks), **_data(facts)}
    if isinstance(join, AnalyzedIntervalJoin):
        data = {"join": join.kind, "remarks": _data(remarks), **_interval_data(query, join)}
    step = Step("join", heading, (*remarks, *facts), data, _beside(query, join))
    return Block(heading, (step,), below, "sides" if isinstance(join, AnalyzedIntervalJoin) else "inputs")


def _beside(query: AnalyzedQuery, join: AnalyzedJoin) -> tuple[Step, ...]:
    """The sinks that get rows of a join apart from its result; only rows of a source can be late."""
    is_fed = any(isinstance(side, AnalyzedScan) for side in join.inputs)
    late = [f"late rows INTO {query.late_into}"] if query.late_into and is_fed else []
    names = (f"{side} rows without a match" for side in ("left", "right"))
    alone = [f"{name} INTO {sink}" for name, sink in zip(names, query.unmatched_into, strict=True) if sink]
    return tuple(Step("sink", title) for title in (*late, *(alone if isinstance(join, AnalyzedWindowJoin) else ())))


def _sent(block: Block, line: str) -> Block:
    return replace(block, steps=(*block.steps, *_exchange(line)))


def _exchange(line: str) -> tuple[Step, ...]:
    return (Step("repartition", facts=(("repartition", [line]),), data={"repartition": line}),) if line else ()


def join_heading(join: AnalyzedJoin) -> str:
    """A join as it is written."""
    match join:
        case AnalyzedSyncJoin():
            return "SYNC JOIN"
        case AnalyzedAsofJoin():
            return "ASOF JOIN" if join.kind == "inner" else f"{kind_in_words(join.kind)} ASOF JOIN"
        case AnalyzedWindowJoin():
            return f"{kind_in_words(join.kind)} JOIN of windows"
        case AnalyzedLookupJoin():
            return f"{kind_in_words(join.kind)} JOIN of a stream with a table"
        case AnalyzedTableJoin():
            return f"{kind_in_words(join.kind)} JOIN of tables"
        case AnalyzedIntervalJoin():
            return f"{kind_in_words(join.kind)} JOIN"
        case _:
            raise AssertionError(join)


def _facts(query: AnalyzedQuery, join: AnalyzedJoin) -> list[Fact]:
    names = row_names(query.relation)
    match join:
        case AnalyzedSyncJoin():
            return sync_facts(join)
        case AnalyzedAsofJoin():
            return asof_facts(join, names)
        case AnalyzedWindowJoin():
            return window_facts(query, join, names)
        case AnalyzedLookupJoin():
            return lookup_facts(join, names)
        case AnalyzedTableJoin():
            return table_facts(join, names)
        case AnalyzedIntervalJoin():
            return interval_facts(query, join, names)
        case _:
            raise AssertionError(join)


def _data(facts: Sequence[Fact]) -> dict[str, object]:
    return {label.replace(" ", "_"): list(lines) for label, lines in facts}


def _interval_data(query: AnalyzedQuery, join: AnalyzedIntervalJoin) -> dict[str, object]:
    names = row_names(query.relation)
    return {
        "keys": [[expression_in_words(a), expression_in_words(b)] for a, b in join.keys],
        "bounds": [_bound_data(bound) for bound in join.bounds],
        "kept": kept(query, join, names),
        "emitted": emitted(join, names),
        "left_only": texts(join.left_only),
        "right_only": texts(join.right_only),
        "residual": texts(join.residual),
    }


def _bound_data(bound: TimeBound) -> dict[str, object]:
    column, other = str(bound.column), str(bound.other)
    return {"column": column, "other": other, "constant": bound.constant, "strict": bound.strict}
