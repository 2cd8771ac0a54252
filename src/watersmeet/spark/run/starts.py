"""Starts of queries that have joins of ours: what must not go on with a checkpoint is refused before anything runs.

A query may have changed since its checkpoint was written: the effects are accepted, refused, or avoided by a rebuild.

A query over DataFrames is built before its checkpoint is known. If that began with other joins chained, the start gets
a frame in which the query is built with these.

Every query that is built gets a token, which the observations of its joins carry in their names. So its joins are found
again in whatever frame they end up, and with them what they are: their identities.

After a checkpoint or a sink was restored from an older copy, a sink may be at another batch than its checkpoint: it is
refused or rewound here.

A query may also begin, or cease, to follow the clock: Spark then finds one source more, or less, than before.

Spark stores the offset of each source as a line, identifies sources by their position alone, and refuses another number
of lines. So a new checkpoint, with lines and folders of sources in their new positions and with the new owner, replaces
the old one. A clock that has not ticked yet has a dash. If the checkpoint is not on this machine, only one more line at
the end of a plan can be written in one step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from uuid import uuid4
from weakref import WeakValueDictionary, ref

from pyspark.sql import DataFrame, SparkSession, is_remote

from watersmeet.errors import Place, WatersmeetError, refuse
from watersmeet.locations import Storage, location_of, write_whole
from watersmeet.metrics.progress import ProgressSchema
from watersmeet.operators import change_rules, gives_table
from watersmeet.operators.core.operator import END_OF_INPUT
from watersmeet.physical.chaining import ChainGroups
from watersmeet.physical.change import ChangeEffect, NamedIdentity, WatermarkValues, classify_edit
from watersmeet.physical.identity import changes_outcomes, identity_of, outcome_digest, scan_words
from watersmeet.physical.nodes import QueryPlan
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.reading import check_inputs
from watersmeet.spark.connectors.sinks import BatchPlans, SinkTarget, sink_ahead
from watersmeet.spark.exchange.output import is_bounded
from watersmeet.spark.private.checkpoint_files import local_checkpoint_settings, remote_checkpoint_settings
from watersmeet.spark.private.files import Folder, LocalFolder, folder_of
from watersmeet.spark.private.introspection import set_accepted_states
from watersmeet.spark.private.transfer import BYTES, RECORDS, UNLIMITED, PythonTransfer, room
from watersmeet.spark.private.writers import FORMAT, Replacement, Sources, Started, plan_of, watch_starts
from watersmeet.spark.session import STATE
from watersmeet.spark.session.workers import PARTITIONS, partitions_of
from watersmeet.spark.state.checkpoint import Checkpoint, clear_leftovers, last_committed, prepare_staging, swap
from watersmeet.spark.state.inspect import State, fingerprints
from watersmeet.spark.state.owner import (
    COMMITS_FOLDER,
    OFFSETS_FOLDER,
    OWNER,
    Owner,
    batch_numbers,
    chains_of,
    check_files,
)

Accepting = Literal["refuse", "accept", "rebuild", "tell"]
"""The treatment of a changed query. ``accept``: continue with its state, whatever the effects. ``rebuild``: rebuild its
state. ``tell``: report which of these is possible.
"""


def continue_checkpoint(
    spark: SparkSession,
    checkpoint: str | Storage,
    was: Owner,
    now: Owner,
    accepting: Accepting,
    restart_hint: str,
    accept_hint: str,
    rebuild: str = "",
) -> tuple[Owner, tuple[ChangeEffect, ...]]:
    """The owner of the checkpoint once these queries continue it, and the effects; ``was``, if they are the same.

    An edit without effects on the state is recorded, too, if it changes what becomes of rows.

    Refused for other queries, and for effects that are not accepted; ``accept_hint`` says how to accept them, and
    ``rebuild`` how to rebuild a state.
    """
    if not was.check(now, str(checkpoint), restart_hint, change_rules(), None, gives_table, rebuild):
        return _with_outcomes(spark, checkpoint, was, now), ()
    # A query that has never finished a batch has nothing in its state.
    batch = last_committed(folder_of(spark, checkpoint))
    state = None if batch is None else State(Checkpoint.open(spark, checkpoint))
    follows = was.check(
        now, str(checkpoint), restart_hint, change_rules(), None if state is None else _watermarks_by_stage(state)
    )
    is_same_state = [query.identity for query in was.queries] == [query.identity for query in now.queries]
    if accepting == "refuse" or not (is_same_state or set_accepted_states(spark, {})):
        consequences = "; ".join(dict.fromkeys(effect.consequence for effect in follows))
        changed = "; ".join(dict.fromkeys(effect.change for effect in follows))
        hint = (
            accept_hint
            if accepting == "refuse"
            else f"Spark Connect cannot accept the change: undo it, or {restart_hint}"
        )
        raise refuse(
            "CHECKPOINT_OF_A_CHANGED_QUERY", checkpoint=checkpoint, follows=consequences, difference=changed, hint=hint
        )
    fingerprints_left = {} if state is None or is_same_state else fingerprints(state)
    changed = was.changed if batch is None else batch
    return replace(was, queries=now.queries, accepted={**fingerprints_left, **was.accepted}, changed=changed), follows


def take_sinks(
    name: str, checkpoint: str, was: Owner, sinks: Sequence[str], accepting: Accepting, accept_hint: str
) -> tuple[ChangeEffect, ...]:
    """The effects of sinks that a checkpoint did not write to before, or a refusal if they are not accepted."""
    before = was.sinks or (name,)
    effects = tuple(
        ChangeEffect(f"{sink} gets the rows of this query, too", f"{sink} gets rows from now on, and none from before")
        for sink in sinks
        if sink not in before
    )
    if effects and accepting == "refuse":
        consequences, changed = "; ".join(e.consequence for e in effects), "; ".join(e.change for e in effects)
        parameters = {"follows": consequences, "difference": changed, "hint": accept_hint}
        raise refuse("CHECKPOINT_OF_A_CHANGED_QUERY", checkpoint=checkpoint, **parameters)
    return effects


def _with_outcomes(spark: SparkSession, checkpoint: str | Storage, was: Owner, now: Owner) -> Owner:
    """The owner of the same state with what now becomes of rows; ``was``, if that is the same."""
    pairs = [(before.outcomes, after.outcomes) for before, after in zip(was.queries, now.queries, strict=True)]
    if all(before == after for before, after in pairs):
        return was
    is_known = any(changes_outcomes(before, after) for before, after in pairs)
    batch = last_committed(folder_of(spark, checkpoint)) if is_known else None
    return replace(was, queries=now.queries, changed=was.changed if batch is None else batch)


def rebuild_reason(was: Owner, now: Owner, accepting: Accepting) -> str | None:
    """The change because of which a state is to be rebuilt; None: no change, or no rebuild.

    With ``rebuild`` the state is rebuilt even where it could continue.
    """
    if accepting not in ("rebuild", "tell") or len(was.queries) != len(now.queries):
        return None
    for before, after in zip(was.queries, now.queries, strict=True):
        edit = classify_edit(before, after, change_rules(), None, gives_table)
        if edit.kind == "rebuilt" or (edit.kind == "continued" and accepting == "rebuild"):
            return edit.difference or "; ".join(dict.fromkeys(effect.change for effect in edit.effects))
    return None


def _watermarks_by_stage(state: State) -> list[list[WatermarkValues]]:
    """The watermarks that each stage of each query has received: the latest of its shards."""
    queries = state.checkpoint.owner.queries
    by_stage = [[dict[str, int]() for _ in query.identity["stages"]] for query in queries]
    for operator in state.checkpoint.operators:
        latest = by_stage[queries.index(operator.query)][operator.place]
        for directory in state.directories[operator.number]:
            for name, watermark in directory.received.items():
                latest[name] = max(watermark, latest.get(name, watermark))
    return [list[WatermarkValues](stages) for stages in by_stage]


ACCEPT = "watersmeet.accept"
"""The option of a writer that takes what follows from a change of its query."""
ACCEPT_HINT = f'accept it with `.option("{ACCEPT}", "true")` of the writer, or undo the change.'
NEW_CHECKPOINT_HINT = "give the changed query a new checkpointLocation and a new folder or table to write to."

_TOKEN = re.compile(r"#([0-9a-f]{16})\.")
MOST, MOST_CHAINS = 1000, 100
"""The number of queries that are remembered besides those whose results are in use; of those, with other chains."""


@dataclass(frozen=True)
class OtherChains:
    """A result that could have been built with other joins chained: its analyzed plan, and how to build it."""

    plan: Any
    build: Callable[[ChainGroups], DataFrame]


@dataclass(frozen=True)
class _KnownQuery:
    """A query that was built: its plan, the meaning of its metrics, other chains, and whether its result is in use."""

    description: NamedIdentity
    schema: ProgressSchema = field(default_factory=ProgressSchema)
    result: Callable[[], object | None] = lambda: None
    chains: OtherChains | None = None


class KnownQueries:
    """The streaming queries that were built in this process, by their tokens, the one used last at the end.

    A result, or a DataFrame derived from it, may be started at any time. So the newest queries are kept, those that are
    looked up, and those whose results are in use; a program that builds queries all the time does not grow.

    >>> known = KnownQueries(most=2)
    >>> for token in "abcd":
    ...     known.add(token, NamedIdentity({}, {"0": {"alias": token}}))
    >>> known.find("a"), known.find("b").words
    (None, {'0': {'alias': 'b'}})
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._queries: dict[str, _KnownQuery] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._queries)

    def add(self, token: str, description: NamedIdentity) -> None:
        """Know a query from now on."""
        with self._lock:
            dead = [name for name, query in self._queries.items() if query.result() is None]
            for name in dead[: max(0, len(dead) - self._most)]:
                del self._queries[name]
            # They hold the frames that a query reads.
            for name in dead[max(0, len(dead) - self._most) : max(0, len(dead) - MOST_CHAINS)]:
                self._queries[name] = replace(self._queries[name], chains=None)
            self._queries[token] = _KnownQuery(description)

    def remember_result(self, token: str, schema: ProgressSchema, result: object) -> None:
        """Know what the numbers of a query stand for, and its result."""
        with self._lock:
            if token in self._queries:
                self._queries[token] = replace(self._queries[token], schema=schema, result=ref(result))

    def remember_chains(self, token: str, chains: OtherChains) -> None:
        """Know how a query is built with other chains."""
        with self._lock:
            if token in self._queries:
                self._queries[token] = replace(self._queries[token], chains=chains)

    def forget(self, token: str) -> None:
        """Know a query no longer."""
        with self._lock:
            self._queries.pop(token, None)

    def find(self, token: str) -> NamedIdentity | None:
        """The identity of a query; None if it is not known."""
        entry = self._touch(token)
        return None if entry is None else entry.description

    def other_chains(self, token: str) -> OtherChains | None:
        """The other chains that a query could have; None if it could have none."""
        entry = self._touch(token)
        return None if entry is None else entry.chains

    def progress_schema(self, token: str) -> ProgressSchema:
        """The progress schema of a query; an empty one if the query is not known."""
        entry = self._touch(token)
        return ProgressSchema() if entry is None else entry.schema

    def _touch(self, token: str) -> _KnownQuery | None:
        with self._lock:
            entry = self._queries.pop(token, None)
            if entry is not None:
                self._queries[token] = entry
            return entry


_queries = KnownQueries()


def token_of(description: NamedIdentity) -> str:
    """A new token, under which a query is known from now on."""
    token = uuid4().hex[:16]
    _queries.add(token, description)
    return token


def describe_query(plan: QueryPlan, shards: int, zone: str) -> NamedIdentity:
    """The identity of a query, with its display names."""
    return NamedIdentity(identity_of(plan, shards), scan_words(plan), outcome_digest(plan, zone))


def watch_frame(frame: DataFrame, token: str, schema: ProgressSchema) -> None:
    """See to it that starts of queries like this frame are looked at, and that what Spark reports of them is known."""
    if not frame.isStreaming:
        _queries.forget(token)
        return
    watch_starts(type(frame.writeStream), _before_start, _settings, _choose_chains)
    _queries.remember_result(token, schema, frame)


def watch_chains(frame: DataFrame, token: str, build: Callable[[ChainGroups], DataFrame]) -> None:
    """Let a start build this result with the chains that its checkpoint began with."""
    plan = plan_of(frame)
    if plan is not None and frame.isStreaming:
        _queries.remember_chains(token, OtherChains(plan, build))


def progress_schema_of(names: Iterable[str]) -> ProgressSchema:
    """The progress schema for these names of observations, as far as they are of queries built in this process."""
    tokens = dict.fromkeys(match[1] for name in names if (match := _TOKEN.search(name)) is not None)
    return reduce(ProgressSchema.plus, map(_queries.progress_schema, tokens), ProgressSchema())


def read_owner(spark: SparkSession, checkpoint: str | Storage, restart_hint: str = NEW_CHECKPOINT_HINT) -> Owner | None:
    """The owner of a checkpoint; None if it is new. Refuses one that cannot be read, or whose owner is unknown."""
    folder = folder_of(spark, checkpoint)
    check_files(folder, str(checkpoint), restart_hint)
    text = folder.read(OWNER) if folder.has_files(OFFSETS_FOLDER) else None
    return None if text is None else Owner.from_text(text, str(checkpoint), restart_hint)


@dataclass(frozen=True)
class InputEnd:
    """The folder in which the end of input of a query is declared, and the columns whose end that is."""

    folder: Storage
    columns: set[str] = field(default_factory=set[str])

    def declare(self, name: str | None = None) -> None:
        """Declare the end of input, in a file of that name or in a new one."""
        lines = [json.dumps({"column": column, "value": END_OF_INPUT}) + "\n" for column in sorted(self.columns)]
        write_whole(self.folder / (name or f"end-{time.time_ns()}.json"), "".join(lines))


_input_ends: WeakValueDictionary[str, InputEnd] = WeakValueDictionary()
"""The ends of input by the path that Spark reads."""


def note_input_end(end: InputEnd) -> InputEnd:
    """Note a folder in which an end is declared, for starts of the queries that read it."""
    _input_ends[location_of(end.folder)] = end
    return end


def _adopt_input_end(folder: Folder, sources: Sources) -> None:
    """Move an end of input that another run declared, in a folder of its own, into the folder of this run.

    Spark reads the files of the last batch again at each start, and stops if they are not below the path of their
    source. The default folder is temporary, so it may be gone.
    """
    for number, options in sources:
        end = _input_ends.get(options.get("path", ""))
        log = f"sources/{number}"
        for name in folder.names(log) if end is not None else ():
            version, *lines = (folder.read(f"{log}/{name}") or "").split("\n")
            entries: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
            path = location_of(end.folder) if end is not None else ""
            others = [entry for entry in entries if not str(entry["path"]).startswith(f"{path}/")]
            if end is None or not others or not name.removesuffix(".compact").isdecimal():
                continue
            for entry in others:
                file = str(entry["path"]).rpartition("/")[2]
                end.declare(file)
                entry["path"] = f"{path}/{file}"
            folder.delete(f"{log}/.{name}.crc")
            folder.write(f"{log}/{name}", "\n".join([version, *map(json.dumps, entries)]))


def _choose_chains(spark: SparkSession, checkpoint: str, tokens: tuple[str, ...]) -> list[Replacement]:
    """The results of a start that were built with other chains than those that the checkpoint began with."""
    if all(_queries.other_chains(token) is None for token in tokens):
        return []
    was = read_owner(spark, checkpoint)
    replacements: list[Replacement] = []
    for token, query in zip(tokens, () if was is None else was.queries, strict=False):
        chains, now = _queries.other_chains(token), _queries.find(token)
        if chains is not None and now is not None and chains_of(query) != chains_of(now):
            replacements.append((chains.plan, chains.build(chains_of(query))))
    return replacements


def _before_start(
    spark: SparkSession, checkpoint: str, tokens: tuple[str, ...], sources: Sources, options: Mapping[str, str]
) -> Started:
    now = Owner(tuple(query for token in tokens if (query := _queries.find(token)) is not None))
    accepting: Accepting = "accept" if options.get(ACCEPT) == "true" else "refuse"
    folder = folder_of(spark, checkpoint)
    if isinstance(folder, LocalFolder):
        clear_leftovers(folder.path)
    was = read_owner(spark, checkpoint) if now.queries else None
    if was is not None:
        owner, _ = continue_checkpoint(spark, checkpoint, was, now, accepting, NEW_CHECKPOINT_HINT, ACCEPT_HINT)
        check_clocks(folder, checkpoint, was, owner, sources, NEW_CHECKPOINT_HINT)
        if owner is not was:
            take_clocks(folder, was, owner, sources, spark.version)
        if any(owner.clocks) and not isinstance(folder, LocalFolder):
            add_clock(folder, sources)
    text = folder.read(OWNER) if now.queries and was is None else None
    if text is not None:
        # A run has written the owner of a checkpoint that begins, with its sinks, which no start of a writer knows.
        # What a start that died has left is replaced.
        with suppress(WatersmeetError):
            now = replace(now, sinks=Owner.from_text(text, checkpoint, NEW_CHECKPOINT_HINT).sinks)
    started = before_start(spark, checkpoint, now)
    _adopt_input_end(folder, sources)
    check_inputs(spark, checkpoint, sources)
    return started


def _settings(
    spark: SparkSession, checkpoint: str | None, tokens: tuple[str, ...], transfers: tuple[PythonTransfer, ...] | None
) -> dict[str, str]:
    """Return the settings that a query gets where the user set none: those of our sessions, and its partitions.

    Where the number of rows bounds the bytes of all that crosses to Python, Spark need not count them.

    In a session of ours a checkpoint on this machine is written as `watersmeet run` writes it, but for the logs of
    sources: these have the settings that the session has when Spark first looks at them, after the start.
    """
    shards = [int(query.identity["shards"]) for token in tokens if (query := _queries.find(token)) is not None]
    partitions = partitions_of(spark, max(shards)) if shards else None
    wanted = STATE | ({} if partitions is None else {PARTITIONS: str(partitions)})
    if checkpoint is not None:
        is_here = isinstance(folder_of(spark, checkpoint), LocalFolder)
        wanted |= local_checkpoint_settings(spark) if is_here else remote_checkpoint_settings(spark)
    conf = spark.conf.getAll
    if transfers is not None and is_bounded(transfers, room(conf.get(RECORDS, STATE[RECORDS]))):
        wanted |= {BYTES: UNLIMITED}
    return {name: value for name, value in wanted.items() if name not in conf}


def before_start(spark: SparkSession, checkpoint: str | Storage, now: Owner) -> Started:
    """Refuse to start on a checkpoint of others, and write down whose it is; gives what to call once the query runs.

    It is written before the first batch is planned, so that no checkpoint with batches is without it.
    """
    if not now.queries:
        return _do_nothing
    folder = folder_of(spark, checkpoint)
    was = read_owner(spark, checkpoint)
    if was is not None:
        was.check(now, str(checkpoint), NEW_CHECKPOINT_HINT)
        sinks = now.sinks or was.sinks
        now = replace(now, accepted=was.accepted, rebuilt=was.rebuilt, changed=was.changed, sinks=sinks)
    set_accepted_states(spark, now.accepted)
    # Without a finished batch there is no state yet that others could have left. Through Spark Connect, a program may
    # have been killed before it wrote down whose it is: workers find out if it is another query's.
    is_missing = was is None and (is_remote() or not folder.has_files(COMMITS_FOLDER))
    if not is_missing and (was is None or was.format >= now.format):
        return _do_nothing
    if is_remote():
        # Whether a server keeps the checkpoint on this machine is seen when the query runs.
        return lambda query: _record(query, now, folder, spark.version)
    folder.make()
    folder.write(OWNER, now.to_text(spark.version))
    return _do_nothing


def _record(query: Any, owner: Owner, folder: Folder, version: str) -> None:
    """Write down whose checkpoint this is, if this is where the query keeps it: a server has files of its own."""
    if query.id in (folder.read("metadata") or ""):
        folder.write(OWNER, owner.to_text(version))


def _do_nothing(query: Any) -> None:
    """A checkpoint that was begun before: whose it is was written down then, or its workers will tell."""


SinkAhead = Literal["refuse", "rewind"]
"""The way to start with a sink that has batches which its checkpoint lacks. ``rewind``: their output is removed,
where that can be done exactly."""


def is_ahead(target: SinkTarget, spark: SparkSession, ahead: SinkAhead, place: Place | None) -> bool:
    """Whether a sink is to be rewound before the query starts; refused if it is ahead, or behind, and cannot be."""
    plans, connector = BatchPlans.of(spark, target.checkpoint), sink_connector(target)
    last_batch = connector.last_batch(spark) if plans.is_visible else None
    if last_batch is None:
        return False
    difference, hint = plans.difference(last_batch), connector.recovery_hint(plans.last_planned)
    if difference is not None:
        can_rewind = connector.can_rewind(spark)
        if can_rewind and ahead == "rewind":
            return True
        resume = "run it with `--sink-resume`, which removes later batches from the sink; or "
        raise sink_ahead(target.sink.name, difference, f"{resume if can_rewind else ''}{hint}", place)
    if last_batch.batch < plans.last_done and target.format.has_every_batch:
        parameters = {"batch": last_batch.batch, "done": plans.last_done, "hint": hint}
        raise refuse("SINK_BEHIND_CHECKPOINT", place, target=target.sink.name, **parameters)
    return False


def rewind(target: SinkTarget, spark: SparkSession) -> str:
    """Take back what a sink has of batches that the checkpoint does not have, and say so."""
    sink_connector(target).rewind(spark)
    return f"{target.sink.name} is as it was after batch {BatchPlans.of(spark, target.checkpoint).last_planned}."


CLOCK = "rate"
"""The source of Spark's that ticks."""
NOTHING = "-"
Places = Sequence[int | None]
"""Of every source, the place that it had; None: it is new."""


def take_clocks(folder: Folder, was: Owner, now: Owner, sources: Sources, spark_version: str) -> None:
    """Let a checkpoint be that of changed queries, which follow other clocks."""
    text = now.to_text(spark_version)
    if was.clocks == now.clocks or not isinstance(folder, LocalFolder):
        folder.write(OWNER, text)
        return
    places = _places(folder, was, now, sources)
    assert places is not None, "it was checked"
    made = prepare_staging(folder.path)
    try:
        _make(folder.path, made, places, _folders(places, sources))
        (made / OWNER).write_text(text, "utf-8")
        swap(made, folder.path)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check_clocks(folder: Folder, checkpoint: str, was: Owner, now: Owner, sources: Sources, restart_hint: str) -> None:
    """Refuse other clocks if they cannot be told from other sources."""
    if was.clocks == now.clocks:
        return
    if isinstance(folder, LocalFolder):
        if _places(folder, was, now, sources) is None:
            raise _clock_refusal(checkpoint, now, restart_hint)
    elif not _has_room(folder, sources):
        raise _clock_refusal(checkpoint, now, restart_hint)


def add_clock(folder: Folder, sources: Sources) -> None:
    """Let a checkpoint elsewhere know of the clock, if it is what it does not know; done again, it changes nothing.

    Of a batch that is to be repeated Spark reads the one before, too: that one comes first.
    """
    if not sources or not _has_room(folder, sources):
        return
    for number in batch_numbers(folder, OFFSETS_FOLDER)[-2:]:
        file = f"{OFFSETS_FOLDER}/{number}"
        text = folder.read(file) or ""
        if len(_lines(text)) == len(sources) - 1:
            folder.write(file, f"{text.rstrip()}\n{NOTHING}")
            # A checksum of the file as it was.
            folder.delete(f"{OFFSETS_FOLDER}/.{number}.crc")
            folder.delete(f"{file}.crc")


def _has_room(folder: Folder, sources: Sources) -> bool:
    """Whether the checkpoint knows all sources but the last, which is the clock."""
    lines = _last(folder)
    return bool(lines) and _is_clock(sources[-1][1]) and len(lines) == len(sources) - 1


def _places(folder: Folder, was: Owner, now: Owner, sources: Sources) -> Places | None:
    """The position of each source; None: clocks cannot be told from others.

    A clock is recognised by its offset, a number, which another source might have as well; the stages of a query have
    their lines one after the other.
    """
    if len(was.queries) != 1 or len(now.queries) != 1:
        return None
    lines = _last(folder)
    before = [place for place, line in enumerate(lines) if line.isdecimal()]
    after = [place for place, (_, options) in enumerate(sources) if _is_clock(options)]
    stages = [[stage for stage, follows in enumerate(owner.clocks) if follows] for owner in (was, now)]
    if [len(before), len(after)] != [*map(len, stages)] or len(lines) - len(before) != len(sources) - len(after):
        return None
    ticked = dict(zip(stages[0], before, strict=True))
    ticks = dict(zip(after, stages[1], strict=True))
    others = iter([place for place in range(len(lines)) if place not in before])
    return [ticked.get(ticks[place]) if place in ticks else next(others) for place in range(len(sources))]


def _folders(places: Places, sources: Sources) -> dict[int, int]:
    """The folder of each source by the one that it had: they are numbered as sources come, equal ones as one."""
    now = {was: number for was, (number, _) in zip(places, sources, strict=True) if was is not None}
    place_count = max(now, default=-1) + 1
    # The removed source was a clock, and differs from all others.
    named = [("", now[place]) if place in now else ("gone", place) for place in range(place_count)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(named))}
    return {number: name[1] for name, number in numbers.items() if not name[0]}


def _make(checkpoint: Path, made: Path, places: Places, folders: Mapping[int, int]) -> None:
    """Fill a new checkpoint: plans with their lines in other places, all else as it is, by links."""
    line_count = len(_lines((checkpoint / OFFSETS_FOLDER / str(_batches(checkpoint)[-1])).read_text("utf-8")))
    for entry in checkpoint.iterdir():
        if entry.name not in (OFFSETS_FOLDER, "sources", OWNER) and not entry.name.startswith("."):
            _link(entry, made / entry.name)
    for was, now in folders.items():
        _link(checkpoint / "sources" / str(was), made / "sources" / str(now))
    (made / OFFSETS_FOLDER).mkdir(parents=True)
    for batch in _batches(checkpoint):
        head, lines = _parts((checkpoint / OFFSETS_FOLDER / str(batch)).read_text("utf-8"))
        # Batches from before an earlier change have other positions and are not needed.
        if len(lines) == line_count:
            moved = [NOTHING if place is None else lines[place] for place in places]
            (made / OFFSETS_FOLDER / str(batch)).write_text("\n".join([*head, *moved]), "utf-8")


def _link(source: Path, place: Path) -> None:
    """The same files at another place; nothing, if they are not there."""
    if source.is_dir():
        shutil.copytree(source, place, copy_function=_link_file)
    elif source.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        _link_file(str(source), str(place))


def _link_file(source: str, place: str) -> str:
    try:
        os.link(source, place)
    except OSError:
        # A file system without such links.
        shutil.copy2(source, place)
    return place


def _batches(checkpoint: Path) -> list[int]:
    return batch_numbers(LocalFolder(checkpoint), OFFSETS_FOLDER)


def _last(folder: Folder) -> list[str]:
    """The lines of the sources in the last plan."""
    batches = batch_numbers(folder, OFFSETS_FOLDER)
    return _lines(folder.read(f"{OFFSETS_FOLDER}/{batches[-1]}") or "") if batches else []


def _lines(text: str) -> list[str]:
    return _parts(text)[1]


def _parts(text: str) -> tuple[list[str], list[str]]:
    """A plan: its version and the metadata of the batch; and of each source a line."""
    lines = text.rstrip().split("\n")
    return lines[:2], lines[2:]


def _is_clock(options: Mapping[str, str]) -> bool:
    return options.get(FORMAT) == CLOCK


def _clock_refusal(checkpoint: str, now: Owner, restart_hint: str) -> WatersmeetError:
    difference = "no side could be idle, now one may" if any(now.clocks) else "a side could be idle, now none may"
    return refuse(
        "CHECKPOINT_OF_ANOTHER_QUERY", checkpoint=checkpoint, hint=f"undo the change, or {restart_hint}",
        difference=f"{difference}; which of Spark's sources are the clocks of its joins is not known",
    )  # fmt: skip
