"""A checkpoint as one archive, and back: the same query goes on elsewhere. Neither needs Spark.

An archive holds the files of a checkpoint and what belongs to it in its storage folder, and first a list of them with
their digests. Spark keeps absolute paths in a checkpoint, and so does the identity of a query: what lay in the folder
of the project, or of the checkpoint, is put where these are now.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from watersmeet.catalog import Source
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.formats import source_format
from watersmeet.formats.kept_columns import FOLDER as COLUMNS
from watersmeet.formats.source import local_path
from watersmeet.spark.rebuild.logs import Read
from watersmeet.spark.run.owner import OWNER, Owner, moved_owner
from watersmeet.spark.state.swap import settle
from watersmeet.version import __version__

ARCHIVE = 1
"""The number of the form of archives."""
MANIFEST, CHECKPOINT = "manifest.json", "checkpoint"
_BESIDE = {"marks": "marks/{query}", "columns": f"{COLUMNS}/{{query}}.json", "static": "static"}
"""What belongs to a checkpoint in its storage folder, by its place in an archive."""
_HIDDEN = ".import-"

Move = Callable[[str], str]
Places = tuple[tuple[str, str], ...]
"""Folders as they were, and where they are now."""


@dataclass(frozen=True)
class Manifest:
    """What is in an archive: of which query, by which versions, where it was, and every file with its digest."""

    archive: int
    watersmeet: str
    spark: str
    format: int
    query: str
    checkpoint: str
    root: str
    files: dict[str, str]


def export_checkpoint(checkpoint: Path, root: Path, archive: Path) -> Manifest:
    """Write a checkpoint of a query that does not run to a new file; ``root`` is the folder that paths begin with."""
    owner = _owner(checkpoint)
    files = dict(_files(checkpoint))
    manifest = Manifest(
        ARCHIVE, __version__, owner.versions["spark"], owner.format, checkpoint.name, str(checkpoint.absolute()),
        str(root.absolute()), {name: _digest(file.read_bytes()) for name, file in files.items()},
    )  # fmt: skip
    hidden = archive.with_name(f".{archive.name}")
    with tarfile.open(hidden, "w:gz") as packed:
        told = json.dumps(asdict(manifest), indent=1).encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(told)
        packed.addfile(entry, io.BytesIO(told))
        for name, file in files.items():
            packed.add(file, name, recursive=False)
    hidden.rename(archive)
    return manifest


def import_checkpoint(archive: Path, storage: Path, root: Path) -> Manifest:
    """Put what an archive holds into a storage folder where that query has no checkpoint; all of it, or nothing."""
    try:
        with tarfile.open(archive) as packed:
            return _imported(archive, packed, storage, root)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _wrong(archive, f"it cannot be read ({str(error) or type(error).__name__})") from error


def _imported(archive: Path, packed: tarfile.TarFile, storage: Path, root: Path) -> Manifest:
    manifest = _manifest(archive, packed)
    target = storage / "checkpoints" / manifest.query
    settle(target)
    beside = {name: storage / place.format(query=manifest.query) for name, place in _BESIDE.items()}
    hidden = target.with_name(f"{_HIDDEN}{manifest.query}")
    if hidden.exists() and not target.exists():
        # Of an import that was killed: what lies beside the checkpoint came with it.
        shutil.rmtree(beside["marks"], ignore_errors=True)
        beside["columns"].unlink(missing_ok=True)
    for there in (target, beside["marks"], beside["columns"]):
        if there.exists():
            raise refuse("CHECKPOINT_IS_THERE", path=there, query=manifest.query)
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir(parents=True)
    try:
        packed.extractall(hidden, filter="data")
        _check(archive, manifest, hidden)
        _move(hidden, ((manifest.checkpoint, str(target.absolute())), (manifest.root, str(root.absolute()))))
        _owner(hidden / CHECKPOINT)
        for name, place in beside.items():
            _put(hidden / name, place)
        # Last, and in one step: until then the query has no checkpoint, and what lies beside it means nothing.
        (hidden / CHECKPOINT).rename(target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return manifest


def missing_sources(checkpoint: Path, declared: Sequence[Source]) -> list[str]:
    """What a query reads that is not there, in sentences: folders, files of its next batch, topics.

    ``declared``: the sources as the project has them, which know where topics are.
    """
    named = {source.name.lower(): source for source in declared}
    found: list[str] = []
    for told in _owner(checkpoint).queries:
        for read in (part for source in told.identity["sources"] for part in source["reads"]):
            path = read["options"].get("path")
            source = named.get(read["source"])
            if path is not None and not _is_there(path):
                found.append(f"{path}, which {read['source']} reads, is not there.")
            elif path is None and source is not None:
                found += [refusal.message for refusal in source_format(source).check_reached()]
            elif path is None:
                topics = read["options"].get("subscribe", read["format"])
                found.append(f"whether {topics}, which {read['source']} reads, is there is seen when it runs.")
    found += [f"{file}, which its next batch reads, is not there." for file in _next_files(checkpoint)]
    return list(dict.fromkeys(found))


def _is_there(path: str) -> bool:
    """Whether there is something at a path; of patterns and other machines nobody knows."""
    local = local_path(path)
    return "://" in local or any(c in local for c in "*?[{") or Path(local).exists()


def _next_files(checkpoint: Path) -> list[str]:
    """The files of a batch that was planned and not finished, as far as they are gone."""
    offsets = sorted(int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*") if file.name.isdecimal())
    done = {int(file.name) for file in (checkpoint / "commits").glob("[0-9]*") if file.name.isdecimal()}
    if not offsets or offsets[-1] in done:
        return []
    planned, before = Read.of(checkpoint, offsets[-1:]), {*done} & {*offsets}
    known = {one.path for one in Read.of(checkpoint, [max(before)]).files(max(before))} if before else set[str]()
    return [one.path for one in planned.files(offsets[-1]) if one.path not in known and not Path(one.path).exists()]


def moving(places: Places) -> Move:
    """Paths in a text that begin with one of these places, as they are now; the first that fits counts.

    >>> moving((("/a/ck", "/b/ck"), ("/a", "/c d")))('"file:///a/ck/1" "/a" "/ab" "/a/x"')
    '"file:///b/ck/1" "/c d" "/ab" "/c d/x"'
    """
    pairs = [pair for was, now in places for pair in ((was, now), (quote(was), quote(now)))]
    known = dict(reversed(pairs))
    pattern = re.compile(f'(?:{"|".join(re.escape(was) for was, _ in pairs)})(?=[/"\\\\]|$)', re.MULTILINE)
    return lambda text: pattern.sub(lambda found: known[found[0]], text)


def _files(checkpoint: Path) -> Iterator[tuple[str, Path]]:
    """The files that belong to a checkpoint, by their names in an archive, without checksums: some files change."""
    storage = checkpoint.parent.parent
    places = {CHECKPOINT: checkpoint}
    if checkpoint.parent.name == "checkpoints":
        places |= {name: storage / place.format(query=checkpoint.name) for name, place in _BESIDE.items()}
    for name, place in places.items():
        for file in sorted(place.rglob("*")) if place.is_dir() else [place] if place.is_file() else []:
            if file.is_file() and not file.name.startswith(".") and file.suffix != ".crc":
                inner = file.relative_to(place)
                yield name if file == place else f"{name}/{inner}", file


def _manifest(archive: Path, packed: tarfile.TarFile) -> Manifest:
    first = packed.next()
    held = packed.extractfile(first) if first is not None and first.name == MANIFEST else None
    if held is None:
        raise _wrong(archive, "it is no archive of a checkpoint")
    try:
        told: dict[str, Any] = json.loads(held.read())
        if isinstance(told.get("archive"), int) and told["archive"] > ARCHIVE:
            raise refuse(
                "CHECKPOINT_OF_A_NEWER_VERSION", checkpoint=f"in {archive}", version=told.get("watersmeet", "unknown"),
                format=f"{told['archive']} of archives", known=ARCHIVE,
            )  # fmt: skip
        return Manifest(**told)
    except (ValueError, TypeError):
        raise _wrong(archive, "its list of files cannot be read") from None


def _check(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Refuse an archive of which a file is missing, changed, or more than there was."""
    found = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    found.pop(MANIFEST, None)
    for name in sorted({*found, *manifest.files}):
        if name not in found:
            raise _wrong(archive, f"{name} is missing")
        if _digest(found[name].read_bytes()) != manifest.files.get(name):
            raise _wrong(archive, f"{name} is not what was exported")


def _move(folder: Path, places: Places) -> None:
    """Put the places of now into the files that have those of before."""
    checkpoint, move = folder / CHECKPOINT, moving(places)
    # Sources write down files as URIs, in which a space has another form.
    move_uris = moving(tuple((quote(was), quote(now)) for was, now in places))
    for file in (*checkpoint.glob("state/*/_metadata/v2/*"), folder / "columns", *checkpoint.glob("sources/*/*")):
        if file.is_file():
            moved = move_uris if "sources" in file.relative_to(folder).parts else move
            file.write_text(moved(file.read_text("utf-8")), "utf-8")
    owner = checkpoint / OWNER
    owner.write_text(moved_owner(owner.read_text("utf-8"), move), "utf-8")


def _put(what: Path, place: Path) -> None:
    """Move a file or a folder to its place; copies of tables that are there already stay."""
    if what.is_dir():
        for file in sorted(what.rglob("*")):
            if file.is_file():
                _put(file, place / file.relative_to(what))
    elif what.exists() and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        what.rename(place)


def _owner(checkpoint: Path) -> Owner:
    file = checkpoint / OWNER
    if not file.is_file():
        raise refuse("NO_CHECKPOINT", path=checkpoint, reason=f"there is no {OWNER} in it")
    return Owner.from_text(file.read_text("utf-8"), str(checkpoint), "export it once more.")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _wrong(archive: Path, reason: str) -> WatersmeetError:
    return refuse("WRONG_ARCHIVE", archive=archive, reason=reason)
