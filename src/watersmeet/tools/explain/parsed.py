"""Explains a script as it was parsed, before names and bounds are resolved, and its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from watersmeet.catalog import OFFSETS, Source, Watermark
from watersmeet.duration import format_duration
from watersmeet.formats import source_format
from watersmeet.formats.base import SHOWN
from watersmeet.logical.expressions import conjuncts
from watersmeet.logical.nodes import (
    REPEATED_ROWS,
    Clause,
    Item,
    Join,
    Lateral,
    Query,
    Relation,
    Scan,
    Script,
    Star,
    Union,
    View,
)
from watersmeet.logical.relation import AnalyzedScan
from watersmeet.logical.words import (
    Fact,
    amount_in_words,
    condition_facts,
    conditions,
    expression_in_words,
    is_unnamed,
    kind_in_words,
    texts,
    word,
)
from watersmeet.operators.explainer import Families, JoinExplainer, ParsedSection, explainers, facts_as_data
from watersmeet.tools.explain.topology import (
    PlanBlock,
    PlanStep,
    StepKind,
    Topology,
    block_as_json,
    topology,
    topology_as_json,
    tree,
)


@dataclass(frozen=True)
class _Context:
    """The explainers of the families, and the views that only one query can name, by their names in small letters."""

    families: tuple[JoinExplainer[Any], ...]
    views: Mapping[str, View] = field(default_factory=dict[str, View])

    def of_source(self, clause: Clause | None) -> tuple[Fact, ...]:
        return tuple(fact for family in self.families for fact in family.parsed_source_facts(clause))

    def of_join(self, clauses: tuple[Clause, ...]) -> tuple[Fact, ...]:
        return tuple(fact for family in self.families for fact in family.parsed_join_facts(clauses))

    def of_family(self, join: Relation) -> ParsedSection:
        return next(parsed for family in self.families if (parsed := family.parsed(join)) is not None)


def script_blocks(script: Script, families: Families) -> tuple[PlanBlock, ...]:
    """The blocks of all views and queries of a script."""
    context = _Context(explainers(families))
    views = (_query(view.query, f"VIEW {word(view.name)}", context) for view in script.views)
    return (*views, *(_query(query, _heading(query), context) for query in script.queries))


def render_script(script: Script, families: Families) -> str:
    """A script before analysis, as trees of text.

    >>> script = Script("s", "", queries=(Query(Scan("orders", "o"), (Star(),)),))
    >>> print(render_script(script, {}))
    SELECT
    ├─ columns  *
    └─ orders AS o
    """
    return "\n\n".join(tree(block) for block in script_blocks(script, families))


def script_as_json(script: Script, families: Families) -> list[dict[str, object]]:
    """A script before analysis, as JSON."""
    return [
        {**block_as_json(block), "topology": topology_as_json(topology(block))}
        for block in script_blocks(script, families)
    ]


def script_topologies(script: Script, families: Families) -> list[Topology]:
    """A script before analysis, as graphs."""
    return [topology(block) for block in script_blocks(script, families)]


def _heading(query: Query) -> str:
    select = "SELECT" if query.result is None else f"SELECT {query.result.upper()}"
    select += " DISTINCT" if query.is_distinct else ""
    return f"INSERT INTO {word(query.into)}" if query.into else select


def _query(query: Query, heading: str, around: _Context) -> PlanBlock:
    """A query; ``around`` has the views of the queries around it, in addition to its own."""
    facts = _query_facts(query)
    steps = (
        *((PlanStep("filter", facts=facts[1:2]),) if query.where is not None else ()),
        *((PlanStep("group", facts=facts[2:4]),) if query.group_by else ()),
        PlanStep("project", facts=facts[:1]),
        PlanStep("sink", heading, facts[4:], {"asks": heading, **facts_as_data(facts)}),
    )
    visible = replace(around, views={**around.views, **{view.name.lower(): view for view in query.views}})
    return PlanBlock(heading, steps, (_relation(query.relation, visible),), "input")


def _query_facts(query: Query) -> tuple[Fact, ...]:
    alone = [
        (side_output.of.split(), side_output.sink)
        for side_output in query.side_outputs
        if side_output.of.startswith("UNMATCHED")
    ]
    malformed = [side_output.sink for side_output in query.side_outputs if side_output.column == SHOWN]
    parts = [side_output.sink for side_output in query.side_outputs if side_output.is_instead]
    store = query.store
    return (
        ("columns", [_item(item) for item in query.items]),
        ("where", texts(conjuncts(query.where))),
        ("group by", texts(query.group_by)),
        ("having", texts(conjuncts(query.having))),
        ("order by", [f"{expression_in_words(by.expr)}{' descending' * by.descending}" for by in query.order]),
        ("limit", [] if query.limit is None else [str(query.limit)]),
        ("result", [f"a {query.result}"] if query.into and query.result else []),
        ("store", [f"key as {store.key or 'it is'}, value as {store.value or 'it is'}"] if store else []),
        ("late rows", [f"into {query.late_into}"] if query.late_into else []),
        ("malformed rows", [f"into {sink}" for sink in malformed]),
        ("duplicates", [f"into {output.sink}" for output in query.side_outputs if output.column == REPEATED_ROWS]),
        ("unmatched", [f"{of[-1].lower()} into {sink}" for of, sink in alone]),
        ("ports", [f"into {', '.join(parts)}"] if parts else []),
    )


def _item(item: Item | Star) -> str:
    if isinstance(item, Star):
        return "*" if item.alias is None else f"{word(item.alias)}.*"
    text = expression_in_words(item.expr)
    return text if item.name is None else f"{text} AS {word(item.name)}"


def _relation(relation: Relation, context: _Context) -> PlanBlock:
    match relation:
        case Scan():
            return _scan(relation, context)
        case Union():
            heading = f"union AS {word(relation.alias)}"
            parts = (_scan(scan, context) for scan in relation.scans)
            return _block("union", heading, context.of_source(relation.clause), *parts)
        case Lateral():
            array = expression_in_words(relation.array)
            is_windows = relation.array.op == "windows"
            heading = f"windows {array}" if is_windows else f"LATERAL {array} AS {word(relation.alias)}"
            return _block("lateral", heading, (), _relation(relation.input, context))
        case Join():
            named = [f"{relation.operator} join, as the plan says"] if relation.operator is not None else []
            heading = f"{kind_in_words(relation.kind)} JOIN"
            facts = (*condition_facts(relation), *context.of_join(relation.clauses), ("operator", named))
        case _:
            heading, facts = context.of_family(relation)
    return _block("join", heading, facts, *(_relation(side, context) for side in relation.inputs))


def _scan(scan: Scan, context: _Context) -> PlanBlock:
    watermarks = [f"{word(watermark.column)} - {amount_in_words(watermark.lag)}" for watermark in scan.watermarks]
    facts = (("watermark", watermarks), *context.of_source(scan.clause))
    view = context.views.get(scan.source.lower())
    if view is None:
        renamed = "" if scan.alias == scan.source else f" AS {word(scan.alias)}"
        return _block("source", f"{word(scan.source)}{renamed}", facts)
    # A view sees those before it, so that one that names itself means a source.
    earlier = {name: earlier_view for name, earlier_view in context.views.items() if name != scan.source.lower()}
    renamed = "" if scan.alias == view.name else f" AS {word(scan.alias)}"
    heading = f"subquery AS {word(scan.alias)}" if is_unnamed(view.name) else f"view {word(view.name)}{renamed}"
    inner = _query(view.query, heading, replace(context, views=earlier))
    *before, last = inner.steps
    return replace(inner, steps=(*before, replace(last, kind="view", facts=(*last.facts, *facts))))


def _block(kind: StepKind, heading: str, facts: tuple[Fact, ...], *inputs: PlanBlock) -> PlanBlock:
    return PlanBlock(heading, (PlanStep(kind, heading, facts, {kind: heading, **facts_as_data(facts)}),), inputs)


def scan_block(scan: AnalyzedScan, read: Sequence[str] | None) -> PlanBlock:
    """A scan with its filters; ``read``: the columns that are read, if that is known."""
    heading = f"union AS {word(scan.alias)}" if scan.parts else source_heading(scan.source, scan.alias)
    beat = conditions("heartbeat", (scan.heartbeat,) if scan.heartbeat else (), "advances time, is not a row")
    filters = conditions("filter", scan.filters, "moved here from WHERE")
    data = {
        **_data(scan.source),
        "alias": scan.alias,
        "heartbeat": next(iter(texts((scan.heartbeat,) if scan.heartbeat else ())), None),
        "filters": texts(scan.filters),
        "read": None if read is None else list(read),
    }
    facts = (*_facts(scan.source), *read_facts(scan.source, read), beat)
    first = PlanStep("union" if scan.parts else "source", heading, facts, data)
    parts = tuple(
        PlanBlock(
            source_heading(part),
            (PlanStep("source", source_heading(part), _facts(part), _data(part)),),
            inputs_name="parts",
        )
        for part in scan.parts
    )
    return PlanBlock(
        heading, (first, *((PlanStep("filter", facts=(filters,)),) if scan.filters else ())), parts, "parts"
    )


def source_heading(source: Source, alias: str | None = None) -> str:
    """A source with its alias and format.

    >>> source_heading(Source("orders", (), format="json"), "o")
    'stream orders AS o from json'
    """
    renamed = "" if alias in (None, source.name) else f" AS {word(alias or '')}"
    read = f" from {source.format}" if source.format else ""
    return f"{source.kind} {source.name}{renamed}{read}"


def _facts(source: Source) -> tuple[Fact, ...]:
    shown = [field for field in source.fields if not field.hidden]
    columns = ", ".join(f"{word(f.name)} {f.type}{'' if f.nullable else ' NOT NULL'}" for f in shown)
    return (
        ("columns", [columns, *([f"read from {source.read_from}"] if source.read_from else [])] if columns else []),
        ("key", [", ".join(word(name) for name in source.primary_key)] if source.primary_key else []),
        ("changes", [_changes(source)] if source.kind == "table" else []),
        ("history", [_history_words(source)] if source.history is not None else []),
        ("watermark", [_watermark_words(source, watermark) for watermark in source.watermarks]),
        ("order", [word(source.order)] if source.order is not None else []),
    )


def _history_words(source: Source) -> str:
    """The history of a stream, and the rows of each side.

    >>> from watersmeet.catalog import Field, StreamHistory, Watermark, Amount
    >>> times, history = (Watermark("t", Amount(0, True)),), StreamHistory("orc", {}, "2026")
    >>> _history_words(Source("s", (Field("t", "TIMESTAMP"),), times, format="kafka", history=history))
    'orc, rows with t < 2026; then kafka, rows with t >= 2026 or without a time'
    """
    history = source.history
    assert history is not None
    if history.until.lower() == OFFSETS:
        return f"{history.format}, rows before the starting offsets; then {source.format}, from these offsets on"
    column, until = source.watermarks[0].column if source.watermarks else "", history.until
    return (
        f"{history.format}, rows with {column} < {until}; "
        f"then {source.format}, rows with {column} >= {until} or without a time"
    )


def _changes(source: Source) -> str:
    if source.changes is not None:
        return f"a change feed in the form of {source.changes}"
    return (
        "a row replaces the previous one with its key"
        if source.primary_key
        else "rows are inserted and deleted one by one"
    )


def read_facts(source: Source, read: Sequence[str] | None) -> tuple[Fact, ...]:
    """The columns of a source that are read and those that are not, if that is known.

    >>> from watersmeet.catalog import Field
    >>> read_facts(Source("orders", (Field("id", "BIGINT"), Field("note", "STRING"))), ["id"])
    (('read', ['id']), ('not read', ['note (not used)']))
    """
    if read is None:
        return ()
    names = [field.name for field in source.fields if not field.hidden and not is_unnamed(field.name)]
    left_out = [word(name) for name in names if name not in read]
    if not left_out:
        return (("read", ["all columns"]),)
    return (
        ("read", [", ".join(word(name) for name in read if not is_unnamed(name)) or "no column"]),
        ("not read", [f"{', '.join(left_out)} (not used)"]),
    )


def _watermark_words(source: Source, watermark: Watermark) -> str:
    idle = "" if watermark.idle is None else f", idle after {format_duration(watermark.idle)}"
    slowest = ", of the slowest partition" if source_format(source).has_partitions and source.kind == "stream" else ""
    return f"{watermark.column} - {amount_in_words(watermark.lag)}{slowest}{idle}"


def _data(source: Source) -> dict[str, object]:
    return {
        "scan": source.name,
        "kind": source.kind,
        "format": source.format,
        "history": None if source.history is None else {"format": source.history.format, "until": source.history.until},
        "columns_read_from": source.read_from or None,
        "columns": [{"name": f.name, "type": f.type, "nullable": f.nullable} for f in source.fields],
        "primary_key": list(source.primary_key),
        "changes": source.changes,
        "order": source.order,
        "watermarks": [
            {
                "column": watermark.column,
                "lag": amount_in_words(watermark.lag),
                "idle": None if watermark.idle is None else format_duration(watermark.idle),
            }
            for watermark in source.watermarks
        ],
    }
