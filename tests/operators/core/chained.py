"""A query in the process whose joins run as chains, in several shards, as Spark's workers run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from watersmeet.local.query import BatchOutput, LocalFrame, LocalQuery, MemoryStore, prepare_port, watermarks_of
from watersmeet.operators.core.chain import Chain, Inlet, Link
from watersmeet.operators.core.matching import Ints, as_int64
from watersmeet.operators.core.operator import Emission, StepReport, Watermarks
from watersmeet.operators.state.shard import TwoSided
from watersmeet.physical import JoinPlan, PortPlan, QueryPlan, RelationPlan
from watersmeet.physical.chaining import carry_columns, chain_of, code_side, find_chained_link
from watersmeet.schema import arrow_type


class ChainedQuery(LocalQuery):
    """The same as `LocalQuery`, but for how joins that run together are run."""

    def __init__(self, plan: QueryPlan, shards: int, bytes_per_step: int) -> None:
        super().__init__(plan, "kernel")
        self.shards = shards
        self.bytes_per_step = bytes_per_step
        self.shard_stores: dict[tuple[int, int], MemoryStore] = {}
        self.reports: dict[int, list[StepReport]] = {}

    def restart(self) -> None:
        """Keep nothing but what was stored."""
        self.shard_stores = {key: store.restart() for key, store in self.shard_stores.items()}

    def relation(self, plan: RelationPlan, arrivals: Mapping[str, pa.Table], watermarks: Watermarks) -> LocalFrame:
        """The rows that a relation gives in a batch; those of a join from all shards."""
        if not isinstance(plan, JoinPlan):
            return super().relation(plan, arrivals, watermarks)
        stages = chain_of(plan)
        tables: list[dict[int, pa.Table]] = []
        folded: list[Watermarks] = []
        came: set[int] = set()
        for number, stage in enumerate(stages):
            own: dict[int, pa.Table] = {}
            heard: dict[str, int] = {}
            for place, port in enumerate(stage.ports):
                if port.is_chained:
                    continue
                side = self.relation(port.input, arrivals, watermarks)
                heard |= side.watermarks
                for lag in port.lags:
                    heard |= watermarks_of(lag, side.rows, watermarks)
                own[place] = prepare_port(port, side)
                if side.rows.num_rows or side.watermarks or any(lag.source in watermarks for lag in port.lags):
                    came.add(number)
            tables.append(own)
            folded.append(heard)
        return self._in_shards(stages, tables, folded, came)

    def places(self, codes: Ints) -> Ints:
        """The shard of each code."""
        return codes % self.shards

    def _parts(self, codes: Ints, table: pa.Table) -> list[pa.Table]:
        places = self.places(codes)
        return [table.filter(pa.array(places == shard)) for shard in range(self.shards)]

    def _in_shards(
        self, stages: tuple[JoinPlan, ...], tables: list[dict[int, pa.Table]], marks: list[Watermarks], came: set[int]
    ) -> LocalFrame:
        links, schema = link_stages(stages, tables)
        rows, emitted = [schema.empty_table()], dict[str, int]()
        self.reports = {number: [] for number in range(len(stages))}
        parts = [
            {place: self._parts(_codes(stage.ports[place], table), table) for place, table in own.items()}
            for stage, own in zip(stages, tables, strict=True)
        ]
        for shard in range(self.shards):
            stores = [self.shard_stores.setdefault((id(stage), shard), MemoryStore()) for stage in stages]
            chain = Chain(links, stores, self.bytes_per_step)
            mine = [{place: cut[shard] for place, cut in own.items() if cut[shard].num_rows} for own in parts]
            for number, piece in chain.close(mine, marks, came):
                if number == len(stages) - 1:
                    rows += [one.cast(schema) for one in (piece.rows if isinstance(piece, Emission) else (piece,))]
                if isinstance(piece, Emission):
                    self.reports[number].append(piece.report)
            for name, mark in last[-1].watermarks.items() if (last := self.reports[len(stages) - 1]) else ():
                emitted[name] = min(mark, emitted.get(name, mark))
        found = pa.concat_tables(rows)
        stepped = BatchOutput(found, emitted, report=StepReport(watermarks=emitted))
        return LocalFrame(found, np.array([True] * found.num_rows, np.bool_), emitted, stepped)


def link_stages(stages: tuple[JoinPlan, ...], tables: list[dict[int, pa.Table]]) -> tuple[list[Link], pa.Schema]:
    """The links of a chain, and the schema of the rows that come out of it, from those that come in."""
    links: list[Link] = []
    schema = pa.schema([])
    for stage, own in zip(stages, tables, strict=True):
        schemas = {place: table.schema for place, table in own.items()}
        link, way = Link(stage.operator), find_chained_link(stage)
        if way is not None:
            inside = next(place for place, port in enumerate(stage.ports) if port.is_chained)
            along, side = carry_columns(stage, inside, way), code_side(stage, inside, way)
            if side is not None:
                before = links[-1].operator
                assert isinstance(before, TwoSided)
                links[-1] = replace(links[-1], operator=before.with_code(side))
                schema = schema.append(pa.field(str(before.ports[side].code), pa.int64()))
            types = [schema.field(one.column).type if one.type is None else arrow_type(one.type) for one in along]
            schemas[inside] = pa.schema([(one.name, type_) for one, type_ in zip(along, types, strict=True)])
            link = replace(
                link, inlet=Inlet(inside, schemas[inside], tuple(one.column for one in along), way.watermarks)
            )
        links.append(link)
        shown = [
            schemas[place].field(name) for place, names in enumerate(stage.operator.result_columns) for name in names
        ]
        extra = stage.operator.extra_types([schemas[place] for place in sorted(schemas)])
        schema = pa.schema([*shown, *map(pa.field, stage.operator.extra, extra)])
    return links, schema


def _codes(port: PortPlan, table: pa.Table) -> Ints:
    """What decides about the shards of rows; those without a key may be in any."""
    column = table.column(str(port.code)).combine_chunks()
    return np.where(column.is_null().to_numpy(zero_copy_only=False), np.arange(len(column)), as_int64(column))
