"""A query that may run, taken down as blocks of steps (see `topology`): as text, as JSON and as a graph to be drawn.

With its physical plan it says the operator, the exchange and the reasons; notebooks show it as a drawing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, cast

from watersmeet.catalog import Sink
from watersmeet.formats import source_format
from watersmeet.formats.base import SHOWN
from watersmeet.locations import mask_secrets
from watersmeet.logical.expressions import Expr
from watersmeet.logical.nodes import REPEATED_ROWS
from watersmeet.logical.passes.settings import JSON_IN_WORKERS
from watersmeet.logical.query import (
    AnalyzedBranch,
    AnalyzedGroup,
    AnalyzedOver,
    AnalyzedQuery,
    AnalyzedTop,
    ResultColumn,
    bounds_in_words,
    bounds_of,
    column_lines,
    expand_group,
    result_columns,
    shows_own_late_rows,
)
from watersmeet.logical.relation import (
    AnalyzedJoin,
    AnalyzedLateral,
    AnalyzedLeaf,
    AnalyzedRelation,
    AnalyzedScan,
    AnalyzedUnion,
    AnalyzedView,
    ConditionalJoin,
    leaves,
    scans,
)
from watersmeet.logical.words import (
    Fact,
    conditions,
    expression_in_words,
    in_plain_words,
    is_unnamed,
    row_names,
    texts,
    word,
)
from watersmeet.operators.explainer import Families, Inputs, StageExplainer, explainer, facts_as_data
from watersmeet.physical.columnar import holds_records, is_columnar, sources_of_columns
from watersmeet.physical.identity import digest
from watersmeet.physical.nodes import (
    SHARDS,
    JoinPlan,
    PortPlan,
    QueryPlan,
    RelationPlan,
    StaticJoinPlan,
    join_name,
    join_plans,
    view_plans,
)
from watersmeet.tools.explain.parsed import read_facts, scan_block
from watersmeet.tools.explain.svg import draw
from watersmeet.tools.explain.topology import (
    PlanBlock,
    PlanStep,
    Topology,
    block_as_json,
    topology,
    topology_as_json,
    tree,
)


def where_fact(query: AnalyzedQuery, families: Families) -> Fact:
    """The parts of WHERE that are applied to the joined rows, each with the reason why not earlier."""
    reasons = [(expression_in_words(part), _reason(query.relation, part, families)) for part in query.where]
    return "where", [f"{text} ({reason})" if reason else text for text, reason in reasons]


def _reason(relation: AnalyzedRelation, part: Expr, families: Families) -> str:
    names = row_names(relation)
    sources = sorted(source for source in part.sources if source in names)
    if len(sources) > 1:
        behind = "the join" if len(leaves(relation)) > 1 else "LATERAL"
        return f"after {behind}: it uses columns of {' and '.join(names[alias] for alias in sources)}"
    if not sources or part.sources != frozenset(sources):
        return ""
    return _why_not_moved(relation, sources[0], names[sources[0]], families)


def _why_not_moved(relation: AnalyzedRelation, alias: str, who: str, families: Families) -> str:
    """The reason why a condition on one alias, whose rows are called ``who``, cannot be moved to that alias."""
    port = next((port for port, side in enumerate(relation.inputs) if alias in side.aliases), None)
    if port is None or isinstance(relation, AnalyzedLeaf):
        return ""
    if isinstance(relation, AnalyzedJoin):
        reason = explainer(families, relation).why_filter_stays(relation, port, who)
        if reason:
            return f"after the join: {reason}"
    return _why_not_moved(relation.inputs[port], alias, who, families)


MOVED = "moved here from WHERE"


Stateful = AnalyzedJoin | AnalyzedGroup | AnalyzedTop | AnalyzedQuery | AnalyzedScan
"""A part that stores rows: a join, a group, and the latest rows by key of a result or of a source that is a table."""


@dataclass(frozen=True)
class PlanDetails:
    """Details of a query besides its analysis: all families, and those of a physical plan.

    - ``families``: the families by name
    - ``remarks``: the operator of a stateful node, and why it was chosen
    - ``read``: the columns that are read of a source or a view
    - ``operator``: the name of a stateful node in the metrics of a running query
    - ``exchange``: how the rows of an input, by its number, reach the shards; "" without state
    - ``shards``: the remark about the shards of the whole query
    - ``sinks``: the sinks by name
    """

    families: Families
    remarks: Callable[[Stateful], list[Fact]] = lambda stateful: []
    read: Callable[[AnalyzedLeaf], Sequence[str] | None] = lambda leaf: None
    operator: Callable[[Stateful], str] = lambda stateful: ""
    exchange: Callable[[Stateful, int], str] = lambda stateful, port: ""
    shards: Sequence[str] = ()
    sinks: Mapping[str, Sink] = field(default_factory=dict[str, Sink])

    def with_sinks(self, sinks: Iterable[Sink]) -> PlanDetails:
        """The same, with where rows go."""
        return replace(self, sinks={sink.name.lower(): sink for sink in sinks})

    def writes(self, name: str | None) -> tuple[Fact, ...]:
        """The target of a sink: its format, and the place that it names."""
        sink = None if name is None else self.sinks.get(name.lower())
        if sink is None:
            return ()
        places = [
            sink.lowercase_options[option]
            for option in ("path", "topic", "table", "dbtable")
            if option in sink.lowercase_options
        ]
        return (("writes", [mask_secrets(" ".join((sink.format, *places[:1])))]),)


def query_block(query: AnalyzedQuery, details: PlanDetails) -> PlanBlock:
    """The whole query, with its sinks, in names that users know."""
    generated = dict(_internal_columns(query))

    def plain(value: Any) -> Any:
        """A text, or what holds some, without generated names."""
        if isinstance(value, str):
            return in_plain_words(value, generated)
        if isinstance(value, Mapping):
            return {name: plain(item) for name, item in cast("Mapping[str, Any]", value).items()}
        return [plain(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else value

    def plain_step(step: PlanStep) -> PlanStep:
        facts = tuple((label, plain(lines)) for label, lines in step.facts)
        sinks = tuple(map(plain_step, step.side_outputs))
        return replace(step, title=plain(step.title), facts=facts, data=plain(step.data), side_outputs=sinks)

    def plain_block(block: PlanBlock) -> PlanBlock:
        steps, inputs = tuple(map(plain_step, block.steps)), tuple(map(plain_block, block.inputs))
        return replace(block, heading=plain(block.heading), steps=steps, inputs=inputs)

    return plain_block(_query_block(query, details))


def _internal_columns(query: AnalyzedQuery) -> Iterator[tuple[str, str]]:
    """The columns of views that only the plan names, such as what rows are ordered by, each with what it stands for."""
    for view in _views(query.relation):
        for column in result_columns(view.query):
            if is_unnamed(column.name):
                yield f"{view.alias}.{column.name}", expression_in_words(column.expr)


def _views(relation: AnalyzedRelation) -> Iterator[AnalyzedView]:
    if isinstance(relation, AnalyzedView):
        yield relation
        yield from _views(relation.query.relation)
    for side in relation.inputs:
        yield from _views(side)


def _query_block(query: AnalyzedQuery, details: PlanDetails) -> PlanBlock:
    select = "SELECT TABLE" if query.result == "table" else "SELECT"
    heading = f"INSERT INTO {', '.join(map(word, query.sinks))}" if query.sinks else select
    columns, data = _columns(query)
    bounds = bounds_of(query)
    project = PlanStep(
        "project", facts=columns, data={**data, "state": [{"by": b.by, "what": b.words} for b in bounds]}
    )
    further = (("state", [bounds_in_words(bounds)]), ("shards", details.shards))
    if query.ports_into:
        ports = _ports(query)
        named = zip(ports[1], query.ports_into, strict=True)
        sinks = tuple(
            PlanStep("sink", line.replace(" into ", " rows INTO "), details.writes(sink)) for line, sink in named
        )
        last = (replace(project, facts=(*columns, ports, *further), side_outputs=sinks),)
    elif query.branches:
        facts = (*columns, ("branches", [_branch_line(branch) for branch in query.branches]))
        *steps, end = (replace(project, facts=facts), *_latest(query, details))
        sinks = tuple(_branch_sink(branch, details) for branch in query.branches)
        last = (*steps, replace(end, facts=(*end.facts, *_result(query), *further), side_outputs=sinks))
    else:
        sink = PlanStep("sink", heading, (*details.writes(query.into), *_result(query), *further), _result_data(query))
        last = (project, *_latest(query, details), sink)
    return _with_body(heading, query, details, last)


def _branch_line(branch: AnalyzedBranch) -> str:
    """The rows that go to a sink of several: all of the result, or some columns of some rows."""
    where = f" WHERE {' AND '.join(texts(branch.where))}" if branch.where else ""
    return f"{word(branch.sink)}: {', '.join(_branch_columns(branch)) if branch.alias else 'all rows'}{where}"


def _branch_columns(branch: AnalyzedBranch) -> list[str]:
    columns = ((output.name, expression_in_words(output.expr)) for output in branch.query.outputs)
    return [text if text.split(".")[-1] == word(name) else f"{text} AS {word(name)}" for name, text in columns]


def _branch_sink(branch: AnalyzedBranch, details: PlanDetails) -> PlanStep:
    facts = (
        *details.writes(branch.sink),
        ("columns", _branch_columns(branch) if branch.alias else []),
        ("where", texts(branch.where)),
    )
    return PlanStep("sink", f"INSERT INTO {word(branch.sink)}", facts)


def _with_body(heading: str, query: AnalyzedQuery, details: PlanDetails, last: tuple[PlanStep, ...]) -> PlanBlock:
    """A query up to its columns, and the steps that follow."""
    where = PlanStep("filter", facts=(where_fact(query, details.families),), data={"where": texts(query.where)})
    steps, below = (where,) if query.where else (), _relation(query, query.relation, details)
    stage = query.group or query.top
    for window in stage.stages[:-1] if isinstance(stage, AnalyzedOver) else ():
        below = _block(window.words, (*steps, *_stage(query, window, details)), below, "stage")
        steps = ()
    return _block(heading, (*steps, *(() if stage is None else _stage(query, stage, details)), *last), below, "input")


def _block(heading: str, steps: tuple[PlanStep, ...], below: PlanBlock, inputs_name: Inputs) -> PlanBlock:
    """A block over another; an exchange is shown with what goes through it, as before a join."""
    if steps[0].kind == "repartition":
        below, steps = replace(below, steps=(*below.steps, steps[0])), steps[1:]
    return PlanBlock(heading, steps, (below,), inputs_name)


def _stage(query: AnalyzedQuery, stage: AnalyzedGroup | AnalyzedTop, details: PlanDetails) -> tuple[PlanStep, ...]:
    """The steps of a stage behind the relation of a query: a group, a top-N, or the functions of a window."""
    stage_explainer = details.families[stage.family].explain
    assert isinstance(stage_explainer, StageExplainer)
    windows = stage.stages if isinstance(stage, AnalyzedOver) else (stage,)
    stages: list[dict[str, object]] = [
        {**facts_as_data(stage_explainer.facts(each)), "remarks": facts_as_data(details.remarks(each))}
        for each in windows
    ]
    for each, facts in zip(windows, stages, strict=True):
        if isinstance(each, AnalyzedOver):
            facts["repartition"] = details.exchange(each, 0) or None
    data = {"over": stages} if stage.family == "over" else {stage.family if stage is query.group else "top": stages[0]}
    duplicates = [output.sink for output in query.side_outputs if output.column == REPEATED_ROWS]
    sinks = [(f"duplicates INTO {word(sink)}", sink) for sink in duplicates]
    if query.late_into and windows[0] is stage and shows_own_late_rows(query.relation, query.top):
        sinks.append((f"late rows INTO {query.late_into}", query.late_into))
    return (
        *_exchange(details.exchange(stage, 0)),
        PlanStep(
            "group", "", (*details.remarks(stage), *stage_explainer.facts(stage)), data,
            tuple(PlanStep("sink", title, details.writes(sink)) for title, sink in sinks), details.operator(stage),
        ),
    )  # fmt: skip


def _latest(stateful: AnalyzedQuery | AnalyzedScan, details: PlanDetails) -> tuple[PlanStep, ...]:
    """The latest row of each key, where a physical plan keeps it."""
    remarks = details.remarks(stateful)
    if not remarks:
        return ()
    return (
        *_exchange(details.exchange(stateful, 0)),
        PlanStep(
            "table", facts=tuple(remarks), data={"table": facts_as_data(remarks)}, operator=details.operator(stateful)
        ),
    )


def _columns(query: AnalyzedQuery, hidden: Collection[str] = ()) -> tuple[tuple[Fact, ...], dict[str, object]]:
    shown = tuple(c for c in result_columns(query) if c.name not in hidden and not is_unnamed(c.name))
    return (("columns", column_lines(shown)),), {"columns": [_column_data(column) for column in shown]}


def _column_data(column: ResultColumn) -> dict[str, object]:
    text = expression_in_words(column.expr)
    return {"name": column.name, "expression": text, "type": column.type, "nullable": column.nullable}


def _result(query: AnalyzedQuery) -> tuple[Fact, ...]:
    is_table = query.result == "table"
    key = ", ".join(texts(tuple(expand_group(expr, query.group) for expr in query.key)))
    return (
        ("result", ["a table: its changes, with + or - in _change"] * is_table),
        ("key", [key] if key else []),
        ("late rows", [f"into {query.late_into}"] if query.late_into else []),
        (
            "malformed rows",
            [f"into {side_output.sink}" for side_output in query.side_outputs if side_output.column == SHOWN],
        ),
        ("duplicates", [f"into {output.sink}" for output in query.side_outputs if output.column == REPEATED_ROWS]),
    )


def _result_data(query: AnalyzedQuery) -> dict[str, object]:
    return {"result": query.result, "key": texts(tuple(expand_group(expr, query.group) for expr in query.key))}


def _ports(query: AnalyzedQuery) -> Fact:
    names = [scan.alias for scan in scans(query.relation)]
    return "ports", [f"{name} into {sink}" for name, sink in zip(names, query.ports_into, strict=False)]


def _relation(query: AnalyzedQuery, relation: AnalyzedRelation, details: PlanDetails) -> PlanBlock:
    match relation:
        case AnalyzedScan():
            block = scan_block(relation, details.read(relation))
            return replace(block, steps=(*block.steps, *_latest(relation, details)))
        case AnalyzedView():
            return _view(relation, details)
        case AnalyzedUnion():
            heading = f"union AS {word(relation.alias)}"
            data = {"union": relation.alias, "filters": texts(relation.filters)}
            step = PlanStep(
                "view", heading, (("rows", ["those of all its inputs, with columns matched by position"]),), data
            )
            sides = tuple(_relation(query, side, details) for side in relation.sides)
            return PlanBlock(
                heading, (step, *_filter_step(conditions("filter", relation.filters, MOVED))), sides, "input"
            )
        case AnalyzedLateral():
            below = _relation(query, relation.input, details)
            array = expression_in_words(relation.array)
            heading = f"LATERAL {array} AS {word(relation.alias)}"
            rows = "one row per element; none for an empty array or NULL"
            if relation.array.op == "windows":
                heading, rows = f"windows {array}", "one row per window that contains it; none without a time"
            facts = (("rows", [rows]),)
            data = {"lateral": array, "alias": relation.alias, "filters": texts(relation.filters)}
            step = PlanStep("lateral", heading, facts, data)
            return PlanBlock(
                heading, (step, *_filter_step(conditions("filter", relation.filters, MOVED))), (below,), "input"
            )
        case AnalyzedJoin():
            return _join(query, relation, details)
        case _:
            raise AssertionError(relation)


def _view(view: AnalyzedView, details: PlanDetails) -> PlanBlock:
    renamed = "" if view.alias == view.source.name else f" AS {word(view.alias)}"
    name = view.source.name
    heading = f"subquery AS {word(view.alias)}" if is_unnamed(name) else f"view {word(name)}{renamed}"
    facts, columns = _columns(view.query, {field.name for field in view.source.fields if field.hidden})
    read = details.read(view)
    data = {
        "view": view.source.name,
        "alias": view.alias,
        "filters": texts(view.filters),
        "read": None if read is None else list(read),
        **columns,
        **_result_data(view.query),
    }
    step = PlanStep("view", heading, (*facts, *read_facts(view.source, read), *_result(view.query)), data)
    filters = _filter_step(conditions("filter", view.filters, MOVED))
    return _with_body(heading, view.query, details, (step, *_latest(view.query, details), *filters))


def _filter_step(fact: Fact) -> tuple[PlanStep, ...]:
    return (PlanStep("filter", facts=(fact,)),) if fact[1] else ()


def _join(query: AnalyzedQuery, join: AnalyzedJoin, details: PlanDetails) -> PlanBlock:
    sides = (_relation(query, side, details) for side in join.inputs)
    below = tuple(
        replace(side, steps=(*side.steps, *_exchange(details.exchange(join, port)))) for port, side in enumerate(sides)
    )
    join_explainer, names = explainer(details.families, join), row_names(query.relation)
    heading, remarks = join_explainer.heading(join), details.remarks(join)
    data = {"join": "", "remarks": facts_as_data(remarks), **join_explainer.as_data(query, join, names)}
    facts, side_sinks = (*remarks, *join_explainer.facts(query, join, names)), _side_output_sinks(query, join, details)
    step = PlanStep("join", heading, facts, data, side_sinks, details.operator(join))
    return PlanBlock(heading, (step,), below, join_explainer.inputs_name)


def _side_output_sinks(query: AnalyzedQuery, join: AnalyzedJoin, details: PlanDetails) -> tuple[PlanStep, ...]:
    """The sinks of a join's side outputs; only rows of a source can be late."""
    has_source = any(isinstance(side, AnalyzedScan) for side in join.inputs)
    late = [(f"late rows INTO {query.late_into}", query.late_into)] if query.late_into and has_source else []
    alone = [
        (f"{('left', 'right')[port]} rows without a match INTO {sink}", sink)
        for port, sink in enumerate(query.sinks_of_unmatched)
        if sink and join.has_side_output(port)
    ]
    return tuple(PlanStep("sink", title, details.writes(sink)) for title, sink in (*late, *alone))


def _exchange(line: str) -> tuple[PlanStep, ...]:
    return (PlanStep("repartition", facts=(("repartition", [line]),), data={"repartition": line}),) if line else ()


def render_query(query: AnalyzedQuery, details: PlanDetails) -> str:
    """The query as an indented tree: its columns, conditions, bounds, retention, and its sources."""
    return tree(query_block(query, details))


def query_as_json(query: AnalyzedQuery, details: PlanDetails) -> dict[str, object]:
    """The query for machines; `render_query` says the same."""
    block = query_block(query, details)
    data = block_as_json(block)
    relation = data.pop("input")
    return {
        "into": query.into,
        "late_into": query.late_into,
        "unmatched_into": list(query.sinks_of_unmatched),
        "ports_into": list(query.ports_into),
        "branches": [
            {
                "into": branch.sink,
                "where": texts(branch.where),
                "columns": [*map(_column_data, result_columns(branch.query))],
            }
            for branch in query.branches
        ],
        "where": [],
        "group": None,
        **data,
        "relation": relation,
        "warnings": [warned.message for warned in query.warnings],
        "topology": topology_as_json(topology(block)),
    }


def query_topology(query: AnalyzedQuery, details: PlanDetails) -> Topology:
    """The query as a graph, from the sources to the sinks."""
    return topology(query_block(query, details))


def render(query: AnalyzedQuery, plan: QueryPlan, families: Families) -> str:
    """The plan as a tree of text."""
    return render_query(query, plan_details(plan, families))


def plan_details(plan: QueryPlan, families: Families, shards: Sequence[str] = SHARDS) -> PlanDetails:
    """The details that a plan adds to the analysis of its query; ``shards``: the remark about them."""
    columns = dict(_columns_by_alias(plan.relation))
    read_as_columns = sources_of_columns(plan.relation)
    joins = join_plans(plan.relation)
    statics = [node for node in plan.relation.walk() if isinstance(node, StaticJoinPlan)]

    def find_join(stateful: Stateful) -> JoinPlan | None:
        return next((join for join in joins if join.analyzed is stateful), None)

    def remarks(stateful: Stateful) -> list[Fact]:
        join = find_join(stateful)
        static = next((plan for plan in statics if plan.analyzed is stateful), None)
        if static is not None:
            return [("operator", [static.why[0]])]
        if join is None:
            return []
        return [
            ("operator", join.why[:1]),
            ("why", [*join.why[1:], *_columnar_sources(join, read_as_columns)]),
            *_chain_facts(join),
        ]

    def read(leaf: AnalyzedLeaf) -> tuple[str, ...] | None:
        return columns.get(leaf.alias)

    def exchange(stateful: Stateful, port: int) -> str:
        join = find_join(stateful)
        return "" if join is None else _describe_exchange(join, port)

    def operator(stateful: Stateful) -> str:
        join = find_join(stateful)
        return "" if join is None else names[id(join)]

    names = _operators(joins)
    is_spread = any(port.route != "one" for join in joins for port in join.ports)
    return PlanDetails(families, remarks, read, operator, exchange, shards if is_spread else ())


def _operators(joins: Sequence[JoinPlan]) -> dict[int, str]:
    """The name of each join in the metrics of a running query; of several with one name the later ones are numbered."""
    names: dict[int, str] = {}
    for join in sorted(joins, key=lambda join: (join_name(join), digest(join.identity)[:8])):
        name = join_name(join)
        same_named = sum(other == name or other.startswith(f"{name} (") for other in names.values())
        names[id(join)] = f"{name} ({same_named + 1})" if same_named else name
    return names


def _columns_by_alias(relation: RelationPlan) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The columns that are asked for of every source and every view, by alias."""
    yield from ((view.alias, tuple(output.name for output in view.outputs)) for view in view_plans(relation))
    yield from ((scan.alias, scan.columns) for scan in relation.leaves)


def _columnar_sources(join: JoinPlan, read: frozenset[str]) -> list[str]:
    """Describe the sources that the workers read themselves."""
    own = [scan for port in join.ports if is_columnar(port) for scan in port.input.leaves]
    scans = [scan for scan in own if scan.source.name in read]
    if not scans:
        return []
    remarks: list[str] = []
    records = [scan for scan in scans if holds_records(scan)]
    if files := [scan for scan in scans if scan not in records]:
        formats = " and ".join(dict.fromkeys(source_format(scan.source).title for scan in files))
        names = " and ".join(scan.alias for scan in files)
        reason = "because nothing before the join needs Spark; Spark reads files whose values might differ"
        remarks.append(f"{names}: Python workers read the {formats} files as columns, {reason}")
    if records:
        names = " and ".join(scan.alias for scan in records)
        remarks.append(f"{names}: if {JSON_IN_WORKERS} is on, Python workers decode plain JSON records as columns")
    return remarks


def _chain_facts(join: JoinPlan) -> list[Fact]:
    """With which join before it a join runs in one operator, or why not."""
    facts: list[Fact] = []
    for port in join.ports:
        before = join_plans(port.input)
        if port.is_chained:
            how = "in one operator: both have the same key, so rows stay in their shard and process"
            facts.append(("together", [f"with the join of {join_name(before[-1])}, {how}"]))
        elif port.unchained_reason:
            facts.append(("apart", [f"from the join of {join_name(before[-1])}: {port.unchained_reason}"]))
    return facts


def _describe_exchange(join: JoinPlan, number: int) -> str:
    """The route of the rows of a port; nothing, if they stay."""
    port = join.ports[number]
    if port.is_chained:
        return ""
    if port.skew is not None:
        what = "each shard has a copy of rows" if port.skew.is_copied else "rows are spread over all shards"
        return f"by {_keys(join, number)}; {what} with skewed keys"
    match port.route:
        case "key":
            meaning = (
                "rows that can match are in one shard" if len(join.ports) > 1 else "one shard has all rows of a key"
            )
            return f"by {_keys(join, number)}, so that {meaning}"
        case "partition":
            return f"by {_keys(join, number)}, so that the rows of a partition stay together"
        case "time":
            meaning = (
                "so that equal times are in one shard" if {p.route for p in join.ports} == {"time"} else "to any shard"
            )
            return f"by {' and '.join(port.times)}, {meaning}"
        case "spread":
            return "by all columns, to any shard"
        case "all":
            return "to all shards, over which the other side is spread"
        case "one":
            return "all into one shard"


def _keys(join: JoinPlan, number: int) -> str:
    """The expressions of a port that decide about the shard."""
    port = join.ports[number]
    if port.shard_by:
        return ", ".join(_words(port, name) for name in port.shard_by)
    match join.analyzed:
        case AnalyzedGroup():
            is_session = join.analyzed.is_session
            by = (output for output in join.analyzed.by if not is_session or output.name != join.analyzed.window)
            keys = tuple(output.expr for output in by)
        case AnalyzedTop():
            keys = tuple(by.shown for by in join.analyzed.by)
        case AnalyzedQuery():
            keys = tuple(expand_group(expr, join.analyzed.group) for expr in join.analyzed.key)
        case AnalyzedScan():
            return ", ".join(word(name) for name in join.analyzed.source.primary_key) or "all columns"
        case _:
            assert isinstance(join.analyzed, ConditionalJoin)
            keys = tuple(pair[number] for pair in join.analyzed.keys)
    return ", ".join(expression_in_words(key) for key in keys)


def _words(port: PortPlan, name: str) -> str:
    computed = next((computed.expr for computed in port.computed if computed.name == name), None)
    return name if computed is None else expression_in_words(computed)


class Explanation(str):
    """The plans of queries, and the reasons, as a string; a notebook shows the drawing, with the text below it."""

    __slots__ = ("topologies",)
    topologies: tuple[Topology, ...]

    @classmethod
    def of(
        cls, queries: Sequence[tuple[AnalyzedQuery, QueryPlan]], families: Families, shards: Sequence[str] = SHARDS
    ) -> Explanation:
        """The explanation of queries with their plans; ``shards``: the remark about them."""
        pairs = [(query, plan_details(plan, families, shards)) for query, plan in queries]
        explanation = cls("\n\n".join(render_query(query, details) for query, details in pairs))
        explanation.topologies = tuple(query_topology(query, details) for query, details in pairs)
        return explanation

    @property
    def svg(self) -> str:
        """The drawing."""
        return draw(self.topologies)

    def _repr_html_(self) -> str:
        # As an image: the styles of a drawing are for nothing else on the page.
        drawing = b64encode(self.svg.encode()).decode()
        image = f'<img alt="how the query would run" src="data:image/svg+xml;base64,{drawing}">'
        return f"{image}<details><summary>As text</summary><pre>{escape(self, quote=False)}</pre></details>"
