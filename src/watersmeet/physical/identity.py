"""The identity of a state as data: the parts of a plan that decide which rows its stages store, and nothing else.

A state must outlive what is only presentation: aliases, names and order of outputs, comments, layout. So columns have
*canonical names*: a column of a source is ``n.column``, with n the number of its scan in the query (depth first, left
to right), and whatever is computed is its SQL over these. `assign_names` gives them to every operator of a plan, and to
every stage its identity; `identity_of` is the identity of the whole query, which a checkpoint keeps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from watersmeet.catalog import Source
from watersmeet.errors import WatersmeetError
from watersmeet.formats import history_source, source_format
from watersmeet.logical.expressions import LISTED, Expr
from watersmeet.operators.core.identity import canonical_json
from watersmeet.physical.chaining import chain_groups
from watersmeet.physical.nodes import (
    JoinPlan,
    LateralPlan,
    PortPlan,
    QueryPlan,
    RelationPlan,
    ScanPlan,
    StaticJoinPlan,
    UnionPlan,
    ViewPlan,
    join_plans,
)
from watersmeet.schema import Type, parse_type, quote

Data = Mapping[str, Any]
"""Named values that JSON can hold."""

FORM = 1
"""The format number of identities; that of states is separate, so that a state can be migrated."""

_TOKEN = re.compile(
    r"""(?P<kept>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`)|(?P<gap>(?:\s|--[^\n]*|/\*.*?\*/)+)|(?P<word>\w+)""",
    re.DOTALL,
)


def assign_names(plan: QueryPlan) -> QueryPlan:
    """The plan, every operator with the canonical names of its columns and every stage with its identity."""
    return replace(plan, relation=_IdentityWalk().visit(plan.relation).plan)


def identity_of(plan: QueryPlan, shards: int) -> Data:
    """The identity that a checkpoint must have to be continued by this plan; as data in canonical order.

    ``sources`` are all scans: Spark tells them apart by their place. ``clocks`` says which stages follow the wall
    clock, which Spark reads like a source. ``together``, if there are any, are the stages that share an operator.
    """
    stages = [join.identity for join in join_plans(plan.relation)]
    texts = _texts(stages)
    sources = [_source(number, scan, texts) for number, scan in enumerate(plan.relation.leaves)]
    clocks = [join.operator.needs_clock for join in join_plans(plan.relation)]
    identity: dict[str, Any] = {
        "format": FORM, "shards": shards, "sources": sources, "stages": stages, "clocks": clocks,
    }  # fmt: skip
    groups = chain_groups(plan.relation)
    if groups:
        identity["together"] = groups
    return cast("Data", json.loads(canonical_json(identity)))


_LIMITS = ("max_rows", "overflow", "retention", "waiting")
"""The fields of operators that limit which rows are kept, of those that no identity has."""


_OUTCOMES = "2:"
"""The form of these digests, which is in front of them: those of different forms cannot be compared."""


def outcome_digest(plan: QueryPlan, zone: str) -> str:
    """A digest of what decides what becomes of a row without a say in what the state means.

    These are what SELECT shows, by its names, conditions on results, the times after which a side is idle, and limits;
    and the session time zone, in which all of these are computed. For a result that is a table, a digest follows of
    what its rows look like: the row that is taken back is computed again.
    """
    result = _IdentityWalk().visit(plan.relation)
    operators = [join.operator for join in join_plans(plan.relation)]
    names = [dict(operator.names) for operator in operators]
    idle = [
        sorted([own.get(column, column), after] for column, after in operator.idle)
        for own, operator in zip(names, operators, strict=True)
    ]
    limits = [[getattr(operator, name, None) for name in _LIMITS] for operator in operators]
    filters = sorted((*result.filters, *(_sql(part, result.columns) for part in plan.where)))
    shown = sorted([output.name.lower(), _sql(output.expr, result.columns)] for output in plan.outputs)
    rows = {"filters": filters, "shown": shown, "zone": zone}
    return f"{_OUTCOMES}{digest({**rows, 'idle': idle, 'limits': limits})}{f':{digest(rows)}' * plan.is_changelog}"


def changes_outcomes(before: str, after: str) -> bool:
    """Whether two digests of outcomes differ; False for those of different forms, of which nothing is known.

    >>> changes_outcomes("2:a", "2:b"), changes_outcomes("", "2:b"), changes_outcomes("2:a", "2:a")
    (True, False, False)
    """
    return before != after and all(text.startswith(_OUTCOMES) for text in (before, after))


def changes_retractions(before: str, after: str) -> bool:
    """Whether two digests of outcomes say that the rows of a table would be taken back as others than were shown.

    >>> changes_retractions("2:a:x", "2:b:y"), changes_retractions("2:a:x", "2:b:x"), changes_retractions("2:a", "2:b")
    (True, False, False)
    """
    rows = [text.removeprefix(_OUTCOMES).partition(":")[2] for text in (before, after)]
    return changes_outcomes(before, after) and rows[0] != rows[1] and all(rows)


def scan_words(plan: QueryPlan) -> dict[str, dict[str, str]]:
    """The display names of each scan by its number: its alias, and the source it reads."""
    scans = enumerate(plan.relation.leaves)
    return {str(n): {"alias": scan.alias.rsplit("/", 1)[-1], "source": scan.source.name} for n, scan in scans}


def stage_digest(stage: JoinPlan, types: Mapping[str, str], shards: int) -> str:
    """A digest of the state of a stage, to compare with that of a checkpoint; ``types`` are those of its columns."""
    names: dict[str, str] = dict(stage.operator.names)
    texts = _texts(stage.identity)
    stored_types = {
        names.get(column, column): type_ for column, type_ in types.items() if names.get(column, column) in texts
    }
    return digest({"stage": stage.identity, "types": stored_types, "shards": shards})


def scan_names(plan: QueryPlan) -> dict[str, str]:
    """The watermarked columns of the sources of a query, with their canonical names."""
    return {
        f"{scan.alias}.{watermark.column}": f"{number}.{watermark.column.lower()}"
        for number, scan in enumerate(plan.relation.leaves)
        for watermark in scan.source.watermarks
    }


def digest(data: object) -> str:
    """Data in few letters.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


@dataclass(frozen=True)
class _CanonicalRelation:
    """A relation with its names: what its columns are canonically, and what was done to rows on the way to them.

    ``reads`` tells where its rows come from: scans by their numbers, and stages. ``steps`` are unions, laterals and
    joins with tables that never change.
    """

    plan: RelationPlan
    columns: Mapping[str, str]
    reads: tuple[str, ...]
    filters: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    def with_plan(
        self, plan: RelationPlan, columns: Mapping[str, str], filters: Iterable[Expr] = ()
    ) -> _CanonicalRelation:
        """A relation over this one, with further filters over its columns."""
        more = tuple(_sql(part, columns) for part in filters)
        return replace(self, plan=plan, columns=columns, filters=(*self.filters, *more))


@dataclass
class _IdentityWalk:
    """Goes through the relations of a query, depth first and left to right."""

    scans: int = 0
    stages: int = 0

    def visit(self, relation: RelationPlan) -> _CanonicalRelation:
        match relation:
            case ScanPlan():
                return self._scan(relation)
            case ViewPlan():
                return self._view(relation)
            case UnionPlan():
                return self._union(relation)
            case LateralPlan():
                return self._lateral(relation)
            case StaticJoinPlan():
                return self._static(relation)
            case JoinPlan():
                return self._join(relation)

    def _scan(self, scan: ScanPlan) -> _CanonicalRelation:
        number, self.scans = self.scans, self.scans + 1
        first = scan.parts[0] if scan.parts else scan.source
        own = {f.name: first.fields[place].name for place, f in enumerate(scan.source.fields)}
        columns = {f"{scan.alias}.{f.name}": f"{number}.{own[f.name].lower()}" for f in scan.source.fields}
        return _CanonicalRelation(scan, {}, (str(number),)).with_plan(scan, columns, scan.filters)

    def _view(self, view: ViewPlan) -> _CanonicalRelation:
        inner = self.visit(view.input)
        inside = inner.with_plan(view.input, inner.columns, view.where)
        outputs = {f"{view.alias}.{o.name}": _sql(o.expr, inner.columns) for o in view.outputs}
        return inside.with_plan(replace(view, input=inner.plan), _distinct(outputs), view.filters)

    def _union(self, union: UnionPlan) -> _CanonicalRelation:
        inputs = [self.visit(child) for child in union.inputs]
        taken = [[child.columns[c] for c in own] for child, own in zip(inputs, union.taken, strict=True)]
        columns = _distinct(dict(zip(union.columns, taken[0], strict=True)))
        # By column, since columns have no order.
        united = [f"union({', '.join(parts)})" for parts in sorted(zip(*taken, strict=True))]
        plan = replace(union, inputs=tuple(child.plan for child in inputs))
        reads = tuple(read for child in inputs for read in child.reads)
        steps = (*(step for child in inputs for step in child.steps), *united)
        filters = tuple(part for child in inputs for part in child.filters)
        return _CanonicalRelation(plan, {}, reads, filters, steps).with_plan(plan, columns, union.filters)

    def _lateral(self, lateral: LateralPlan) -> _CanonicalRelation:
        inner = self.visit(lateral.input)
        array = f"explode({_sql(lateral.array, inner.columns)})"
        columns = _distinct({**inner.columns, f"{lateral.alias}.{lateral.alias}": array})
        below = replace(inner, steps=(*inner.steps, array))
        return below.with_plan(replace(lateral, input=inner.plan), columns, lateral.filters)

    def _static(self, join: StaticJoinPlan) -> _CanonicalRelation:
        stream, table = self.visit(join.stream), self.visit(join.table)
        columns = {**stream.columns, **table.columns}
        on = sorted((*(_sql(part, columns) for part in join.condition), *table.filters))
        looked_up = f"{'inner' if join.is_inner else 'left'} static join with {table.reads[0]} on {' and '.join(on)}"
        below = replace(stream, steps=(*stream.steps, looked_up))
        return below.with_plan(replace(join, stream=stream.plan), columns)

    def _join(self, join: JoinPlan) -> _CanonicalRelation:
        inputs = [self.visit(port.input) for port in join.ports]
        ports = tuple(replace(port, input=child.plan) for port, child in zip(join.ports, inputs, strict=True))
        carried: dict[str, str] = {}
        for port, child in zip(ports, inputs, strict=True):
            carried |= {name: child.columns[name] for name in (*port.columns, *port.times) if name in child.columns}
            carried |= {c.name: _template_sql(c.expr, c.template, child.columns) for c in port.computed}
        carried |= _aggregate_names(join.operator, carried)
        names = _distinct(carried)
        operator = replace(join.operator, names=tuple(names.items()))
        number, self.stages = self.stages, self.stages + 1
        port_data = [_port(port, child, names) for port, child in zip(ports, inputs, strict=True)]
        identity = {"operator": operator.identity, "ports": port_data}
        shown = {**{c: name for child in inputs for c, name in child.columns.items()}, **names}
        plan = replace(join, ports=ports, operator=operator, identity=identity)
        output = _CanonicalRelation(plan, {}, (f"stage {number}",)).with_plan(plan, shown, join.post_filters)
        return replace(output, columns={c: shown.get(c, c) for c in join.columns})


def _aggregate_names(operator: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Canonical names of the columns that an operator computes itself: aggregates."""
    computed: dict[str, str] = {}

    def rename(columns: Iterable[str]) -> list[str]:
        return [names.get(column, column) for column in columns]

    for aggregate in getattr(operator, "aggregates", ()):
        written: list[str] = aggregate.describe(rename)
        computed[aggregate.output] = f"{aggregate.function}({', '.join(written[1:])})"
    return computed


def _port(port: PortPlan, relation: _CanonicalRelation, names: Mapping[str, str]) -> Data:
    """The processing of the rows of a side before they reach their operator; ``skew`` only where there is any."""
    skew = port.skew
    return {
        **(
            {}
            if skew is None
            else {
                "skew": {
                    "column": names.get(skew.column, skew.column),
                    "values": skew.values,
                    "copied": skew.is_copied,
                }
            }
        ),
        "reads": relation.reads,
        "filters": sorted(relation.filters),
        "ways": relation.steps,
        "on": sorted(_sql(part, relation.columns) for part in port.predicates),
        "route": port.route,
        "sharded by": [names.get(name, name) for name in port.shard_by],
        "lags": {_watermark_name(lag.watermark, relation.columns): lag.lag for lag in port.lags},
    }


def _source(number: int, scan: ScanPlan, texts: frozenset[str]) -> Data:
    """A scan: which source it reads and how, and those of its columns of which something is kept."""
    columns = {f.name.lower(): _type(f.type) for f in scan.source.fields if f"{number}.{f.name.lower()}" in texts}
    parts = [_read(part) for part in scan.parts or (scan.source,)]
    # "versions" is left out: identities written before this changelog mode existed have none for such a scan. The
    # upsert key in the operator's identity tells such a table from a stream.
    changes = scan.changes if columns and scan.changes != "versions" else None
    return {"reads": parts, "changes": changes, "columns": columns}


def _read(source: Source) -> Data:
    return {
        "source": source.name.lower(),
        "kind": source.kind,
        "format": source.format and source.format.lower(),
        "feed": source.changes,
        "key": [name.lower() for name in source.primary_key],
        "options": source_format(source).row_options,
        **({} if source.history is None else {"history": _read_history(source)}),
    }


def _read_history(source: Source) -> Data:
    archive = history_source(source)
    until = "" if source.history is None else source.history.until
    return {"format": str(archive.format).lower(), "until": until, "options": source_format(archive).row_options}


def _sql(expr: Expr, columns: Mapping[str, str]) -> str:
    """An expression over canonical names: a column is its name, everything else SQL whose layout does not matter."""
    if expr.op == "column" and not expr.refs[0].path:
        return columns.get(expr.refs[0].column, expr.refs[0].column)
    return _normalize_sql(_expand_lists(expr).sql(lambda ref: quote(columns.get(ref.column, ref.column))))


def _template_sql(expr: Expr, template: str, columns: Mapping[str, str]) -> str:
    if template == "{}":
        return _sql(expr, columns)
    return _normalize_sql(
        template.format(_expand_lists(expr).sql(lambda ref: quote(columns.get(ref.column, ref.column))))
    )


def _expand_lists(expr: Expr) -> Expr:
    """The expression with its lists as equalities: how Spark is told of them says nothing about a state."""
    value = None if expr.value == LISTED and expr.op == "or" else expr.value
    return replace(expr, args=tuple(_expand_lists(arg) for arg in expr.args), value=value)


def _normalize_sql(sql: str) -> str:
    """SQL without comments, in small letters, with single spaces between words only; what is quoted stays.

    >>> _normalize_sql("UPPER( `0.Name` )  /* as shown */ = 'Ada  L'")
    "upper(`0.Name`)='Ada  L'"
    """
    out: list[str] = []
    position = 0
    gap = False
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        kind = None if match is None else match.lastgroup
        text = sql[position] if match is None else match[0]
        position += len(text)
        if kind == "gap":
            gap = True
            continue
        is_word = kind is not None
        if gap and is_word and out and re.match(r"[\w'\"`]", out[-1][-1]):
            out.append(" ")
        out.append(text.lower() if kind == "word" else text)
        gap = False
    return "".join(out)


def _distinct(named: Mapping[str, str]) -> dict[str, str]:
    """The names, each but once: columns that are the same thing are numbered."""
    seen: dict[str, int] = {}
    distinct: dict[str, str] = {}
    for column, name in named.items():
        seen[name] = seen.get(name, 0) + 1
        distinct[column] = name if seen[name] == 1 else f"{name}~{seen[name]}"
    return distinct


def _watermark_name(watermark: str, columns: Mapping[str, str]) -> str:
    """The canonical name of a watermark; a part of a union has its own, with the number of the part behind."""
    if watermark in columns:
        return columns[watermark]
    column, hash_, part = watermark.rpartition("#")
    return f"{columns.get(column, column)}{hash_}{part}"


def _type(text: str) -> str:
    """A type by one of its names.

    >>> _type("integer"), _type("struct<A:bigint>"), _type("string collate UTF8_LCASE")
    ('INT', 'STRUCT<a: BIGINT>', 'STRING COLLATE UTF8_LCASE')
    """
    try:
        return text.upper() if "collate" in text.lower() else _in_words(parse_type(text))
    except WatersmeetError:
        return text.upper()


def _in_words(kind: Type) -> str:
    numbers = f"({', '.join(map(str, kind.numbers))})" if kind.numbers else ""
    parts = ", ".join(f"{part.name.lower()}: {_in_words(part.type)}" for part in kind.parts)
    return f"{kind.name}{numbers}{f'<{parts}>' if parts else ''}"


def _texts(data: object) -> frozenset[str]:
    """Every text in data, and every name in backticks inside one."""
    texts: set[str] = set()
    waiting: list[Any] = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            texts |= {value, *re.findall(r"`([^`]+)`", value)}
        elif isinstance(value, Mapping):
            waiting += [*cast("Data", value).keys(), *cast("Data", value).values()]
        elif isinstance(value, list | tuple):
            waiting += cast("list[Any]", value)
    return frozenset(texts)
