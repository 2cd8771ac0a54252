"""Files of checkpoints, sinks and the state store, in any file system.

Why: they may be in any Hadoop file system, for which PySpark has no API. Uses: Hadoop's ``FileSystem`` through the JVM
of a classic session (``_jvm``, ``_jsparkSession``, ``_gateway``), and its ``FileContext``, which renames over an
existing file, as Spark's own checkpoints do. Seen in: 4.0 to 4.3. Spark Connect has no JVM here: then the folder is
looked up on this machine, and if it does not exist, nothing is read or written.

Files of the state store. Why: PySpark cannot write a state or renumber it. Uses: a version of RocksDB is
``state/<operator>/<partition>/<batch + 1>.zip`` if changes of a batch are not stored separately (`WHOLE`), its content
does not include its number, and ``_metadata/v2`` of an operator has its number and the absolute path of its schema.
Where that differs, the new checkpoint is refused before it replaces the old one.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from py4j.protocol import Py4JError, Py4JJavaError

from watersmeet.errors import refuse
from watersmeet.locations import AnyStorage, RemoteStorage, Storage, StorageError, has_scheme, is_local, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs"})
"""Schemes of file systems where a file appears whole when it is closed, and a rename copies and deletes."""
_CONDITIONAL = "fs.option.create.conditional.overwrite"
_UNPROBED = "fs.s3a.create.performance"
_ABORTABLE = "fs.capability.outputstream.abortable"
"""Hadoop's name for the capability of file systems where a file appears whole when it is closed."""
_REPLACED = frozenset({"RemoteFileChangedException", "BlockMissingException"})
_PRECONDITION = "Status Code: 412"
"""The text with which Hadoop says that a file is another one by now than the one that was opened."""
_BUFFER, _COPIES = 1 << 16, 4
"""Bytes that are copied at a time, and files that are copied at once."""
_READS = 10
"""The number of times that a file is read that is replaced meanwhile."""


class Folder(Protocol):
    """A folder. Names may lead into folders below it."""

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        ...

    def make(self) -> None:
        """Make the folder, if it is not there."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file atomically: the old file exists until the new one is complete."""
        ...

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        ...

    def names(self, name: str = "") -> list[str]:
        """The names in it, or in a folder below it, sorted; empty, if that does not exist."""
        ...

    def sizes(self, name: str) -> dict[str, int]:
        """The sizes in bytes of the files in a folder below it, by name; empty, if that does not exist."""
        ...

    def move(self, name: str, to: str) -> None:
        """Give a file or a folder another name, in one step."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        ...


def is_reachable(spark: SparkSession, path: str) -> bool:
    """Whether the files of a path can be moved from here: without a JVM those of this machine can."""
    return hasattr(spark, "_jsparkSession") or "://" not in local_path(path)


def folder_of(spark: SparkSession | None, path: str | Storage) -> Folder:
    """The folder at a path: of this machine, or, where a text names it, wherever that session looks for it."""
    if isinstance(path, Path):
        return LocalFolder(path)
    if isinstance(path, HadoopStorage):
        return path
    if not hasattr(spark, "_jsparkSession"):
        return LocalFolder(Path(local_path(str(path))))
    folder = HadoopStorage(spark, str(path))
    # Hadoop keeps a checksum beside every local file, and refuses one that was mended by hand.
    if folder.files.getScheme() != "file":
        return folder
    return LocalFolder(Path(folder.files.makeQualified(folder.path).toUri().getPath()))


def place_of(folder: Folder) -> Storage:
    """The place of a folder."""
    return folder.path if isinstance(folder, LocalFolder) else cast("HadoopStorage", folder)


def file_exists(spark: Any, address: str) -> bool:
    """Whether there is a file at an address, written as a URI."""
    parts = urlsplit(address)
    if parts.scheme in ("", "file") or not hasattr(spark, "_jvm"):
        return Path(unquote(parts.path)).exists()
    return HadoopStorage(spark, spark._jvm.java.net.URI(address)).exists()


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        file = self.path / name
        return file.read_text("utf-8", "replace") if file.is_file() else None

    def make(self) -> None:
        """Make the folder, if it is not there."""
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a file atomically, if the folder exists."""
        file = self.path / name
        if file.parent.is_dir():
            hidden = file.with_name(f".{file.name}.{uuid4().hex}")
            hidden.write_text(text, "utf-8")
            hidden.replace(file)

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        return any(not file.startswith(".") for file in self.names(name))

    def names(self, name: str = "") -> list[str]:
        """The names in it, or in a folder below it, sorted; empty, if that does not exist."""
        folder = self.path / name
        return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []

    def sizes(self, name: str) -> dict[str, int]:
        """The sizes in bytes of the files in a folder below it, by name; empty, if that does not exist."""
        return {file: (self.path / name / file).stat().st_size for file in self.names(name)}

    def move(self, name: str, to: str) -> None:
        """Give a file or a folder another name, in one step."""
        target = self.path / to
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).rename(target)

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        file = self.path / name
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)


@contextmanager
def _as_os_errors() -> Generator[None]:
    """Raise what goes wrong in Hadoop's file systems as Python does for files of its own."""
    try:
        yield
    except Py4JJavaError as error:
        java: Any = error.java_exception
        text = str(java.getMessage() or java.getClass().getSimpleName())
        if java.getClass().getSimpleName() == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, text) from None
        if java.getClass().getSimpleName() in _REPLACED or _PRECONDITION in text:
            raise OSError(errno.ESTALE, text) from None
        raise StorageError(errno.EIO, text) from None
    except Py4JError as error:
        # The JVM has ended.
        raise StorageError(errno.EIO, f"Spark does not answer: {error}") from None


@dataclass(frozen=True)
class FileStatus:
    """The size of a file and when it was last written, called as in `os.stat_result`."""

    st_size: int
    st_mtime: float
    st_ino: int = 0


class HadoopStorage:
    """A file or a folder of any file system of Hadoop's, with the methods of `pathlib.Path` that storages need.

    A file is written whole: where a file appears only when it is closed under its name, else by a rename that replaces
    the earlier one in one step.
    """

    def __init__(self, spark: Any, path: Any) -> None:
        self.jvm, self.gateway = spark._jvm, spark.sparkContext._gateway
        self.path = self._path(path)
        self.settings = spark._jsparkSession.sessionState().newHadoopConf()
        with _as_os_errors():
            self.files = self.path.getFileSystem(self.settings)
            self.path = self.files.makeQualified(self.path)

    def __str__(self) -> str:
        return str(self.path.toString())

    def __repr__(self) -> str:
        return f"HadoopStorage({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HadoopStorage) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A worker has no JVM, so it gets the name only.
        return str, (str(self),)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self).rstrip("/").rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The suffix of the name, from its last full stop on."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> HadoopStorage:
        """The folder in which it is."""
        return self._at(self.path.getParent())

    def __truediv__(self, key: str) -> HadoopStorage:
        return self._at(self._path(self.path, key))

    def with_name(self, name: str) -> HadoopStorage:
        """Its sibling of that name."""
        return self._at(self._path(self.path.getParent(), name))

    def absolute(self) -> HadoopStorage:
        """Itself: it has a scheme."""
        return self

    def relative_to(self, other: HadoopStorage) -> PurePosixPath:
        """The way to it from a folder above it."""
        return PurePosixPath(str(self)).relative_to(PurePosixPath(str(other)))

    def exists(self) -> bool:
        """Whether it is there."""
        with _as_os_errors():
            return bool(self.files.exists(self.path))

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        status = self.status()
        return status is not None and bool(status.isDirectory())

    def is_file(self) -> bool:
        """Whether it is a file: one request in object stores, where `exists` also looks for a folder."""
        with _as_os_errors():
            return bool(self.files.isFile(self.path))

    def stat(self) -> FileStatus:
        """The size of a file, and when it was written."""
        status = self.status()
        if status is None:
            raise FileNotFoundError(errno.ENOENT, str(self))
        return FileStatus(int(status.getLen()), status.getModificationTime() / 1000)

    def status(self) -> Any:
        """Its status, as Hadoop has it; None: it is not there."""
        try:
            with _as_os_errors():
                return self.files.getFileStatus(self.path)
        except FileNotFoundError:
            return None

    def iterdir(self) -> Iterator[HadoopStorage]:
        """List the entries of a folder, by name."""
        with _as_os_errors():
            entries = [entry.getPath() for entry in self.files.listStatus(self.path)]
        if [str(path.toString()) for path in entries] == [str(self)]:
            raise NotADirectoryError(errno.ENOTDIR, str(self))
        return iter(sorted((self._at(path) for path in entries), key=str))

    def glob(self, pattern: str) -> Iterator[HadoopStorage]:
        """List the paths below a folder that match a pattern, part by part."""
        part, _, rest = pattern.partition("/")
        if set(part) & set("*?["):
            try:
                matches = [entry for entry in self.iterdir() if fnmatchcase(entry.name, part)]
            except (FileNotFoundError, NotADirectoryError):
                return
        else:
            matches = [self / part] if rest or (self / part).exists() else []
        for match in matches:
            if rest:
                yield from match.glob(rest)
            else:
                yield match

    def rglob(self, pattern: str) -> Iterator[HadoopStorage]:
        """The files below a folder, at any depth, whose names match a pattern."""
        with _as_os_errors():
            listed = self.files.listFiles(self.path, True)
            paths: list[Any] = []
            while listed.hasNext():
                paths.append(listed.next().getPath())
        return iter(sorted((self._at(path) for path in paths if fnmatchcase(path.getName(), pattern)), key=str))

    def files_below(self) -> Iterator[tuple[PurePosixPath, HadoopFile]]:
        """The files at a path, which may be a pattern, and below it, each with the way to it; not in any order."""
        with _as_os_errors():
            for root in self.files.globStatus(self.path) or ():
                at = self._at(root.getPath())
                listed = self.files.listFiles(at.path, True)
                while listed.hasNext():
                    status = listed.next()
                    file = self._at(status.getPath())
                    yield file.relative_to(at), HadoopFile(file, status)

    def read_bytes(self) -> bytes:
        """Read the content of a file."""
        for attempt in range(_READS):
            try:
                return self._read_once()
            except OSError as error:
                # It was replaced while it was read: then it is there, whole, and is read again.
                if error.errno != errno.ESTALE or attempt == _READS - 1:
                    raise
                time.sleep(0.05 * attempt)
        raise AssertionError("the last attempt raises")

    def _read_once(self) -> bytes:
        with _as_os_errors():
            stream = self.files.open(self.path)
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The text of a file."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def write_text(self, data: str, encoding: str | None = None) -> int:
        """Write a file, whole or not at all: the one that it replaces is there until the new one is."""
        return self.write_bytes(data.encode(encoding or "utf-8"))

    def write_bytes(self, data: bytes) -> int:
        """Write a file, whole or not at all."""
        with _as_os_errors():
            if self.appears_whole():
                self._fill(self._create(self.path), data)
            else:
                hidden = self._path(self.path.getParent(), f".{self.name}.{uuid4().hex}")
                self._fill(self.files.create(hidden, True), data)
                self._replace(hidden, self.path)
        return len(data)

    def _create(self, path: Any) -> Any:
        """A stream into a file that replaces the one of that name; no request looks for a folder of that name."""
        return self.files.createFile(path).overwrite(True).recursive().opt(_UNPROBED, True).build()

    def copy_files(self, folder: str, files: Mapping[str, Path], check: Callable[[], None]) -> None:
        """Copy files of this machine into a folder below, under the names given, several at once.

        ``check``: called before each of them, where it appears when it is whole.
        """
        place = self / folder if folder else self
        if len(files) == 1:
            for name, source in files.items():
                place._copy_file(name, source, check)
            return
        with ThreadPoolExecutor(_COPIES, "watersmeet-copies") as pool:
            copies = [pool.submit(place._copy_file, name, source, check) for name, source in files.items()]
        for copied in copies:
            copied.result()

    def _copy_file(self, name: str, source: Path, check: Callable[[], None]) -> None:
        check()
        with _as_os_errors():
            target = self._create((self / name).path)
            stream = self.jvm.java.io.FileInputStream(str(source))
            try:
                self.jvm.org.apache.hadoop.io.IOUtils.copyBytes(stream, target, _BUFFER, False)
            except BaseException:
                # Closing it would show what there is of it.
                with suppress(Py4JError):
                    target.abort()
                raise
            finally:
                stream.close()
            target.close()

    def create(self, text: str) -> bool:
        """Write a file unless it is there; whether it was written. Of two that try at once, one succeeds."""
        if self.exists():
            return False
        try:
            with _as_os_errors():
                builder = self.files.createFile(self.path).overwrite(False).recursive()
                # Where a file appears when it is closed, this asks for the comparison to be made then, by the store.
                builder = builder.opt(_CONDITIONAL, True)
                self._fill(builder.build(), text.encode())
        except OSError:
            # Of another, or of this one, with an answer that was lost on the way.
            if not self.exists():
                raise
        return self.read_text() == text

    def lets_two_create(self) -> bool:
        """Whether two programs can both create this file, which is new and is deleted again: each finds none before.

        A class of Hadoop's that does not ask the store for the comparison is not told apart here: it is documented.
        """
        with _as_os_errors():
            if not self.files.hasPathCapability(self.path, _CONDITIONAL):
                return False
            builders = [self.files.createFile(self.path).overwrite(False).recursive() for _ in range(2)]
            streams = [builder.opt(_CONDITIONAL, True).build() for builder in builders]
            try:
                self._fill(streams[0], b"1")
                try:
                    self._fill(streams[1], b"2")
                except Py4JJavaError:
                    return False
                return True
            finally:
                self.files.delete(self.path, False)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Make the folder, and those above it."""
        with _as_os_errors():
            self.files.mkdirs(self.path)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete a file."""
        with _as_os_errors():
            self.files.delete(self.path, False)

    def rename(self, target: HadoopStorage) -> HadoopStorage:
        """Give a file or a folder another name: in one step, or, in object stores, by a copy of each object."""
        with _as_os_errors():
            if self.files.rename(self.path, target.path):
                return target
            # The folder may be missing, which is rare: so nothing looks for it first.
            self.files.mkdirs(target.path.getParent())
            if not self.files.rename(self.path, target.path):
                raise OSError(f"{self} could not be renamed to {target}")
        return target

    def delete_tree(self) -> None:
        """Delete a file, or a folder with all that is in it, if it is there."""
        with _as_os_errors():
            self.files.delete(self.path, True)

    def copy_tree(self, target: HadoopStorage) -> None:
        """Copy a file, or a folder with all that is in it."""
        with _as_os_errors():
            self.files.mkdirs(target.path.getParent())
            util = self.jvm.org.apache.hadoop.fs.FileUtil
            util.copy(self.files, self.path, target.files, target.path, False, True, self.settings)

    def upload(self, source: Path) -> None:
        """Write a file, or a folder with all that is in it, from this machine."""
        with _as_os_errors():
            self.files.mkdirs(self.path.getParent())
            self.files.copyFromLocalFile(False, True, self._path(f"file://{source.absolute()}"), self.path)

    def download(self, target: Path) -> None:
        """Copy a file to this machine."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with _as_os_errors():
            self.files.copyToLocalFile(False, self.path, self._path(f"file://{target.absolute()}"), True)

    def set_time(self, seconds: float) -> None:
        """Set the time at which a file counts as written, where a file system has such times to set."""
        with _as_os_errors():
            if self.files.getScheme() not in OBJECT_STORES:
                self.files.setTimes(self.path, int(seconds * 1000), -1)

    def appears_whole(self) -> bool:
        """Whether a file appears when it is closed, so that it is written under its name."""
        return self.files.getScheme() in OBJECT_STORES or bool(self.files.hasPathCapability(self.path, _ABORTABLE))

    def _fill(self, stream: Any, data: bytes) -> None:
        stream.write(bytearray(data))
        stream.close()

    def _replace(self, file: Any, target: Any) -> None:
        """Give a file the name of another, which it replaces in one step."""
        hadoop = self.jvm.org.apache.hadoop.fs
        overwrite = self.gateway.new_array(hadoop.Options.Rename, 1)
        overwrite[0] = hadoop.Options.Rename.OVERWRITE
        # The calls of `FileSystem` that PySpark reaches do not rename onto an existing file.
        hadoop.FileContext.getFileContext(target.toUri(), self.settings).rename(file, target, overwrite)

    def _at(self, path: Any) -> HadoopStorage:
        """Another place of the same file system."""
        place = copy(self)
        place.path = path
        return place

    def _path(self, *parts: Any) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(*parts)

    def __copy__(self) -> HadoopStorage:
        place = object.__new__(HadoopStorage)
        place.__dict__.update(self.__dict__)
        return place

    # By names below it, as `Folder` has it.

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist."""
        try:
            return (self / name).read_text(errors="replace")
        except FileNotFoundError:
            return None

    def make(self) -> None:
        """Make the folder, if it is not there."""
        self.mkdir()

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all: the one that it replaces is there until the new one is."""
        (self / name).write_text(text)

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        return any(not file.startswith(".") for file in self.names(name))

    def names(self, name: str = "") -> list[str]:
        """The names in it, or in a folder below it, sorted; empty, if that does not exist."""
        try:
            return [entry.name for entry in (self / name if name else self).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, name: str) -> dict[str, int]:
        """The sizes in bytes of the files in a folder below it, by name; empty, if that does not exist."""
        try:
            with _as_os_errors():
                entries = self.files.listStatus((self / name if name else self).path)
                return {str(entry.getPath().getName()): int(entry.getLen()) for entry in entries if entry.isFile()}
        except FileNotFoundError:
            return {}

    def move(self, name: str, to: str) -> None:
        """Give a file or a folder another name, in one step."""
        (self / name).rename(self / to)

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        (self / name).delete_tree()


class HadoopFile(io.RawIOBase):
    """The content of a file, read where it is asked for."""

    def __init__(self, place: HadoopStorage, status: Any) -> None:
        self.place, self.size, self._status = place, int(status.getLen()), status
        self._position, self._stream = 0, None

    def seekable(self) -> bool:
        """Whether it can be read from anywhere: it can."""
        return True

    def readable(self) -> bool:
        """Whether it can be read: it can."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes: as many as fit, unless the file ends."""
        with _as_os_errors():
            if self._stream is None:
                self._stream = self.place.files.openFile(self.place.path).withFileStatus(self._status).build().get()
            self._stream.seek(self._position)
            content = bytes(self._stream.readNBytes(len(buffer)))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def close(self) -> None:
        """Give the connection back."""
        if self._stream is not None:
            with suppress(Py4JError):
                self._stream.close()
        super().close()


def open_file(file: Storage) -> IO[bytes]:
    """The content of a file of a storage, to read."""
    if is_local(file):
        return file.open("rb")
    remote = cast("HadoopStorage", file)
    return cast("IO[bytes]", io.BufferedReader(HadoopFile(remote, remote.status()), _BUFFER))


def has_local_executors(spark: SparkSession) -> bool:
    """Whether a session has no executors but its driver, on this machine.

    ``local-cluster`` has some: its processes stand for machines.
    """
    if not hasattr(spark, "_jvm"):
        return False
    master = str(spark.sparkContext.master)
    return master.startswith("local") and not master.startswith("local-cluster")


def open_storage(spark: Any, location: str) -> Storage:
    """A storage, as that session reaches it."""
    local = local_path(location)
    if not has_scheme(local):
        return Path(local)
    if not hasattr(spark, "_jsparkSession"):
        hint = "run the command without Spark Connect."
        raise refuse("WRONG_PROJECT", path=location, reason="Spark Connect cannot reach this storage", hint=hint)
    return HadoopStorage(spark, location)


def delete_tree(place: Storage) -> None:
    """Delete a file or a folder of a storage, with all that is in it, if it is there."""
    if is_local(place):
        shutil.rmtree(place, ignore_errors=True)
    else:
        cast("RemoteStorage", place).delete_tree()


def set_time(file: Storage, seconds: float) -> None:
    """Set the time at which a file of a storage counts as written."""
    if is_local(file):
        os.utime(file, (seconds, seconds))
    else:
        cast("RemoteStorage", file).set_time(seconds)


def copy_tree(source: Storage, target: Storage) -> None:
    """Copy a file or a folder within a storage."""
    if not is_local(source):
        cast("RemoteStorage", source).copy_tree(target)
    elif source.is_dir():
        shutil.copytree(source, cast("Path", target), ignore=shutil.ignore_patterns(".*"))
    else:
        shutil.copyfile(source, cast("Path", target))


WHOLE = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
"""Settings with which every batch leaves the whole state."""
_SCHEMA = re.compile(r'"[A-Za-z][A-Za-z0-9+.-]*:/[^"]*?(/state/\d+/_stateSchema/[^"]*)"')


class UnknownStateError(Exception):
    """Raised for a state that is not stored as it is known here."""


def renumber(checkpoint: Storage, made: int, batch: int) -> None:
    """Let the state after the batch ``made`` be the one after ``batch``, and forget all others."""
    partitions = [folder for folder in checkpoint.glob("state/*/*") if folder.name.isdecimal()]
    for folder in partitions:
        if not (folder / f"{made + 1}.zip").is_file():
            raise UnknownStateError(f"{folder} has no {made + 1}.zip")
    for folder in partitions:
        for file in list(folder.iterdir()):
            if file.name != f"{made + 1}.zip" and file.is_file():
                file.unlink()
        (folder / f"{made + 1}.zip").rename(folder / f"{batch + 1}.zip")


def take_operator(checkpoint: AnyStorage, made: AnyStorage, operator: int) -> None:
    """Move the state of the only operator of a checkpoint into another, as that of an operator with this number."""
    (made / "state").mkdir(parents=True, exist_ok=True)
    own = made / "state" / str(operator)
    (checkpoint / "state" / "0").rename(own)
    for file in own.glob("_metadata/v2/*"):
        if not _is_checksum(file):
            text = file.read_text("utf-8").replace('"operatorId":0', f'"operatorId":{operator}')
            file.write_text(text.replace("/state/0/_stateSchema/", f"/state/{operator}/_stateSchema/"), "utf-8")


def relocate_state(checkpoint: Storage, place: Storage) -> None:
    """Let a checkpoint be one that lies at another place."""
    at = f"file:{place}" if is_local(place) else str(place)
    for file in checkpoint.glob("state/*/_metadata/v2/*"):
        if _is_checksum(file):
            # Of the file as it was.
            file.unlink()
        else:
            text = file.read_text("utf-8")
            file.write_text(_SCHEMA.sub(lambda match: f'"{at}{match[1]}"', text), "utf-8")


def _is_checksum(file: Storage) -> bool:
    return file.name.startswith(".") or file.suffix == ".crc"
