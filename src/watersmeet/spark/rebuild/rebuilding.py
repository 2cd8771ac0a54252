"""Makes the state of a changed query anew, beside the old one, and puts it in its place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from watersmeet.catalog import Source
from watersmeet.counts import counted
from watersmeet.errors import refuse, travelled
from watersmeet.families import keeping_of
from watersmeet.joins.core.operator import NOW, Marks
from watersmeet.locations import location_of
from watersmeet.observe.history import read_history
from watersmeet.physical import join_plans, scan_plans
from watersmeet.physical.difference import Told
from watersmeet.physical.identity import scan_names
from watersmeet.plan.nodes import Script
from watersmeet.spark.compile.build import Built, Planned, compile_plan
from watersmeet.spark.compile.shards import PARTITIONS
from watersmeet.spark.past.log import Log, read_log
from watersmeet.spark.private.files import folder_of
from watersmeet.spark.private.state_files import WHOLE, UnknownStateError, put_at, renumber
from watersmeet.spark.private.told import unlogged, without_plan
from watersmeet.spark.private.writers import Sources
from watersmeet.spark.rebuild.input import Stretch, check_past, marks_stream, nothing_stream, past_stream
from watersmeet.spark.rebuild.logs import Read, write_logs
from watersmeet.spark.rebuild.reach import Seen, begin_of, reads_of, scans_now, seen_of
from watersmeet.spark.refusals import innermost
from watersmeet.spark.run.damage import PLANNED, numbers_in
from watersmeet.spark.run.owner import OWNER, Owner
from watersmeet.spark.session.meanwhile import with_settings
from watersmeet.spark.state.checkpoint import last_committed
from watersmeet.spark.state.swap import beside, swap

POLL = 0.2
"""Seconds between two looks at a replay."""


@dataclass(frozen=True)
class Rebuilding:
    """A state that is to be made anew: of which query, what of it has changed, and which batches are replayed."""

    name: str
    difference: str
    script: Script
    storage: Path
    checkpoint: Path
    built: Built
    was: Told
    stretch: Stretch
    last: int
    planned: int | None

    @property
    def sources(self) -> list[Source]:
        """What the query reads now, with options as Spark must have them."""
        found = [one for scan in scan_plans(self.built.plan.relation) for one in scan.parts or (scan.source,)]
        return list({one.name: self.script.with_options(one) for one in found}.values())

    @property
    def told(self) -> tuple[str, ...]:
        """What follows, in sentences without their full stops."""
        first, last = self.stretch.batches[0], self.stretch.batches[-1]
        known = reads_of(self.was.identity)
        new = [source.name for source in self.sources if source.name.lower() not in known]
        said = [
            f"batches {first} to {last} are read again" if first < last else f"batch {first} is read again",
            "what the query would have given in them does not come out; what came out of the old one stays as it is",
        ]
        if self.stretch.is_forgotten:
            one = "they count as one with it, and nothing in them as late"
            said.append(f"Spark has forgotten the batches before {first}: {one}")
        said += [f"{name} was not read before: it begins with the next batch" for name in new]
        return tuple(said)


def plan_rebuild(
    spark: SparkSession,
    script: Script,
    storage: Path,
    checkpoint: Path,
    name: str,
    built: Built,
    owner: Owner,
    why: str,
) -> Rebuilding:
    """What is to be done to make a state anew; refused, if the past of its sources is gone."""
    was, log = owner.queries[0], read_log(checkpoint)
    folder = folder_of(spark, checkpoint)
    last = last_committed(folder)
    if last is None or last not in log.batches:
        reason = f"no batch of it is finished, so that {checkpoint} holds nothing and may be deleted"
        raise refuse("NOT_REBUILT", query=name, reason=reason)
    planned = next((number for number in numbers_in(folder, PLANNED) if number > last), None)
    begin = begin_of(built.told, _seen(storage, name, checkpoint, was, built, log), lambda of: keeping_of(of).reach)
    batches = tuple(batch for batch in log.batches if begin.batch <= batch <= last) or (last,)
    stretch = Stretch(log, batches, begin.batch, begin.marks)
    found = Rebuilding(name, why, script, storage, checkpoint, built, was, stretch, last, planned)
    known = reads_of(was.identity)
    check_past(name, [source for source in found.sources if source.name.lower() in known], stretch)
    return found


def _seen(storage: Path, name: str, checkpoint: Path, was: Told, built: Built, log: Log) -> list[Seen]:
    """How far times were after each batch, as far as the history of the query tells."""
    topics = [part.rpartition("-")[0] for part in log.offsets]
    if len(set(topics)) < len(topics):
        # The mark of a topic is that of its slowest partition: how far times are in the others it does not tell.
        return []
    # What came before was told by other lags, perhaps.
    since = (checkpoint / OWNER).stat().st_mtime
    history = [one for one in read_history(storage, name).batches if one.at + one.seconds >= since]
    return seen_of(was, built.told, history, log.batches[-1])


def rebuild(
    spark: SparkSession,
    asked: Rebuilding,
    sources: Sources,
    on_news: Callable[[str], None],
    is_interrupted: Callable[[], bool],
) -> None:
    """Make the state anew and let it take the place of the old one; until then nothing of that is changed.

    ``sources``: those of the query as Spark sees them.
    """
    made = beside(asked.checkpoint)
    scratch = made.with_name(f"{made.name}-input")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        # What the state was written with decides in how many partitions it lies.
        batches = [asked.last] if asked.planned is None else [asked.last, asked.planned]
        read = Read.of(asked.checkpoint, batches)
        _replay(spark, asked, made, scratch, str(read.heads[asked.last]["conf"][PARTITIONS]), on_news, is_interrupted)
        _finish(spark, asked, made, read, sources)
        swap(made, asked.checkpoint)
    except (PySparkException, UnknownStateError) as error:
        ours = travelled(without_plan(str(error)))
        reason = innermost(error) if ours is None else ours.message
        raise refuse("NOT_REBUILT", query=asked.name, reason=reason) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _replay(
    spark: SparkSession,
    asked: Rebuilding,
    made: Path,
    scratch: Path,
    partitions: str,
    on_news: Callable[[str], None],
    is_interrupted: Callable[[], bool],
) -> None:
    """Run the query over its past, into a new checkpoint; what comes out goes nowhere."""
    stretch = asked.stretch
    known, frames = reads_of(asked.was.identity), dict(asked.built.compiler.frames)
    for source in asked.sources:
        if not frames[source.name].isStreaming:
            continue
        folder = scratch / source.name
        if source.name.lower() in known:
            frames[source.name] = past_stream(
                spark, asked.script, source, asked.storage, stretch, folder.absolute(), asked.name
            )
        else:
            frames[source.name] = nothing_stream(frames[source.name], stretch.steps, folder.absolute())
    marks = marks_stream(spark, _marks(asked), stretch.steps, (scratch / "#marks").absolute())
    compiler = replace(asked.built.compiler, frames=frames, marks=marks, clock="marks", files={}, told="none")
    built = compile_plan(asked.script, Planned(asked.built.query, asked.built.plan), compiler)
    with with_settings(spark, {**WHOLE, PARTITIONS: partitions}), unlogged():
        writer = built.compiled.result.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", location_of(made)).start()
        told = 0
        try:
            while not query.awaitTermination(POLL):  # pyright: ignore[reportArgumentType] - it takes parts of seconds
                done = query.lastProgress
                if done is not None and done.batchId + 1 > told:
                    told = int(done.batchId) + 1
                    on_news(f"{asked.name}: {told} of {counted(stretch.steps, 'batch')} read again.")
                if is_interrupted():
                    query.stop()
                    raise KeyboardInterrupt
        finally:
            query.stop()
    found = last_committed(folder_of(spark, made))
    if found != stretch.steps - 1:
        raise refuse("NOT_REBUILT", query=asked.name, reason=f"it had {found} batches in place of {stretch.steps}")


def _finish(spark: SparkSession, asked: Rebuilding, made: Path, read: Read, sources: Sources) -> None:
    """Let the new checkpoint be one after the last batch of the old one."""
    head = (made / "offsets" / str(asked.stretch.steps - 1)).read_text("utf-8").split("\n")[1]
    renumber(made, asked.stretch.steps - 1, asked.last)
    put_at(made, asked.checkpoint.absolute())
    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(made / name, ignore_errors=True)
    write_logs(made, read, sources, asked.last, asked.planned, json.loads(head)["conf"])
    (made / "commits").mkdir()
    for file in (f"commits/{asked.last}", "metadata"):
        shutil.copyfile(asked.checkpoint / file, made / file)
    for checksum in made.glob(".*.crc"):
        checksum.unlink()
    (made / OWNER).write_text(Owner((asked.built.told,), rebuilt=asked.last).to_text(spark.version), "utf-8")


def _marks(asked: Rebuilding) -> dict[int, Marks]:
    """Marks from outside by batch of the replay, as the query calls their columns; the clock is one of them."""
    stretch, scans = asked.stretch, scans_now(asked.was, asked.built.told)
    called = {name: column for column, name in scan_names(asked.built.plan).items()}
    found: dict[int, dict[str, int]] = {}
    if stretch.marks:
        found[0] = {called[name]: mark for name, mark in stretch.marks.items() if name in called}
    for batch in stretch.batches:
        found[stretch.place(batch)] = {
            _called(name, scans, called): mark for name, mark in _outside(stretch.log, asked, batch).items()
        }
    if any(join.operator.needs_clock for join in join_plans(asked.built.plan.relation)):
        for batch in stretch.batches:
            found[stretch.place(batch)][NOW] = stretch.log.clocks[batch]
    return dict[int, Marks](found)


def _outside(log: Log, asked: Rebuilding, batch: int) -> dict[str, int]:
    """The marks that came from outside in a batch, by the names that they have in their files."""
    folder = str((asked.storage / "marks" / asked.name).absolute())
    found: dict[str, int] = {}
    for file in (file for file, of in log.files.items() if of == batch and str(Path(file).parent) == folder):
        if Path(file).is_file():
            told = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
            found |= {str(one["column"]): int(one["value"]) for one in told}
    return found


def _called(name: str, scans: Mapping[str, str], called: Mapping[str, str]) -> str:
    """What the query calls a column that a mark names as the query of before did; marks of no scan stay as they are."""
    number, _, rest = name.partition(".")
    now = f"{scans[number]}.{rest}" if number in scans else name
    return called.get(now, now)
