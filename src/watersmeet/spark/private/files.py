"""Files of checkpoints, sinks and the state store, in any file system.

Why: they may be in any Hadoop file system, for which PySpark has no API. Uses: Hadoop's ``FileSystem`` through the JVM
of a classic session (``_jvm``, ``_jsparkSession``, ``_gateway``), and its ``FileContext``, which renames over an
existing file, as Spark's own checkpoints do. Seen in: 4.0 to 4.3. Spark Connect has no JVM here: then the folder is
looked up on this machine, and if it does not exist, nothing is read or written.

Local checkpoints without a process per file. Why: Spark's file manager for local files starts commands (``chmod``,
``readlink``), some three hundred in a batch of a join. Its other file manager does not, and replaces a file atomically
on a local disk, but not on every file system, nor with Hive's class for local files: so it is used only for checkpoints
on this machine, in sessions that name Hadoop's class. Checksum files are turned off: a file and its checksum are not
replaced in one step. Uses: the names of the class, Hadoop's ``LocalFileSystem`` through the JVM. Missing: Spark's
default manager, which is slower.

Files of the state store. Why: PySpark cannot write a state or renumber it. Uses: a version of RocksDB is
``state/<operator>/<partition>/<batch + 1>.zip`` if changes of a batch are not stored separately (`WHOLE`), its content
does not include its number, and ``_metadata/v2`` of an operator has its number and the absolute path of its schema.
Where that differs, the new checkpoint is refused before it replaces the old one.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from watersmeet.locations import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "oss", "cosn", "obs"})
"""Schemes of file systems where a file appears whole when it is closed, and a rename copies and deletes."""
_ABORTABLE = "fs.capability.outputstream.abortable"
"""What Hadoop calls file systems where a file appears whole when it is closed."""


class Folder(Protocol):
    """A folder. Names may lead into folders below it."""

    def read(self, name: str) -> str | None:
        """The text of a file; None: there is none."""
        ...

    def make(self) -> None:
        """Make the folder, if it is not there."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all: the one that it replaces is there until the new one is."""
        ...

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        ...

    def names(self, name: str = "") -> list[str]:
        """The names in it, or in a folder below it, sorted; empty, if that does not exist."""
        ...

    def size(self, name: str) -> int:
        """How many bytes a file has."""
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


def folder_of(spark: SparkSession, path: str | Path) -> Folder:
    """The folder at a path: of this machine, or, where a text names it, wherever that session looks for it."""
    if isinstance(path, Path):
        return LocalFolder(path)
    if not hasattr(spark, "_jsparkSession"):
        return LocalFolder(Path(local_path(path)))
    folder = HadoopFolder(spark, path)
    # Hadoop keeps a checksum beside every local file, and refuses one that was mended by hand.
    if folder.files.getScheme() != "file":
        return folder
    return LocalFolder(Path(folder.files.makeQualified(folder.path).toUri().getPath()))


def file_exists(spark: Any, address: str) -> bool:
    """Whether there is a file at an address, written as a URI."""
    parts = urlsplit(address)
    if parts.scheme in ("", "file") or not hasattr(spark, "_jvm"):
        return Path(unquote(parts.path)).exists()
    file = HadoopFolder(spark, spark._jvm.java.net.URI(address))
    return bool(file.files.exists(file.path))


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> str | None:
        """The text of a file; None: there is none."""
        file = self.path / name
        return file.read_text("utf-8", "replace") if file.is_file() else None

    def make(self) -> None:
        """Make the folder, if it is not there."""
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all, if the folder is there."""
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

    def size(self, name: str) -> int:
        """How many bytes a file has."""
        return (self.path / name).stat().st_size

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


class HadoopFolder:
    """A folder of any file system of Hadoop's."""

    def __init__(self, spark: Any, path: Any) -> None:
        self.jvm, self.gateway = spark._jvm, spark.sparkContext._gateway
        self.path = self._path(path)
        self.settings = spark._jsparkSession.sessionState().newHadoopConf()
        self.files = self.path.getFileSystem(self.settings)

    def read(self, name: str) -> str | None:
        """The text of a file; None: there is none."""
        file = self._path(self.path, name)
        if not self.files.exists(file):
            return None
        stream = self.files.open(file)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8", "replace")
        finally:
            stream.close()

    def make(self) -> None:
        """Make the folder, if it is not there."""
        self.files.mkdirs(self.path)

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all: the one that it replaces is there until the new one is."""
        file = self._path(self.path, name)
        if self.files.getScheme() in OBJECT_STORES or self.files.hasPathCapability(file, _ABORTABLE):
            self._fill(file, text)
            return
        hidden = self._path(file.getParent(), f".{file.getName()}.{uuid4().hex}")
        self._fill(hidden, text)
        self._replace(hidden, file)

    def _fill(self, file: Any, text: str) -> None:
        stream = self.files.create(file, True)
        stream.write(bytearray(text.encode()))
        stream.close()

    def _replace(self, file: Any, target: Any) -> None:
        """Give a file the name of another, which it replaces in one step."""
        hadoop = self.jvm.org.apache.hadoop.fs
        overwrite = self.gateway.new_array(hadoop.Options.Rename, 1)
        overwrite[0] = hadoop.Options.Rename.OVERWRITE
        # The calls of `FileSystem` that PySpark reaches do not rename onto a file that is there.
        hadoop.FileContext.getFileContext(target.toUri(), self.settings).rename(file, target, overwrite)

    def has_files(self, name: str) -> bool:
        """Whether there is a folder of that name with something in it."""
        return any(not file.startswith(".") for file in self.names(name))

    def names(self, name: str = "") -> list[str]:
        """The names in it, or in a folder below it, sorted; empty, if that does not exist."""
        folder = self._path(self.path, name) if name else self.path
        if not self.files.exists(folder):
            return []
        return sorted(entry.getPath().getName() for entry in self.files.listStatus(folder))

    def size(self, name: str) -> int:
        """How many bytes a file has."""
        return int(self.files.getFileStatus(self._path(self.path, name)).getLen())

    def move(self, name: str, to: str) -> None:
        """Give a file or a folder another name, in one step."""
        file, target = self._path(self.path, name), self._path(self.path, to)
        self.files.mkdirs(target.getParent())
        if not self.files.rename(file, target):
            raise OSError(f"{file} could not be renamed to {target}")

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""
        self.files.delete(self._path(self.path, name), True)

    def _path(self, *parts: Any) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(*parts)


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
CHECKSUMS = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
IMPLEMENTATION = "spark.hadoop.fs.file.impl"
FILES = {IMPLEMENTATION: "org.apache.hadoop.fs.LocalFileSystem"}
"""The settings that a session must have."""
_PACKAGE = "org.apache.spark.sql.execution.streaming"
_CLASSES = tuple(f"{_PACKAGE}{part}.FileSystemBasedCheckpointFileManager" for part in (".checkpointing", ""))


def keep_checkpoints_here(spark: SparkSession) -> None:
    """Let the queries of a session of ours write their checkpoints to this machine quickly, unless it says how."""
    for name, value in local_checkpoint_settings(spark).items():
        spark.conf.set(name, value)


def local_checkpoint_settings(spark: SparkSession) -> dict[str, str]:
    """The settings with which a session writes local checkpoints quickly; empty where it must not.

    Also turns off checksums of Hadoop's class, in this JVM, permanently.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or spark.conf.get(MANAGER, ""):
        return {}
    context = cast("Any", spark.sparkContext)
    if not context.master.startswith("local"):
        return {}
    with suppress(Exception):
        manager = next(name for name in _CLASSES if _is_there(jvm, name))
        local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
        if local.getClass().getName() == FILES[IMPLEMENTATION]:
            local.setWriteChecksum(False)
            return {MANAGER: manager, CHECKSUMS: "false"}
    return {}


def _is_there(jvm: Any, name: str) -> bool:
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception:  # of Java
        return False
    return True


WHOLE = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}
"""Settings with which every batch leaves the whole state."""
_SCHEMA = re.compile(r'"file:(?://)?/[^"]*?(/state/\d+/_stateSchema/[^"]*)"')


class UnknownStateError(Exception):
    """Raised for a state that is not stored as it is known here."""


def renumber(checkpoint: Path, made: int, batch: int) -> None:
    """Let the state after the batch ``made`` be the one after ``batch``, and forget all others."""
    partitions = [folder for folder in checkpoint.glob("state/*/*") if folder.name.isdecimal()]
    for folder in partitions:
        if not (folder / f"{made + 1}.zip").is_file():
            raise UnknownStateError(f"{folder} has no {made + 1}.zip")
    for folder in partitions:
        for file in folder.iterdir():
            if file.is_file() and file.name != f"{made + 1}.zip":
                file.unlink()
        (folder / f"{made + 1}.zip").rename(folder / f"{batch + 1}.zip")


def take_operator(checkpoint: Path, made: Path, operator: int) -> None:
    """Move the state of the only operator of a checkpoint into another, as that of an operator with this number."""
    (made / "state").mkdir(parents=True, exist_ok=True)
    own = made / "state" / str(operator)
    (checkpoint / "state" / "0").rename(own)
    for file in own.glob("_metadata/v2/*"):
        if not _is_checksum(file):
            text = file.read_text("utf-8").replace('"operatorId":0', f'"operatorId":{operator}')
            file.write_text(text.replace("/state/0/_stateSchema/", f"/state/{operator}/_stateSchema/"), "utf-8")


def relocate_state(checkpoint: Path, place: Path) -> None:
    """Let a checkpoint be one that lies at another place."""
    for file in checkpoint.glob("state/*/_metadata/v2/*"):
        if _is_checksum(file):
            # Of the file as it was.
            file.unlink()
        else:
            text = file.read_text("utf-8")
            file.write_text(_SCHEMA.sub(lambda match: f'"file:{place}{match[1]}"', text), "utf-8")


def _is_checksum(file: Path) -> bool:
    return file.name.startswith(".") or file.suffix == ".crc"
