"""Starts of queries that have joins of ours: what must not go on with a checkpoint is refused before anything runs.

Every query that is built gets a token, which the observations of its joins carry in their names. So its joins are found
again in whatever frame they end up, and with them what they are: their identities.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4
from weakref import ref

from pyspark.sql import DataFrame, SparkSession, is_remote

from watersmeet.observe.progress import Reading
from watersmeet.physical.difference import Told
from watersmeet.physical.identity import identity_of, words_of
from watersmeet.physical.nodes import QueryPlan
from watersmeet.spark.compile.shards import PARTITIONS, partitions_of
from watersmeet.spark.exchange.crossing import is_bounded
from watersmeet.spark.private.crossings import BYTES, RECORDS, UNLIMITED, Crossing, room
from watersmeet.spark.private.files import Folder, LocalFolder, folder_of
from watersmeet.spark.private.local_files import quickly_here
from watersmeet.spark.private.told import tell_workers
from watersmeet.spark.private.writers import Sources, Started, watch_starts
from watersmeet.spark.run.changes import Accepting, continued
from watersmeet.spark.run.clock import add_clock, check_clocks, take_clocks
from watersmeet.spark.run.damage import DONE, PLANNED, check_files
from watersmeet.spark.run.owner import OWNER, Owner
from watersmeet.spark.session import STATE
from watersmeet.spark.sources.missing import check_inputs
from watersmeet.spark.state.swap import clear

ACCEPT = "watersmeet.accept"
"""The option of a writer that takes what follows from a change of its query."""
HOW = f'accept it with `.option("{ACCEPT}", "true")` of the writer, or undo the change.'
ANEW = "give the changed query another checkpointLocation, and another folder or table to write to."

_TOKEN = re.compile(r"#([0-9a-f]{16})\.")
MOST = 1000
"""How many queries are known beside those whose results are still at hand."""


@dataclass(frozen=True)
class _Known:
    """What is known of a query that was built: what it is, what its numbers stand for, and whether its result lives."""

    told: Told
    reading: Reading = field(default_factory=Reading)
    result: Callable[[], object | None] = lambda: None


class KnownQueries:
    """The streaming queries that were built in this process, by their tokens, the one used last at the end.

    A result may be started at any time, also what was made of it, which does not keep the result itself. So the newest
    stay, those that are asked for, and those whose results live; a program that builds queries for ever does not grow.

    >>> known = KnownQueries(most=2)
    >>> for token in "abcd":
    ...     known.add(token, Told({}, {"0": {"alias": token}}))
    >>> known.find("a"), known.find("b").words
    (None, {'0': {'alias': 'b'}})
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._queries: dict[str, _Known] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._queries)

    def add(self, token: str, told: Told) -> None:
        """Know a query from now on."""
        with self._lock:
            gone = [name for name, query in self._queries.items() if query.result() is None]
            for name in gone[: max(0, len(gone) - self._most)]:
                del self._queries[name]
            self._queries[token] = _Known(told)

    def read(self, token: str, reading: Reading, result: object) -> None:
        """Know what the numbers of a query stand for, and its result."""
        with self._lock:
            if token in self._queries:
                self._queries[token] = replace(self._queries[token], reading=reading, result=ref(result))

    def forget(self, token: str) -> None:
        """Know a query no longer."""
        with self._lock:
            self._queries.pop(token, None)

    def find(self, token: str) -> Told | None:
        """What a query is, if it is known."""
        known = self._used(token)
        return None if known is None else known.told

    def reading(self, token: str) -> Reading:
        """What the numbers of a query stand for; nothing, if it is not known."""
        known = self._used(token)
        return Reading() if known is None else known.reading

    def _used(self, token: str) -> _Known | None:
        with self._lock:
            known = self._queries.pop(token, None)
            if known is not None:
                self._queries[token] = known
            return known


_queries = KnownQueries()


def token_of(told: Told) -> str:
    """A new token, under which a query is known from now on."""
    token = uuid4().hex[:16]
    _queries.add(token, told)
    return token


def told_of(plan: QueryPlan, shards: int) -> Told:
    """What a query is, with its words."""
    return Told(identity_of(plan, shards), words_of(plan))


def watch(frame: DataFrame, token: str, reading: Reading) -> None:
    """See to it that starts of queries like this frame are looked at, and that what Spark reports of them is known."""
    if not frame.isStreaming:
        _queries.forget(token)
        return
    watch_starts(type(frame.writeStream), _before_start, _settings)
    _queries.read(token, reading, frame)


def reading_of(names: Iterable[str]) -> Reading:
    """What numbers under these names of observations stand for, if they are of queries that were built here."""
    tokens = dict.fromkeys(found[1] for name in names if (found := _TOKEN.search(name)) is not None)
    return reduce(Reading.plus, map(_queries.reading, tokens), Reading())


def read_owner(spark: SparkSession, checkpoint: str | Path, anew: str = ANEW) -> Owner | None:
    """Whose checkpoint this is, if it is anyone's; refused if nobody can tell, or nobody can read it."""
    folder = folder_of(spark, checkpoint)
    check_files(folder, str(checkpoint), anew)
    text = folder.read(OWNER) if folder.has_files(PLANNED) else None
    return None if text is None else Owner.from_text(text, str(checkpoint), anew)


def _before_start(
    spark: SparkSession, checkpoint: str, tokens: tuple[str, ...], sources: Sources, options: Mapping[str, str]
) -> Started:
    now = Owner(tuple(told for token in tokens if (told := _queries.find(token)) is not None))
    accepting: Accepting = "accept" if options.get(ACCEPT) == "true" else "refuse"
    folder = folder_of(spark, checkpoint)
    if isinstance(folder, LocalFolder):
        clear(folder.path)
    was = read_owner(spark, checkpoint) if now.queries else None
    if was is not None:
        taken, _ = continued(spark, checkpoint, was, now, accepting, ANEW, HOW)
        check_clocks(folder, checkpoint, was, taken, sources, ANEW)
        if taken is not was:
            take_clocks(folder, was, taken, sources, spark.version)
        if any(taken.clocks) and not isinstance(folder, LocalFolder):
            add_clock(folder, sources)
    started = before_start(spark, checkpoint, now)
    check_inputs(spark, checkpoint, sources)
    return started


def _settings(
    spark: SparkSession, checkpoint: str | None, tokens: tuple[str, ...], crossings: tuple[Crossing, ...] | None
) -> dict[str, str]:
    """What a query is to be set to where nobody has said otherwise: what a session of ours is, and its partitions.

    Where the number of rows bounds the bytes of all that crosses to Python, Spark need not count them.

    In a session of ours a checkpoint on this machine is written as `watersmeet run` writes it, but for the logs of
    sources: these have the settings that the session has when Spark first looks at them, after the start.
    """
    shards = [int(told.identity["shards"]) for token in tokens if (told := _queries.find(token)) is not None]
    partitions = partitions_of(spark, max(shards)) if shards else None
    wanted = STATE | ({} if partitions is None else {PARTITIONS: str(partitions)})
    if checkpoint is not None and isinstance(folder_of(spark, checkpoint), LocalFolder):
        wanted |= quickly_here(spark)
    given = spark.conf.getAll
    if crossings is not None and is_bounded(crossings, room(given.get(RECORDS, STATE[RECORDS]))):
        wanted |= {BYTES: UNLIMITED}
    return {name: value for name, value in wanted.items() if name not in given}


def before_start(spark: SparkSession, checkpoint: str | Path, now: Owner) -> Started:
    """Refuse to start on a checkpoint of others, and write down whose it is; gives what to call once the query runs.

    It is written before the first batch is planned, so that no checkpoint with batches is without it.
    """
    if not now.queries:
        return _nothing
    folder = folder_of(spark, checkpoint)
    was = read_owner(spark, checkpoint)
    if was is not None:
        was.check(now, str(checkpoint), ANEW)
        now = replace(now, accepted=was.accepted, rebuilt=was.rebuilt)
    tell_workers(spark, now.accepted)
    # Without a finished batch there is no state yet that others could have left.
    is_new = not folder.has_files(DONE) if was is None else was.format < now.format
    if not is_new:
        return _nothing
    if is_remote():
        # Whether a server keeps the checkpoint on this machine is seen when the query runs.
        return lambda query: _record(query, now, folder, spark.version)
    folder.make()
    folder.write(OWNER, now.to_text(spark.version))
    return _nothing


def _record(query: Any, owner: Owner, folder: Folder, version: str) -> None:
    """Write down whose checkpoint this is, if this is where the query keeps it: a server has files of its own."""
    if query.id in (folder.read("metadata") or ""):
        folder.write(OWNER, owner.to_text(version))


def _nothing(query: Any) -> None:
    """A checkpoint that was begun before: whose it is was written down then, or its workers will tell."""
