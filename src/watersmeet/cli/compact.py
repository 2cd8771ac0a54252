"""``compact``: merges small files in the folders of a project's sinks, and says which folders stay as they are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import typer

from watersmeet.catalog import Sink, Source
from watersmeet.cli.console import Format, show_wait
from watersmeet.cli.run import Cluster
from watersmeet.cli.script import check_external_references, open_script
from watersmeet.cli.state import checkpoints_at
from watersmeet.duration import format_count
from watersmeet.errors import did_you_mean, refuse
from watersmeet.formats import sink_format
from watersmeet.formats.base import PATH
from watersmeet.locations import Storage, has_scheme, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.spark.private.files import Folder


_GLOB = re.compile(r"[*?\[{]")


def compact_project(path: Path, sink: str | None, sizes: tuple[float, float], cluster: Cluster, format: Format) -> None:
    """Merge the small files of all file sinks of a project, or of one."""
    opened = open_script(path, "absolute")
    check_external_references(opened)
    from watersmeet.spark.connectors.compaction import Compaction, Sizes, folder_of_sink
    from watersmeet.spark.connectors.reading import resolve_options
    from watersmeet.spark.state.owner import lock_storage

    storage, script = cluster.storage(opened.project, opened.script), resolve_options(opened.script)

    @cache
    def spark() -> SparkSession:
        with show_wait("Starting Spark"):
            return cluster.session(opened.project, storage, script)

    results: list[dict[str, object]] = []
    with lock_storage(storage, "alone"):
        checkpoints = checkpoints_at(storage)
        for target in _select_sinks(script.sinks, sink):
            reason = _obstacle(target, script.sources, spark, is_connect=cluster.remote is not None)
            done = -1 if reason else _last_committed(folder_of_sink(target, spark), target.format, checkpoints)
            reason = reason or ("this storage has no checkpoint of the query that writes it" if done is None else None)
            if reason is not None and sink is not None:
                hint = "leave it as it is; `watersmeet run --once` at intervals writes fewer and larger files."
                raise refuse("NOT_COMPACTED", sink=target.name, reason=reason, hint=hint)
            result: dict[str, object] = {"sink": target.name, "not_compacted": reason}
            if reason is None:
                before, after = Compaction(target, done or 0, Sizes(*sizes), spark).compact()
                result = {"sink": target.name, "files_before": before, "files": after}
            results.append(result)
            if format is Format.text:
                typer.echo(_format_result(result))
    if format is Format.json:
        typer.echo(json.dumps(results, indent=2))


def _format_result(result: dict[str, object]) -> str:
    if "files" not in result:
        return f"{result['sink']}: not compacted, because {result['not_compacted']}."
    before, after = int(str(result["files_before"])), int(str(result["files"]))
    change = "nothing to merge" if before == after else f"now {format_count(after, 'file')}"
    return f"{result['sink']}: {format_count(before, 'file')}, {change}."


def _select_sinks(sinks: Sequence[Sink], name: str | None) -> list[Sink]:
    """The sink of that name, or all sinks that are files."""
    if name is None:
        return [sink for sink in sinks if sink_format(sink).has_files]
    matches = [sink for sink in sinks if sink.name.lower() == name.lower()]
    if not matches:
        raise refuse("UNKNOWN_SINK", sink=name, suggestion=did_you_mean(name, [sink.name for sink in sinks]))
    return matches


def _obstacle(
    sink: Sink, sources: Sequence[Source], spark: Callable[[], SparkSession], *, is_connect: bool
) -> str | None:
    """The reason why the files of a sink must stay as they are; None: they can be merged."""
    from watersmeet.spark.connectors.compaction import COLUMNAR, TEXT, folder_of_sink
    from watersmeet.spark.connectors.files import LOG
    from watersmeet.spark.private.files import place_of

    format_, options = sink_format(sink), sink.lowercase_options
    folder = local_path(options.get(PATH, ""))
    if not format_.has_files or not folder:
        return "it is not a folder of files"
    if has_scheme(folder) and is_connect:
        return "its folder is not on this machine, and Spark Connect does not reach it"
    if sink.format.lower() not in (*TEXT, *COLUMNAR):
        return f"files of {sink.format.lower()} are not merged"
    if format_.changes is not None:
        return f"`changes '{format_.changes}'` has folders per batch or per version"
    if "encoding" in options or "charset" in options:
        return "files with an encoding of their own cannot be concatenated"
    if (place_of(folder_of_sink(sink, spark)) / LOG).exists():
        return "an earlier version wrote it; run the query once"
    readers = [source.name for source in sources if _reads(source, folder)]
    return f"`{readers[0]}` reads the folder, and would read merged rows again" if readers else None


def _reads(source: Source, folder: str) -> bool:
    """Whether a source may read files of a folder: one of the two lies in the other."""
    path = local_path(source.lowercase_options.get(PATH, ""))
    if not path or has_scheme(path) != has_scheme(folder):
        return False
    glob = _GLOB.search(path)
    root = path[: glob.start()].rpartition("/")[0] or "/" if glob else path
    read, written = (PurePosixPath(name if has_scheme(name) else os.path.realpath(name)) for name in (root, folder))
    return read.is_relative_to(written) or written.is_relative_to(read)


def _last_committed(folder: Folder, format: str, checkpoints: Sequence[Storage]) -> int | None:
    """The last finished batch of the checkpoint that a folder belongs to; None: that checkpoint is not here."""
    from watersmeet.spark.connectors.files import OWNER
    from watersmeet.spark.connectors.sinks import BatchPlans
    from watersmeet.spark.private.files import folder_of
    from watersmeet.spark.private.introspection import query_id

    text = folder.read(OWNER)
    if text is None:
        return -1
    try:
        owner = json.loads(text)
        run, format_ = owner["run"], owner["format"]
    except (ValueError, TypeError, KeyError):
        return None
    if format_ != format.lower() or run is None:
        return None
    done = [BatchPlans(folder_of(None, path)).last_done for path in checkpoints if query_id(path) == run]
    return done[0] if done else None
