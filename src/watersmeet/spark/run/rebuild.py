"""Rebuild the state of a changed query next to the old one, and replace that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from watersmeet.catalog import Source
from watersmeet.duration import format_count
from watersmeet.errors import refusal_in, refuse
from watersmeet.locations import Storage, location_of
from watersmeet.logical.nodes import Script
from watersmeet.metrics.history import read_history
from watersmeet.operators import state_schema_of
from watersmeet.operators.core.operator import NOW, Watermarks
from watersmeet.physical import join_plans
from watersmeet.physical.change import NamedIdentity
from watersmeet.physical.identity import scan_names
from watersmeet.spark.connectors.history import MARKER, path_of_history
from watersmeet.spark.private.files import (
    WHOLE,
    UnknownStateError,
    copy_tree,
    delete_tree,
    folder_of,
    relocate_state,
    renumber,
)
from watersmeet.spark.private.introspection import suppress_logs, without_plan
from watersmeet.spark.private.writers import Sources
from watersmeet.spark.refusals import innermost_cause
from watersmeet.spark.run.build import Built, PlannedQuery, compile_plan
from watersmeet.spark.run.rebuild_input import (
    BatchTimes,
    ReplayRange,
    check_replayable,
    empty_stream,
    match_scans,
    replay_start,
    replay_stream,
    sources_by_name,
    times_after_batches,
    watermark_stream,
)
from watersmeet.spark.session.workers import PARTITIONS, with_settings
from watersmeet.spark.state.checkpoint import discard_staging, final_place, last_committed, prepare_staging, swap
from watersmeet.spark.state.offset_log import OffsetLog, SourcePositions, read_log, write_logs
from watersmeet.spark.state.owner import OFFSETS_FOLDER, OWNER, Owner, batch_numbers

POLL = 0.2
"""Seconds between two looks at a replay."""


@dataclass(frozen=True)
class RebuildPlan:
    """A rebuild of a state: of which query, what has changed, and which batches are replayed."""

    name: str
    difference: str
    script: Script
    storage: Storage
    checkpoint: Storage
    built: Built
    was: NamedIdentity
    replay: ReplayRange
    last: int
    planned: int | None

    @property
    def sources(self) -> list[Source]:
        """The sources that the query reads now, with options resolved for Spark."""
        scanned = [source for scan in self.built.plan.relation.leaves for source in scan.parts or (scan.source,)]
        return list({source.name: self.script.with_options(source) for source in scanned}.values())

    @property
    def consequences(self) -> tuple[str, ...]:
        """The consequences of the rebuild, as sentences without their full stops."""
        first, last = self.replay.batches[0], self.replay.batches[-1]
        read_before = sources_by_name(self.was.identity)
        new = [source.name for source in self.sources if source.name.lower() not in read_before]
        sentences = [
            f"batches {first} to {last} are read again" if first < last else f"batch {first} is read again",
            "the query emits nothing for them; the output of the old query stays as it is",
        ]
        if self.replay.is_truncated:
            note = "they are read as one batch with it, and none of their rows is late"
            sentences.append(f"Spark has forgotten the batches before {first}: {note}")
        sentences += [f"{name} was not read before: the query reads it from the next batch on" for name in new]
        return tuple(sentences)


def plan_rebuild(
    spark: SparkSession,
    script: Script,
    storage: Storage,
    checkpoint: Storage,
    name: str,
    built: Built,
    owner: Owner,
    why: str,
) -> RebuildPlan:
    """Plan the rebuild of a state; refuse it if the past of its sources is gone."""
    was, log = owner.queries[0], read_log(checkpoint)
    folder = folder_of(spark, checkpoint)
    last = last_committed(folder)
    if last is None or last not in log.batches:
        reason = f"it has no finished batch: {checkpoint} is empty and may be deleted"
        raise refuse("NOT_REBUILT", query=name, reason=reason)
    planned = next((number for number in batch_numbers(folder, OFFSETS_FOLDER) if number > last), None)
    begin = replay_start(
        built.signature, _batch_times(storage, name, checkpoint, was, built, log), lambda of: state_schema_of(of).reach
    )
    batches = tuple(batch for batch in log.batches if begin.batch <= batch <= last) or (last,)
    replay = ReplayRange(log, batches, begin.batch, begin.watermarks)
    plan = RebuildPlan(name, why, script, storage, checkpoint, built, was, replay, last, planned)
    read_before = sources_by_name(was.identity)
    check_replayable(name, [source for source in plan.sources if source.name.lower() in read_before], replay)
    return plan


def _batch_times(
    storage: Storage, name: str, checkpoint: Storage, was: NamedIdentity, built: Built, log: OffsetLog
) -> list[BatchTimes]:
    """The watermarks after each batch, as far as the history of the query has them."""
    topics = [part.rpartition("-")[0] for part in log.offsets]
    if len(set(topics)) < len(topics):
        # The watermark of a topic is that of its slowest partition: how far times are in the others it does not tell.
        return []
    # Earlier watermarks may follow from other lags.
    since = (checkpoint / OWNER).stat().st_mtime
    history = [progress for progress in read_history(storage, name).batches if progress.at + progress.seconds >= since]
    return times_after_batches(was, built.signature, history, log.batches[-1])


def rebuild(
    spark: SparkSession,
    plan: RebuildPlan,
    sources: Sources,
    on_news: Callable[[str], None],
    is_interrupted: Callable[[], bool],
) -> None:
    """Rebuild the state and replace the old one, which does not change before that.

    ``sources``: those of the query as Spark sees them.
    """
    made = prepare_staging(plan.checkpoint)
    scratch = made.with_name(f"{made.name}-input")
    delete_tree(scratch)
    try:
        # What the state was written with decides in how many partitions it lies.
        batches = [plan.last] if plan.planned is None else [plan.last, plan.planned]
        read = SourcePositions.of(plan.checkpoint, batches)
        _replay(spark, plan, made, scratch, str(read.heads[plan.last]["conf"][PARTITIONS]), on_news, is_interrupted)
        _finish(spark, plan, made, read, sources)
        swap(made, plan.checkpoint)
    except (PySparkException, UnknownStateError) as error:
        ours = refusal_in(without_plan(str(error)))
        reason = innermost_cause(error) if ours is None else ours.message
        raise refuse("NOT_REBUILT", query=plan.name, reason=reason) from error
    finally:
        discard_staging(made, plan.checkpoint)
        delete_tree(scratch)


def _replay(
    spark: SparkSession,
    plan: RebuildPlan,
    made: Storage,
    scratch: Storage,
    partitions: str,
    on_news: Callable[[str], None],
    is_interrupted: Callable[[], bool],
) -> None:
    """Run the query over its past, into a new checkpoint; what comes out goes nowhere."""
    replay = plan.replay
    read_before, frames = sources_by_name(plan.was.identity), dict(plan.built.compiler.frames)
    for source in plan.sources:
        if not frames[source.name].isStreaming:
            continue
        folder = scratch / source.name
        if source.name.lower() in read_before:
            frames[source.name] = replay_stream(
                spark, plan.script, source, plan.storage, replay, folder.absolute(), plan.name
            )
        else:
            frames[source.name] = empty_stream(frames[source.name], replay.steps, folder.absolute())
    watermarks = watermark_stream(spark, _replay_watermarks(plan), replay.steps, (scratch / "#marks").absolute())
    compiler = replace(
        plan.built.compiler, frames=frames, watermarks=watermarks, clock="marks", files={}, sample_rows="none"
    )
    built = compile_plan(plan.script, PlannedQuery(plan.built.query, plan.built.plan), compiler)
    with with_settings(spark, {**WHOLE, PARTITIONS: partitions}), suppress_logs():
        writer = built.compiled.result.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", location_of(made)).start()
        reported = 0
        try:
            while not query.awaitTermination(POLL):  # pyright: ignore[reportArgumentType] - it takes parts of seconds
                done = query.lastProgress
                if done is not None and done.batchId + 1 > reported:
                    reported = int(done.batchId) + 1
                    on_news(f"{plan.name}: {reported} of {format_count(replay.steps, 'batch')} read again.")
                if is_interrupted():
                    query.stop()
                    raise KeyboardInterrupt
        finally:
            query.stop()
    committed = last_committed(folder_of(spark, made))
    if committed != replay.steps - 1:
        raise refuse("NOT_REBUILT", query=plan.name, reason=f"it had {committed} batches instead of {replay.steps}")


def _finish(spark: SparkSession, plan: RebuildPlan, made: Storage, read: SourcePositions, sources: Sources) -> None:
    """Let the new checkpoint be one after the last batch of the old one."""
    head = (made / "offsets" / str(plan.replay.steps - 1)).read_text("utf-8").split("\n")[1]
    renumber(made, plan.replay.steps - 1, plan.last)
    relocate_state(made, final_place(made, plan.checkpoint))
    for name in ("offsets", "commits", "sources"):
        delete_tree(made / name)
    # Of a history that was read, the log still has the files.
    sources = [
        (number, {name: path_of_history(value) if name.lower() == "path" else value for name, value in options.items()})
        for number, options in sources
    ]
    write_logs(made, read, sources, plan.last, plan.planned, json.loads(head)["conf"])
    (made / "commits").mkdir()
    for file in (f"commits/{plan.last}", "metadata", *([MARKER] if (plan.checkpoint / MARKER).is_file() else [])):
        copy_tree(plan.checkpoint / file, made / file)
    for checksum in list(made.glob(".*.crc")):
        checksum.unlink()
    (made / OWNER).write_text(Owner((plan.built.signature,), rebuilt=plan.last).to_text(spark.version), "utf-8")


def _replay_watermarks(plan: RebuildPlan) -> dict[int, Watermarks]:
    """Watermarks from outside by batch of the replay, as the query calls their columns; the clock is one of them."""
    replay, scans = plan.replay, match_scans(plan.was, plan.built.signature)
    called = {name: column for column, name in scan_names(plan.built.plan).items()}
    by_step: dict[int, dict[str, int]] = {}
    if replay.watermarks:
        by_step[0] = {called[name]: watermark for name, watermark in replay.watermarks.items() if name in called}
    for batch in replay.batches:
        by_step[replay.step_of(batch)] = {
            _column_name(name, scans, called): watermark
            for name, watermark in _external_watermarks(replay.log, plan, batch).items()
        }
    if any(join.operator.needs_clock for join in join_plans(plan.built.plan.relation)):
        for batch in replay.batches:
            by_step[replay.step_of(batch)][NOW] = replay.log.clocks[batch]
    return dict[int, Watermarks](by_step)


def _external_watermarks(log: OffsetLog, plan: RebuildPlan, batch: int) -> dict[str, int]:
    """The watermarks that came from outside in a batch, by the names that they have in their files."""
    folder = str((plan.storage / "marks" / plan.name).absolute())
    watermarks: dict[str, int] = {}
    for name in (file for file, of in log.files.items() if of == batch and file.rpartition("/")[0] == folder):
        file = plan.storage / "marks" / plan.name / name.rpartition("/")[2]
        if file.is_file():
            records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
            watermarks |= {str(record["column"]): int(record["value"]) for record in records}
    return watermarks


def _column_name(name: str, scans: Mapping[str, str], called: Mapping[str, str]) -> str:
    """The present name of a column that a watermark names as the earlier query did; other names do not change."""
    number, _, rest = name.partition(".")
    now = f"{scans[number]}.{rest}" if number in scans else name
    return called.get(now, now)
