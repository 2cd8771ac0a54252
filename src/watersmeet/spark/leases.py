"""Leases: locks in a storage that several machines share, each with a holder, a heartbeat and a fencing number.

A lease is a folder, ``leases/NAME``, with a file for each time it was taken, ``0000000007``, whose name is the fencing
number. A file is created only if it is not there, so of two drivers that try at once one gets the number. The highest
number is the lease. Its holder writes its file again with every heartbeat, and no other driver does. Another takes
the lease by creating the next number, once the holder has released it, has ended on this machine, or has not been heard
of for `TTL` seconds by its own clock and was then seen silent for `WATCHED` seconds by the clock of the other driver:
so clocks that disagree delay a takeover, and do not cause one. The holder looks for the next number with each
heartbeat, and sinks do before they commit a batch.

A holder that could not write a heartbeat for `TTL` seconds stops by itself.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import RemoteStorage, Storage

FOLDER, TESTED = "leases", "tested"
"""The folder of leases, and the file in it that says that its store creates a file once."""
_held: set[str] = set()
"""The leases that this program holds, by the ids of their holders."""
BEAT, TTL, WATCHED = 10.0, 60.0, 25.0
"""Seconds: between two heartbeats; after which a silent holder may be dead; and for which it is watched then."""
ALONE = "storage"
"""The lease of commands that need the whole storage; those of queries begin with ``query.``."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, with the time it took it and its last heartbeat, in seconds since 1970.

    ``machine``: an id shared by processes that can see each other; ``start``: the start of the process in clock ticks,
    since process ids are reused.
    """

    host: str
    process: int
    user: str
    machine: str
    start: int
    since: float
    beat: float
    id: str = field(default_factory=lambda: uuid4().hex)
    released: bool = False

    @staticmethod
    def here() -> Holder:
        """The process that asks."""
        now = round(time.time(), 3)
        return Holder(socket.gethostname(), os.getpid(), _user(), _machine(), _start_ticks(os.getpid()), now, now)

    @staticmethod
    def from_text(text: str) -> Holder | None:
        """The holder from a file; None: it cannot be read."""
        with suppress(ValueError, TypeError):
            return Holder(**json.loads(text))
        return None

    def to_text(self) -> str:
        """The holder as stored."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def is_dead(self) -> bool:
        """Whether it was a process of this machine that has ended."""
        if not self.machine or self.machine != _machine():
            return False
        if self.process == os.getpid() and self.start == _start_ticks(self.process):
            # A program that replaces itself, as a run does that starts again, keeps number and start.
            return self.id not in _held
        return not Path(f"/proc/{self.process}").exists() or _start_ticks(self.process) != self.start

    def __str__(self) -> str:
        return f"process {self.process} of {self.user} on {self.host}, since {_moment(self.since)}"


def holder_in_words(text: str | None) -> str:
    """Describe the holder of a lock by the text in it, to follow the name of a storage; empty if it holds no text.

    >>> holder_in_words("")
    ''
    """
    holder = Holder.from_text(text or "")
    return "" if holder is None else f" ({holder})"


class Lease:
    """A lease that this process holds until it is released or lost."""

    def __init__(self, folder: RemoteStorage, number: int, holder: Holder) -> None:
        self.folder, self.number, self.holder = folder, number, holder
        self.lost = ""
        self._renewed = time.monotonic()
        _held.add(holder.id)

    @property
    def name(self) -> str:
        """The name of the leased query."""
        return self.folder.name

    def renew(self) -> None:
        """Write a heartbeat, unless another driver has taken the lease."""
        try:
            if self._find_loss():
                return
            self.holder = replace(self.holder, beat=round(time.time(), 3))
            _file(self.folder, self.number).write_text(self.holder.to_text())
            self._renewed = time.monotonic()
        except OSError as error:
            self.expire(str(error))

    def check(self) -> None:
        """Refuse to go on if the lease is lost; asks the storage."""
        try:
            self._find_loss()
        except OSError as error:
            self.expire(str(error))
        self.check_here()

    def check_here(self) -> None:
        """Refuse to go on if it is known that the lease is lost; does not ask the storage."""
        self.expire("no heartbeat was written")
        if self.lost:
            raise refuse("LEASE_LOST", lease=self.name, reason=self.lost)

    def release(self) -> None:
        """Let others have it. The file stays: the next number must be higher."""
        _held.discard(self.holder.id)
        with suppress(OSError):
            if not self.lost and not self._find_loss():
                _file(self.folder, self.number).write_text(replace(self.holder, released=True).to_text())

    def _find_loss(self) -> bool:
        if not self.lost:
            following = _file(self.folder, self.number + 1)
            if following.is_file():
                holder = Holder.from_text(following.read_text())
                self.lost = f"{holder or 'another process'} has taken it"
        return bool(self.lost)

    def expire(self, reason: str) -> None:
        """Count as lost if it was not renewed for too long; ``reason``: why."""
        silent = time.monotonic() - self._renewed
        if silent > TTL and not self.lost:
            self.lost = f"it was not renewed for {silent:.0f} seconds: {reason}"


def take_lease(storage: Storage, name: str) -> Lease | Holder:
    """Take the lease of that name; returns its holder instead if another run has it."""
    folder = cast("RemoteStorage", storage / FOLDER / name)
    numbers = _numbers(folder)
    last = max(numbers, default=0)
    if last:
        text = _read(_file(folder, last))
        holder = Holder.from_text(text)
        if holder is not None and not (holder.released or holder.is_dead):
            if time.time() - holder.beat <= TTL:
                return holder
            time.sleep(WATCHED)
            again = _read(_file(folder, last))
            if again != text:
                return Holder.from_text(again) or holder
    mine = Holder.here()
    taken = _file(folder, last + 1)
    if not taken.create(mine.to_text()):
        return Holder.from_text(_read(taken)) or replace(mine, host="another host")
    for number in numbers:
        with suppress(OSError):
            _file(folder, number).unlink(missing_ok=True)
    return Lease(folder, last + 1, mine)


def live_holder(storage: Storage, name: str) -> Holder | None:
    """The current holder of a lease according to its file; None: it is free."""
    folder = cast("RemoteStorage", storage / FOLDER / name)
    last = max(_numbers(folder), default=0)
    holder = Holder.from_text(_read(_file(folder, last))) if last else None
    is_live = holder is not None and not (holder.released or holder.is_dead) and time.time() - holder.beat <= TTL
    return holder if is_live else None


class Leases:
    """The leases of a run, and the thread that renews them. Without any, nothing is ever refused."""

    def __init__(self, leases: Collection[Lease] = ()) -> None:
        self._leases = tuple(leases)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="watersmeet-leases", daemon=True)
        if self._leases:
            self._thread.start()

    def __reduce__(self) -> tuple[type[Leases], tuple[()]]:
        # Workers neither hold leases nor commit batches.
        return Leases, ()

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __bool__(self) -> bool:
        return bool(self._leases)

    def check(self, query: str | None = None) -> None:
        """Refuse to commit a batch of a query once its lease is lost: asks the storage, a request for each lease."""
        for lease in self._leases:
            if query is None or lease.name == f"query.{query}":
                lease.check()

    def check_here(self) -> None:
        """Refuse to go on once it is known that a lease is lost."""
        if self._leases and not self._thread.is_alive() and not self._stopped.is_set():
            raise refuse("LEASE_LOST", lease=self._leases[0].name, reason="the thread that renews it has ended")
        for lease in self._leases:
            lease.check_here()

    def release(self) -> None:
        """Let others have them."""
        self._stopped.set()
        if self._leases:
            self._thread.join(BEAT)
        for lease in self._leases:
            lease.release()

    def _renew(self) -> None:
        while not self._stopped.wait(BEAT):
            for lease in self._leases:
                try:
                    lease.renew()
                except Exception as error:  # whatever it is, it must not end the thread
                    lease.expire(f"{type(error).__name__}: {error}")


NO_LEASES = Leases()


@contextmanager
def hold_leases(storage: Storage, use: Literal["shared", "alone"], queries: Collection[str] = ()) -> Generator[Leases]:
    """Hold the leases of queries of a storage, or of all of it, while this is entered; refused if others hold them.

    Each side first takes its own and then looks for the other's, so that never both go on. Refused, too, at the first
    start on a store where two could take the same lease.
    """
    _check_store(storage)
    taken: list[Lease] = []
    try:
        for name in [*(f"query.{query}" for query in queries), *([ALONE] if use == "alone" else [])]:
            lease = take_lease(storage, name)
            if isinstance(lease, Holder):
                raise _in_use(storage, name, lease)
            taken.append(lease)
        own = {lease.holder.id for lease in taken}
        others = [ALONE] if use == "shared" else [ALONE, *_names(storage)]
        for name in others:
            holder = live_holder(storage, name)
            if holder is not None and holder.id not in own:
                raise refuse("CHECKPOINT_IN_USE", storage=storage, holder=f" ({holder})")
    except BaseException:
        for lease in taken:
            lease.release()
        raise
    with Leases(taken) as leases:
        yield leases


def _check_store(storage: Storage) -> None:
    """Refuse a store that lets two create the same file; one that does not is noted, and not tested again."""
    folder = cast("RemoteStorage", storage / FOLDER)
    tested = folder / TESTED
    if tested.is_file():
        return
    if (folder / f".test-{uuid4().hex}").lets_two_create():
        raise refuse("STORAGE_WITHOUT_CONDITIONS", storage=storage)
    tested.write_text(f"{_moment(time.time())}\n")


def _in_use(storage: Storage, name: str, holder: Holder) -> WatersmeetError:
    if name == ALONE:
        return refuse("CHECKPOINT_IN_USE", storage=storage, holder=f" ({holder})")
    return refuse("QUERY_IN_USE", query=name.removeprefix("query."), storage=storage, holder=f" ({holder})")


def _names(storage: Storage) -> list[str]:
    try:
        return [folder.name for folder in (storage / FOLDER).iterdir() if folder.name.startswith("query.")]
    except FileNotFoundError:
        return []


def _numbers(folder: Storage) -> list[int]:
    try:
        return sorted(int(file.name) for file in folder.iterdir() if file.name.isdecimal())
    except FileNotFoundError:
        return []


def _file(folder: RemoteStorage, number: int) -> RemoteStorage:
    return folder / f"{number:010}"


def _read(file: Storage) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


@cache
def _machine() -> str:
    """An id shared by the processes that can see each other: the boot of the kernel, and the PID namespace."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _start_ticks(process: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        text: Any = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(text[19])
    return 0
