"""Export of a checkpoint as one archive, and import: the query continues on another machine.

Neither needs Spark, except to reach a storage that is not on this machine.

An archive begins with a manifest with digests, followed by the files of a checkpoint and its parts of the storage
folder. Spark stores absolute paths in a checkpoint, and so does the identity of a query: paths in the folder of the
project, or of the checkpoint, are rewritten to their new location.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote
from uuid import uuid4

from watersmeet.catalog import Source
from watersmeet.errors import refuse
from watersmeet.formats import source_format
from watersmeet.formats.columns import FOLDER as COLUMNS
from watersmeet.locations import (
    AnyStorage,
    RemoteStorage,
    Storage,
    checkpoint_at,
    has_scheme,
    is_local,
    local_path,
    query_of,
)
from watersmeet.spark.connectors.static import DECLARATION
from watersmeet.spark.connectors.static import FOLDER as COPIES
from watersmeet.spark.private.files import delete_tree
from watersmeet.spark.state.archives import (
    Manifest,
    list_files,
    new_manifest,
    open_archive,
    write_archive,
    wrong_archive,
)
from watersmeet.spark.state.checkpoint import prepare_staging, recover_swap, swap
from watersmeet.spark.state.offset_log import SourcePositions
from watersmeet.spark.state.owner import OWNER, Owner, move_owner

CHECKPOINT = "checkpoint"
_STORAGE_PARTS = {"marks": "marks/{query}", "columns": f"{COLUMNS}/{{query}}.json", COPIES: COPIES}
"""The parts of a checkpoint in its storage folder, by their place in an archive."""
_HIDDEN = ".import-"

Move = Callable[[str], str]
Places = tuple[tuple[str, str], ...]
"""Folders as they were, and where they are now."""


@contextmanager
def local_copy(file: Storage) -> Generator[Path]:
    """A file of a storage on this machine: itself, or a copy while this is entered."""
    if is_local(file):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="watersmeet-file-") as folder:
        copy = Path(folder) / file.name
        cast("RemoteStorage", file).download(copy)
        yield copy


def export_checkpoint(checkpoint: Storage, root: Path, archive: Storage) -> Manifest:
    """Write a checkpoint of a query that does not run to a new file; ``root`` is the folder that paths begin with."""
    if not is_local(archive):
        with tempfile.TemporaryDirectory(prefix="watersmeet-export-") as folder:
            manifest = export_checkpoint(checkpoint, root, Path(folder) / archive.name)
            cast("RemoteStorage", archive).upload(Path(folder) / archive.name)
            return manifest
    owner = _owner(checkpoint)
    if is_local(checkpoint):
        return _pack(owner, checkpoint, dict(_files(checkpoint)), root, archive)
    with tempfile.TemporaryDirectory(prefix="watersmeet-export-") as folder:
        files: dict[str, Path] = {}
        for name, file in _files(checkpoint):
            files[name] = Path(folder) / name
            cast("RemoteStorage", file).download(files[name])
        return _pack(owner, checkpoint, files, root, archive)


def _pack(owner: Owner, checkpoint: Storage, files: Mapping[str, Path], root: Path, archive: Path) -> Manifest:
    manifest = new_manifest(owner.versions["spark"], owner.format, checkpoint, root, list_files(files))
    write_archive(manifest, files, archive)
    return manifest


def import_checkpoint(archive: Path, storage: Storage, root: Path, sinks: Literal["own", "same"] = "own") -> Manifest:
    """Extract an archive into a storage folder where that query has no checkpoint; all of it, or nothing.

    ``sinks``: whether the query writes to new sinks from now on, as another run of it, or continues with the same.
    """
    if not is_local(storage):
        return _import_remote(archive, storage, root, sinks)
    with open_archive(archive, frozenset({CHECKPOINT, *_STORAGE_PARTS})) as (manifest, reader):
        target = storage / "checkpoints" / manifest.query
        recover_swap(target)
        parts = {name: storage / place.format(query=manifest.query) for name, place in _STORAGE_PARTS.items()}
        hidden = target.with_name(f"{_HIDDEN}{manifest.query}")
        if hidden.exists() and not target.exists():
            # Of an import that was killed: the files next to the checkpoint came with it.
            shutil.rmtree(parts["marks"], ignore_errors=True)
            parts["columns"].unlink(missing_ok=True)
        for there in (target, parts["marks"], parts["columns"]):
            if there.exists():
                raise refuse("CHECKPOINT_IS_THERE", path=there, query=manifest.query)
        shutil.rmtree(hidden, ignore_errors=True)
        with ExitStack() as undo:
            _make_parents(hidden, undo)
            hidden.mkdir()
            undo.callback(shutil.rmtree, hidden, ignore_errors=True)
            reader.unpack(manifest, hidden)
            _take_over(archive, hidden, manifest, target, root, sinks)
            _check_copies(hidden / COPIES, parts[COPIES], manifest.query)
            for name, place in parts.items():
                _put(hidden / name, place, undo)
            # Last, and in one step: until then the query has no checkpoint, and the files next to it have no effect.
            (hidden / CHECKPOINT).rename(target)
            undo.pop_all()
        shutil.rmtree(hidden, ignore_errors=True)
        return manifest


def _take_over(
    archive: Path, folder: Path, manifest: Manifest, target: Storage, root: Path, sinks: Literal["own", "same"]
) -> None:
    """Let extracted files be those of a checkpoint at another place, of a project with another root."""
    _move(archive, folder, (*_places(manifest.checkpoint, target), (manifest.root, str(root.absolute()))))
    _owner(folder / CHECKPOINT)
    if sinks == "own":
        # Sinks know a run by this id, and would take its batches for those of the run that was exported.
        (folder / CHECKPOINT / "metadata").write_text(json.dumps({"id": str(uuid4())}), "utf-8")


def _places(was: str, target: Storage) -> Places:
    """The places where a checkpoint was and is; also its storage, where that is not in the folder of a project."""
    now = str(target.absolute())
    if is_local(target) and not has_scheme(was):
        return ((was, now),)
    storages = (was.rpartition("/")[0].rpartition("/")[0], str(target.absolute().parent.parent))
    pairs = ((was, now), storages)
    if has_scheme(was) and not is_local(target):
        return pairs
    if has_scheme(was):
        return tuple((before, f"file:{after}") for before, after in pairs)
    # Longer forms first: a scheme that stayed would be one too many.
    forms = ("file://", "file:", "")
    return tuple((f"{form}{before}", after) for before, after in pairs for form in forms)


def _import_remote(archive: Path, storage: Storage, root: Path, sinks: Literal["own", "same"]) -> Manifest:
    """The same where folders cannot be renamed: the file that names the checkpoint is written last."""
    with (
        open_archive(archive, frozenset({CHECKPOINT, *_STORAGE_PARTS})) as (manifest, reader),
        tempfile.TemporaryDirectory(prefix="watersmeet-import-") as name,
    ):
        folder, query = Path(name), manifest.query
        parts = {part: storage / place.format(query=query) for part, place in _STORAGE_PARTS.items()}
        if checkpoint_at(storage, query).exists():
            raise refuse("CHECKPOINT_IS_THERE", path=checkpoint_at(storage, query), query=query)
        target = prepare_staging(storage / "checkpoints" / query)
        reader.unpack(manifest, folder)
        _take_over(archive, folder, manifest, target, root, sinks)
        for part in ("marks", "columns"):
            # Without a checkpoint they are of one that is gone, or of an import that was killed.
            delete_tree(parts[part])
            if (folder / part).exists():
                cast("RemoteStorage", parts[part]).upload(folder / part)
        for copy in (folder / COPIES).glob("*"):
            there = parts[COPIES] / copy.name
            if not there.exists():
                cast("RemoteStorage", there).upload(copy)
            elif {file.name for file in there.glob("*.parquet")} != {file.name for file in copy.glob("*.parquet")}:
                raise refuse("COPY_IS_THERE", path=there, query=query)
        cast("RemoteStorage", target).upload(folder / CHECKPOINT)
        swap(target, storage / "checkpoints" / query)
        return manifest


def absent_sources(checkpoint: Storage, declared: Sequence[Source]) -> list[str]:
    """The missing inputs of a query, in sentences: folders, files of its next batch, topics.

    ``declared``: the sources of the project, which have the locations of topics.
    """
    by_name = {source.name.lower(): source for source in declared}
    notes: list[str] = []
    for query in _owner(checkpoint).queries:
        for read in (part for source in query.identity["sources"] for part in source["reads"]):
            path = read["options"].get("path")
            source = by_name.get(read["source"])
            if path is not None and not _is_there(path):
                notes.append(f"{path}, which {read['source']} reads, does not exist.")
            elif path is None and source is not None:
                notes += [refusal.message for refusal in source_format(source).check_reachable()]
            elif path is None:
                topics = read["options"].get("subscribe", read["format"])
                notes.append(f"{topics}, which {read['source']} reads, is checked when the query runs.")
    notes += [f"{file}, which its next batch reads, does not exist." for file in _next_files(checkpoint)]
    return list(dict.fromkeys(notes))


def _is_there(path: str) -> bool:
    """Whether a path exists; true for patterns and other machines, which are not checked."""
    local = local_path(path)
    return "://" in local or any(c in local for c in "*?[{") or Path(local).exists()


def _next_files(checkpoint: Storage) -> list[str]:
    """The files of a batch that was planned and not finished, as far as they are gone."""
    offsets = sorted(int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*") if file.name.isdecimal())
    done = {int(file.name) for file in (checkpoint / "commits").glob("[0-9]*") if file.name.isdecimal()}
    if not offsets or offsets[-1] in done:
        return []
    planned, before = SourcePositions.of(checkpoint, offsets[-1:]), {*done} & {*offsets}
    read_before = (
        {entry.path for entry in SourcePositions.of(checkpoint, [max(before)]).files(max(before))}
        if before
        else set[str]()
    )
    return [
        entry.path
        for entry in planned.files(offsets[-1])
        if entry.path not in read_before and not Path(entry.path).exists()
    ]


def make_path_mover(places: Places) -> Move:
    """Paths in a text that begin with one of these places, as they are now; the first that fits counts.

    >>> make_path_mover((("/a/ck", "/b/ck"), ("/a", "/c d")))('"file:///a/ck/1" "/a" "/ab" "/a/x"')
    '"file:///b/ck/1" "/c d" "/ab" "/c d/x"'
    """
    pairs = [pair for was, now in places for pair in ((was, now), (quote(was), quote(now)))]
    new_places = dict(reversed(pairs))
    pattern = re.compile(f'(?:{"|".join(re.escape(was) for was, _ in pairs)})(?=[/"\\\\]|$)', re.MULTILINE)
    return lambda text: pattern.sub(lambda match: new_places[match[0]], text)


def _files(checkpoint: AnyStorage) -> Iterator[tuple[str, AnyStorage]]:
    """The files that belong to a checkpoint, by their names in an archive, without checksums: some files change."""
    storage = checkpoint.parent.parent
    places = {CHECKPOINT: checkpoint}
    if checkpoint.parent.name == "checkpoints":
        places |= {name: storage / place.format(query=query_of(checkpoint)) for name, place in _STORAGE_PARTS.items()}
    for name, place in places.items():
        for file in sorted(place.rglob("*"), key=str) if place.is_dir() else [place] if place.is_file() else []:
            inner = Path(str(file)[len(str(place)) + 1 :])
            is_hidden = any(part.startswith(".") for part in (*inner.parts, file.name))
            if (not is_local(file) or file.is_file()) and not is_hidden and file.suffix != ".crc":
                yield name if file == place else f"{name}/{inner}", file


def _make_parents(path: Path, undo: ExitStack) -> None:
    """Make the folders above a path; ``undo`` removes those that were not there."""
    for parent in reversed([parent for parent in path.parents if not parent.exists()]):
        parent.mkdir(exist_ok=True)
        undo.callback(_remove_empty, parent)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _move(archive: Path, folder: Path, places: Places) -> None:
    """Put the places of now into the files that have those of before."""
    checkpoint, move = folder / CHECKPOINT, make_path_mover(places)
    # Sources write down files as URIs, in which a space has another form.
    move_uris = make_path_mover(tuple((quote(was), quote(now)) for was, now in places))
    try:
        declarations = (folder / "columns", *folder.glob(f"{COPIES}/*/{DECLARATION}"))
        for file in (*checkpoint.glob("state/*/_metadata/v2/*"), *declarations, *checkpoint.glob("sources/*/*")):
            if file.is_file():
                moved = move_uris if "sources" in file.relative_to(folder).parts else move
                file.write_text(moved(file.read_text("utf-8")), "utf-8")
        owner = checkpoint / OWNER
        owner.write_text(move_owner(owner.read_text("utf-8"), move), "utf-8")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise wrong_archive(archive, f"its content is not a checkpoint ({error})") from error


def _check_copies(copies: Path, there: Path, query: str) -> None:
    """Refuse to mix the copy of a table with an existing one: their queries would read both."""
    for copy in (candidate for candidate in copies.glob("*") if (there / candidate.name).is_dir()):
        own, other = ({file.name for file in folder.glob("*.parquet")} for folder in (copy, there / copy.name))
        if own != other:
            raise refuse("COPY_IS_THERE", path=there / copy.name, query=query)


def _put(source: Path, place: Path, undo: ExitStack) -> None:
    """Move a file or a folder to its place; copies of tables that are there already stay. ``undo`` takes it back."""
    if source.is_dir():
        for file in sorted(source.rglob("*")):
            if file.is_file():
                _put(file, place / file.relative_to(source), undo)
    elif source.exists() and not place.exists():
        _make_parents(place, undo)
        source.rename(place)
        undo.callback(place.unlink, missing_ok=True)


def _owner(checkpoint: Storage) -> Owner:
    file = checkpoint / OWNER
    if not file.is_file():
        raise refuse("NO_CHECKPOINT", path=checkpoint, reason=f"there is no {OWNER} in it")
    return Owner.from_text(file.read_text("utf-8"), str(checkpoint), "export it again.")
