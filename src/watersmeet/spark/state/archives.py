"""Archives of checkpoints: one gzipped tar file, whose first file lists all others with their sizes and digests.

An archive may come from a stranger, so nothing in it is believed. `unpack` writes only regular files that the list
names, one at a time, each under a path that stays in its folder, and compares size and digest as it copies. Links,
devices, sparse files, folders and files that are listed nowhere or come twice are refused. ``tarfile`` only reads the
headers: its own extraction follows links that an archive brings along (CVE-2025-4517).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from watersmeet.catalog import is_folder_name
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import Storage, query_of
from watersmeet.version import __version__

ARCHIVE = 2
"""The number of the form of archives. Form 1 had no sizes; it can still be read."""
MANIFEST = "manifest.json"
MANIFEST_BYTES = 64 * 2**20
"""The longest list of files that is read or written: some 400,000 files."""
_HEADER_BYTES = 256 * 2**10
"""The most bytes that the headers of one file may have. A header with long names is read into memory whole."""
_PIECE = 2**20
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True)
class ListedFile:
    """A file of an archive as its list has it; ``size`` is None in archives of form 1."""

    digest: str
    size: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The manifest of an archive: the query, the versions, the original location, and every file with its digest."""

    archive: int
    watersmeet: str
    spark: str
    format: int
    query: str
    checkpoint: str
    root: str
    files: Mapping[str, ListedFile]

    def to_json(self) -> bytes:
        """The list as an archive has it."""
        files = {name: [file.digest, file.size] for name, file in self.files.items()}
        return json.dumps({**self.__dict__, "files": files}, indent=1).encode()

    @staticmethod
    def from_json(data: bytes, archive: Path, places: frozenset[str]) -> Manifest:
        """The manifest of an archive, or a refusal; ``places``: the folders that files may be in."""
        try:
            record: dict[str, Any] = json.loads(data)
            version = record["archive"]
            if version > ARCHIVE:
                raise refuse(
                    "CHECKPOINT_OF_A_NEWER_VERSION", checkpoint=f"in {archive}", version=record.get("watersmeet", "?"),
                    format=f"{version} of archives", known=ARCHIVE,
                )  # fmt: skip
            manifest = _manifest(record)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise wrong_archive(archive, "its list of files cannot be read") from None
        if not _is_plain(manifest.query) or manifest.query.startswith("."):
            raise wrong_archive(archive, f"`{manifest.query}` cannot be the name of a query")
        for name in manifest.files:
            if not _stays_inside(name, places):
                raise wrong_archive(archive, f"`{name}` cannot be the name of a file of a checkpoint")
        return manifest


@contextmanager
def open_archive(archive: Path, places: frozenset[str]) -> Generator[tuple[Manifest, ArchiveReader]]:
    """The list of an archive, and what reads its files; whatever cannot be read is refused."""
    try:
        with gzip.open(archive) as unzipped:
            reader = ArchiveReader(archive, _MeteredStream(unzipped))
            yield Manifest.from_json(reader.manifest(), archive, places), reader
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise wrong_archive(archive, f"it cannot be read ({str(error) or type(error).__name__})") from error


class ArchiveReader:
    """Reads the files of an archive in their order; no more of it is in memory than a piece of a file."""

    def __init__(self, archive: Path, stream: _MeteredStream) -> None:
        self._archive = archive
        self._stream = stream
        stream.allowed = _HEADER_BYTES
        self._packed = tarfile.TarFile(fileobj=cast("io.BytesIO", stream))

    def manifest(self) -> bytes:
        """The list of files, which comes first."""
        entry = self._next()
        if entry is None or entry.name != MANIFEST or not _is_regular(entry):
            raise wrong_archive(self._archive, "it is not an archive of a checkpoint")
        if entry.size > MANIFEST_BYTES:
            raise wrong_archive(self._archive, f"its list of files has {entry.size:,} bytes")
        return self._content(entry).read()

    def unpack(self, manifest: Manifest, folder: Path) -> None:
        """Write all files of the list below a folder that is empty; refuse an archive that is not as its list says."""
        self._check_space(sum(max(file.size or 0, 0) for file in manifest.files.values()), folder)
        missing = dict(manifest.files)
        while (entry := self._next()) is not None:
            listed = missing.pop(entry.name, None)
            if listed is None:
                reason = "appears twice" if entry.name in manifest.files else "is not in its list of files"
                raise wrong_archive(self._archive, f"{entry.name} {reason}")
            if not _is_regular(entry):
                raise wrong_archive(self._archive, f"{entry.name} is not a plain file")
            if listed.size is not None and listed.size != entry.size:
                raise wrong_archive(self._archive, f"{entry.name} differs from the exported file")
            if listed.size is None:
                self._check_space(entry.size, folder)
            if self._copy(entry, folder / entry.name) != listed.digest:
                raise wrong_archive(self._archive, f"{entry.name} differs from the exported file")
        if missing:
            raise wrong_archive(self._archive, f"{min(missing)} is missing")

    def _next(self) -> tarfile.TarInfo | None:
        """The header of the next file; the end where only zeros follow."""
        self._stream.allowed = _HEADER_BYTES
        try:
            return self._packed.next()
        except (RecursionError, ValueError) as error:
            raise tarfile.ReadError(f"a header cannot be read: {error}") from None

    def _content(self, entry: tarfile.TarInfo) -> tarfile.ExFileObject:
        # A file ends on a multiple of 512 bytes, where the next header begins.
        self._stream.allowed = entry.size
        content = self._packed.extractfile(entry)
        assert content is not None
        return cast("tarfile.ExFileObject", content)

    def _copy(self, entry: tarfile.TarInfo, to: Path) -> str:
        """Write a file that is not there yet, and give the digest of its bytes."""
        digest = hashlib.sha256()
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("xb") as file, self._content(entry) as content:
            while piece := content.read(_PIECE):
                digest.update(piece)
                file.write(piece)
            if file.tell() != entry.size:
                raise tarfile.ReadError("it ends too early")
        return digest.hexdigest()

    def _check_space(self, needed: int, folder: Path) -> None:
        """Refuse what the disk cannot hold before anything of it is written."""
        free = shutil.disk_usage(folder).free
        if needed > free:
            reason = f"its files have {needed:,} bytes, but the disk has only {free:,} left"
            raise wrong_archive(self._archive, reason)


class _MeteredStream:
    """A stream that is read forward, and no further than ``allowed`` bytes: a header may claim any length."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self._stream = stream
        self.allowed = 0

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int) -> None:
        while (ahead := offset - self.tell()) > 0:
            if not self.read(min(ahead, _PIECE)):
                return
        if ahead < 0:
            raise tarfile.ReadError("it would have to be read twice")

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= self.allowed:
            raise tarfile.ReadError("a header is too long for a checkpoint")
        self.allowed -= size
        return self._stream.read(size)


def write_archive(manifest: Manifest, files: Mapping[str, Path], archive: Path) -> None:
    """Write an archive, whole or not at all."""
    listing = manifest.to_json()
    if len(listing) > MANIFEST_BYTES:
        raise refuse("ARCHIVE_TOO_LARGE", archive=archive, files=f"{len(files):,}")
    hidden = archive.with_name(f".{archive.name}")
    try:
        # Dereferenced: an archive has contents only, as an import accepts no links.
        with tarfile.open(hidden, "w:gz", dereference=True) as packed:
            entry = tarfile.TarInfo(MANIFEST)
            entry.size = len(listing)
            packed.addfile(entry, io.BytesIO(listing))
            for name, file in files.items():
                packed.add(file, name, recursive=False)
        hidden.rename(archive)
    finally:
        hidden.unlink(missing_ok=True)


def list_files(files: Mapping[str, Path]) -> dict[str, ListedFile]:
    """Files with their digests and sizes."""
    return {name: _list_file(file) for name, file in files.items()}


def wrong_archive(archive: Path, reason: str) -> WatersmeetError:
    """The refusal of an archive."""
    return refuse("WRONG_ARCHIVE", archive=archive, reason=_printable(reason))


def new_manifest(spark: str, format: int, checkpoint: Storage, root: Path, files: Mapping[str, ListedFile]) -> Manifest:
    """The list of a new archive."""
    at, below = str(checkpoint.absolute()), str(root.absolute())
    return Manifest(ARCHIVE, __version__, spark, format, query_of(checkpoint), at, below, files)


def _list_file(file: Path) -> ListedFile:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return ListedFile(digest, opened.tell())


def _manifest(record: dict[str, Any]) -> Manifest:
    """A list from JSON; raises a Python error if it is malformed."""
    files: dict[str, ListedFile] = {}
    for name, listed in record["files"].items():
        digest, size = (listed, None) if record["archive"] == 1 else listed
        if type(digest) is not str or (type(size) is not int and record["archive"] > 1):
            raise TypeError
        files[name] = ListedFile(digest, size)
    manifest = replace(Manifest(**record), files=files)
    texts = (manifest.watersmeet, manifest.spark, manifest.query, manifest.checkpoint, manifest.root)
    numbers = (manifest.archive, manifest.format)
    # A place that is empty or relative would be found everywhere in a text.
    rooted = all(Path(place).is_absolute() or "://" in place for place in (manifest.checkpoint, manifest.root))
    if not (all(type(text) is str for text in texts) and all(type(n) is int for n in numbers) and rooted):
        raise TypeError
    return manifest


def _stays_inside(name: str, places: frozenset[str]) -> bool:
    """Return whether the path is relative, normalised, and below one of these places.

    >>> [_stays_inside(name, frozenset({"a"})) for name in ("a/b", "a", "b", "/a", "a/../b", "a//b", "a/.", "../a")]
    [True, True, False, False, False, False, False, False]
    """
    first, *rest = name.split("/")
    return first in places and all(_is_plain(part) for part in rest)


def _is_plain(part: str) -> bool:
    """Whether a part of a path is the name of a file on every system."""
    return is_folder_name(part) and "\\" not in part and not any("\ud800" <= c <= "\udfff" for c in part)


def _is_regular(entry: tarfile.TarInfo) -> bool:
    # Python calls sparse files regular, too: these have more bytes than the archive holds.
    return entry.type in _REGULAR and entry.sparse is None


def _printable(text: str) -> str:
    r"""A text without what a terminal would take for commands.

    >>> _printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
