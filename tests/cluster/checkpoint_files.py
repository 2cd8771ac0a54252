"""Exercise the file manager of checkpoints on a remote storage, with several drivers that write at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JJavaError

from watersmeet.spark.private.checkpoint_files import MANAGER, MANAGER_CLASS, remote_checkpoint_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.locations import RemoteStorage

RIVALS, ROUNDS = 6, 4
LARGE = 6 << 20
"""So many bytes go to S3 in several parts, with the settings of these tests."""
REFUSED = "refused"
"""A folder into which the S3 server lets nothing be written."""


@dataclass(frozen=True)
class Manager:
    """A file manager, as a driver has one for a folder of a checkpoint."""

    spark: SparkSession
    storage: RemoteStorage
    java: Any

    @classmethod
    def make(cls, spark: SparkSession, storage: RemoteStorage, folder: str) -> Manager:
        """The manager that Spark makes for a folder with the settings of a session."""
        context, jvm = cast("Any", spark.sparkContext), cast("Any", spark)._jvm
        settings = cast("Any", spark)._jsparkSession.sessionState().newHadoopConf()
        settings.set(MANAGER, MANAGER_CLASS)
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        [constructor] = jvm.java.lang.Class.forName(MANAGER_CLASS, True, loader).getConstructors()
        arguments = context._gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0], arguments[1] = jvm.org.apache.hadoop.fs.Path(str(storage / folder)), settings
        manager = cls(spark, storage, constructor.newInstance(arguments))
        manager.java.mkdirs(manager.path(folder))
        return manager

    def path(self, name: str) -> Any:
        """The path of a file of the checkpoint."""
        return cast("Any", self.spark)._jvm.org.apache.hadoop.fs.Path(str(self.storage / name))

    def write(self, name: str, content: bytes, *, replaces: bool = False) -> str:
        """Write a file; the name of the error, empty if there was none."""
        stream: Any = None
        try:
            stream = self.java.createAtomic(self.path(name), replaces)
            stream.write(bytearray(content))
            stream.close()
        except Py4JJavaError as error:
            if stream is not None:
                assert fails_again(stream), "a file that was not written looks written when it is closed again"
            return str(cast("Any", error.java_exception).getClass().getSimpleName())
        return ""

    def read(self, name: str) -> bytes:
        """The content of a file, from the memory of the manager if it is there."""
        return bytes(self.java.open(self.path(name)).readAllBytes())

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        return bool(self.java.exists(self.path(name)))


def fails_again(stream: Any) -> bool:
    """Whether closing a stream fails."""
    try:
        stream.close()
    except Py4JJavaError:
        return True
    return False


def check_checkpoint_files(spark: SparkSession, storage: RemoteStorage) -> None:
    """Files are created once and replaced at once; a write that fails is an error, and leaves no file."""
    settings = remote_checkpoint_settings(spark)
    assert settings == {MANAGER: MANAGER_CLASS}, settings
    for log in ("offsets", "sources/0"):
        # What a driver has in memory must not let another one win.
        drivers = [Manager.make(spark, storage, log) for _ in range(RIVALS)]
        for batch in range(ROUNDS):
            check_rivals(drivers, f"{log}/{batch}", 1)
    check_rivals([Manager.make(spark, storage, "offsets") for _ in range(2)], f"offsets/{ROUNDS}", LARGE)
    check_replaced(Manager.make(spark, storage, "state/0/0"))
    check_given_up(Manager.make(spark, storage, "state/0/1"))
    check_deleted(Manager.make(spark, storage, "sources/1"))
    if str(storage).startswith("s3a:"):
        check_refused(Manager.make(spark, storage, "state/0/2"))


def check_rivals(drivers: list[Manager], name: str, size: int) -> None:
    """Of drivers that create a file at once, one succeeds, and all of them find its content."""
    outcomes: dict[int, str] = {}
    barrier = threading.Barrier(len(drivers))

    def race(number: int) -> None:
        barrier.wait()
        outcomes[number] = drivers[number].write(name, b"%d" % number * size)

    threads = [threading.Thread(target=race, args=[number]) for number in range(len(drivers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, error in outcomes.items() if not error]
    assert len(winners) == 1, (name, outcomes)
    assert {error for error in outcomes.values() if error} == {"FileAlreadyExistsException"}, outcomes
    assert (drivers[0].storage / name).read_bytes() == b"%d" % winners[0] * size
    for driver in drivers:
        assert driver.exists(name)
        assert driver.read(name) == b"%d" % winners[0] * size


def check_replaced(manager: Manager) -> None:
    """The later content is there, for the manager and for others."""
    for content in (b"first", b"second, and longer", b"3"):
        for name in ("state/0/0/1.changelog", "state/0/0/1.zip"):
            assert not manager.write(name, content, replaces=True)
            assert manager.read(name) == (manager.storage / name).read_bytes() == content
    listed = sorted(status.getPath().getName() for status in manager.java.list(manager.path("state/0/0")))
    assert listed == ["1.changelog", "1.zip"], listed


def check_given_up(manager: Manager) -> None:
    """A file is not there before it is closed, nor after it is given up."""
    name = "state/0/1/2.changelog"
    stream = manager.java.createAtomic(manager.path(name), True)
    stream.write(bytearray(LARGE))
    assert not manager.exists(name)
    stream.cancel()
    stream.close()
    assert not manager.exists(name)


def check_deleted(manager: Manager) -> None:
    """A deleted file is gone, and deleting it again is no error."""
    for name in ("sources/1/7", "state/0/0/1.zip"):
        assert not manager.write(name, b"row", replaces=True)
        for _ in range(2):
            manager.java.delete(manager.path(name))
            assert not manager.exists(name)
            assert not (manager.storage / name).exists()


def check_refused(manager: Manager) -> None:
    """A write that the server refuses is an error."""
    name = f"{REFUSED}/state/0/0/4.changelog"
    for replaces in (False, True):
        assert manager.write(name, b"lost", replaces=replaces) == "AccessDeniedException"
        assert not manager.exists(name)
