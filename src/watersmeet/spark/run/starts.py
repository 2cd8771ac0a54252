"""Starts of queries that have joins of ours: what must not go on with a checkpoint is refused before anything runs.

Every query that is built gets a token, which the observations of its joins carry in their names. So its joins are found
again in whatever frame they end up, and with them what they are: their identities.

After a checkpoint or a sink was restored from an older copy, a sink may be at another batch than its checkpoint: it is
refused or rewound here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from threading import Lock
from typing import Any, Literal
from uuid import uuid4
from weakref import ref

from pyspark.sql import DataFrame, SparkSession, is_remote

from watersmeet.errors import Place, refuse
from watersmeet.locations import Storage
from watersmeet.metrics.progress import ProgressSchema
from watersmeet.physical.difference import NamedIdentity
from watersmeet.physical.identity import identity_of, outcome_digest, scan_words
from watersmeet.physical.nodes import QueryPlan
from watersmeet.spark.compile.shards import PARTITIONS, partitions_of
from watersmeet.spark.connectors import sink_connector
from watersmeet.spark.connectors.outputs import BatchPlans, sink_ahead
from watersmeet.spark.connectors.reading import check_inputs
from watersmeet.spark.connectors.table_sinks import SinkTarget
from watersmeet.spark.exchange.output import is_bounded
from watersmeet.spark.private.files import Folder, LocalFolder, folder_of, local_checkpoint_settings
from watersmeet.spark.private.introspection import set_accepted_states
from watersmeet.spark.private.transfer import BYTES, RECORDS, UNLIMITED, PythonTransfer, room
from watersmeet.spark.private.writers import Sources, Started, watch_starts
from watersmeet.spark.run.clock import add_clock, check_clocks, take_clocks
from watersmeet.spark.session import STATE
from watersmeet.spark.state.changes import Accepting, continue_checkpoint
from watersmeet.spark.state.checkpoint import clear_leftovers
from watersmeet.spark.state.owner import COMMITS_FOLDER, OFFSETS_FOLDER, OWNER, Owner, check_files

ACCEPT = "watersmeet.accept"
"""The option of a writer that takes what follows from a change of its query."""
ACCEPT_HINT = f'accept it with `.option("{ACCEPT}", "true")` of the writer, or undo the change.'
NEW_CHECKPOINT_HINT = "give the changed query a new checkpointLocation and a new folder or table to write to."

_TOKEN = re.compile(r"#([0-9a-f]{16})\.")
MOST = 1000
"""The number of queries that are remembered besides those whose results are in use."""


@dataclass(frozen=True)
class _KnownQuery:
    """A query that was built: its plan, the meaning of its metrics, and whether its result is in use."""

    description: NamedIdentity
    schema: ProgressSchema = field(default_factory=ProgressSchema)
    result: Callable[[], object | None] = lambda: None


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
            self._queries[token] = _KnownQuery(description)

    def remember_result(self, token: str, schema: ProgressSchema, result: object) -> None:
        """Know what the numbers of a query stand for, and its result."""
        with self._lock:
            if token in self._queries:
                self._queries[token] = replace(self._queries[token], schema=schema, result=ref(result))

    def forget(self, token: str) -> None:
        """Know a query no longer."""
        with self._lock:
            self._queries.pop(token, None)

    def find(self, token: str) -> NamedIdentity | None:
        """The identity of a query; None if it is not known."""
        entry = self._touch(token)
        return None if entry is None else entry.description

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


def describe_query(plan: QueryPlan, shards: int) -> NamedIdentity:
    """The identity of a query, with its display names."""
    return NamedIdentity(identity_of(plan, shards), scan_words(plan), outcome_digest(plan))


def watch_frame(frame: DataFrame, token: str, schema: ProgressSchema) -> None:
    """See to it that starts of queries like this frame are looked at, and that what Spark reports of them is known."""
    if not frame.isStreaming:
        _queries.forget(token)
        return
    watch_starts(type(frame.writeStream), _before_start, _settings)
    _queries.remember_result(token, schema, frame)


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
    started = before_start(spark, checkpoint, now)
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
    if checkpoint is not None and isinstance(folder_of(spark, checkpoint), LocalFolder):
        wanted |= local_checkpoint_settings(spark)
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
        now = replace(now, accepted=was.accepted, rebuilt=was.rebuilt, changed=was.changed)
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
"""How to start with a sink that has batches which its checkpoint does not have. ``rewind``: their output is removed,
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
