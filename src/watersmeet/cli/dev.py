"""``dev``: the servers that a project needs, on this machine's loopback, for development. Every command, with its help.

Which servers and which variables is read from the declarations: an option whose value is ``${env:NAME}`` gets its
address by that name. While they run, commands on the project see the variables (`add_dev_variables`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from watersmeet.cli.console import INTERRUPTED, Interrupted, interruptible, report_errors, show_wait
from watersmeet.cli.options import ProjectPath
from watersmeet.errors import WatersmeetError, refuse

if TYPE_CHECKING:
    from watersmeet.catalog import Sink, Source
    from watersmeet.cli.servers import Broker
    from watersmeet.logical.nodes import Script

app = typer.Typer(
    help="Start the servers that a project needs, for development: a Kafka broker, a schema registry, a Postgres.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Without a command: the same as `watersmeet dev up`.",
)

FOLDER, STATE, LOCK = ".watersmeet-dev", "servers.json", "lock"
"""The folder in a project with the data of its servers, the file that says where they answer, and a lock on it."""
PARTITIONS = 3
"""Of a topic for which no sink says how many."""
STOP_SECONDS = 30.0
LOCK_ATTEMPTS = 5
Kind = Literal["kafka", "registry", "postgres"]
TITLES: Mapping[Kind, str] = {"kafka": "Kafka broker", "registry": "schema registry", "postgres": "Postgres"}

CaseOption = Annotated[
    list[Path] | None,
    typer.Option("--feed", help="Write the rows of this case to the sources. You can repeat it.", metavar="CASE"),
]


@app.callback()
def dev(context: typer.Context) -> None:
    """Start the servers that a project needs, for development: a Kafka broker, a schema registry, a Postgres.

    \b
    Example:
      watersmeet dev
      watersmeet dev up shop --feed shop/cases/joined.yaml
      watersmeet dev stop shop
    """
    if context.invoked_subcommand is None:
        up(context)


@app.command()
def up(
    context: typer.Context,
    path: ProjectPath = Path(),
    feed: CaseOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when they answer. They run until `watersmeet dev stop`.")
    ] = False,
) -> None:
    """Start the servers, and create the topics of the declarations. They run until Ctrl-C or `watersmeet dev stop`.

    A server is started where an option refers to a variable, such as `kafka.bootstrap.servers '${env:KAFKA}'`, or names
    a port of localhost. Commands on the project see these variables while the servers run. The servers answer this
    machine only, and keep their data in .watersmeet-dev.

    \b
    Example:
      watersmeet dev up shop
      watersmeet dev up shop --detach --feed shop/cases/joined.yaml
    """
    with report_errors(context):
        if detach:
            _start_detached(path)
            _feed_cases(path, feed or [])
        else:
            _run_servers(path, feed or [])


@app.command()
def stop(
    context: typer.Context,
    path: ProjectPath = Path(),
    remove: Annotated[bool, typer.Option("--remove", help="Also delete the data of the servers.")] = False,
) -> None:
    """Stop the servers of a project.

    \b
    Example:
      watersmeet dev stop shop
      watersmeet dev stop shop --remove
    """
    with report_errors(context):
        folder = _folder(path)
        _stop_servers(folder)
        if remove:
            _remove_data(folder)


@app.command()
def env(context: typer.Context, path: ProjectPath = Path()) -> None:
    """Print the variables of running servers, for other programs.

    \b
    Example:
      eval "$(watersmeet dev env shop)"
    """
    with report_errors(context):
        for name, value in _require_state(_folder(path)).variables.items():
            typer.echo(f"export {name}={shlex.quote(value)}")


@app.command()
def feed(
    context: typer.Context,
    case: Annotated[Path, typer.Argument(metavar="CASE", help="A case file.")],
    path: ProjectPath = Path(),
) -> None:
    """Write the input rows of a case to the sources of a project: to topics, or to JSON or Parquet files.

    \b
    Example:
      watersmeet dev feed shop/cases/joined.yaml shop
    """
    with report_errors(context):
        _feed_cases(path, [case])


@dataclass(frozen=True)
class ServerState:
    """Running servers: the process that has started them, variables with addresses, and ports by kind of server."""

    pid: int
    variables: Mapping[str, str]
    ports: Mapping[str, int]


@dataclass
class Requirements:
    """The servers, variables and topics that declarations need.

    ``variables``: by name, the server and the part of its address that they stand for. ``ports``: of servers whose
    address is written out. ``topics``: with their partitions. ``notes``: what is not started, and why.
    """

    variables: dict[str, tuple[Kind, str]] = field(default_factory=dict[str, tuple[Kind, str]])
    ports: dict[Kind, int] = field(default_factory=dict[Kind, int])
    topics: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])

    @property
    def kinds(self) -> list[Kind]:
        """The servers to start, in a fixed order."""
        needed = {kind for kind, _ in self.variables.values()} | set(self.ports)
        return [kind for kind in TITLES if kind in needed]


_WHOLE = re.compile(r"\$\{env:(\w+)\}")
_LOOPBACK = re.compile(r"(?:https?://)?(?:localhost|127\.0\.0\.1):(\d+)/?")
_DATABASE = ("url", "dsn", "host", "port", "dbname", "user", "password")


def requirements_of(script: Script) -> Requirements:
    """The servers, variables and topics that the sources and sinks of a script need."""
    needed = Requirements()
    for declared in (*script.sources, *script.sinks):
        format_ = (declared.format or "").lower()
        options = declared.lowercase_options
        if format_ == "kafka":
            _add_address(needed, "kafka", declared, options.get("kafka.bootstrap.servers"))
            _add_address(needed, "registry", declared, options.get("schema.registry.url"))
            _add_topics(needed, options)
        elif format_ in ("postgres", "postgresql", "jdbc"):
            for name in _DATABASE:
                if match := _WHOLE.fullmatch(options.get(name, "")):
                    part = "jdbc" if format_ == "jdbc" and name == "url" else name
                    needed.variables[match[1]] = ("postgres", part)
    for name in [name for name in needed.variables if name in os.environ]:
        kind, _ = needed.variables.pop(name)
        needed.notes.append(f"{name} is set already: no {TITLES[kind]} is started for it.")
    return needed


def _add_address(needed: Requirements, kind: Kind, declared: Source | Sink, value: str | None) -> None:
    if value is None:
        return
    if match := _WHOLE.fullmatch(value):
        needed.variables[match[1]] = (kind, "url")
    elif match := _LOOPBACK.fullmatch(value):
        needed.ports[kind] = int(match[1])
    else:
        needed.notes.append(f"{declared.name} names {value}: no {TITLES[kind]} is started for it.")


def _add_topics(needed: Requirements, options: Mapping[str, str]) -> None:
    from watersmeet.locations import find_missing, resolve_references

    names = [options.get("topic", ""), *options.get("subscribe", "").split(",")]
    for name in names:
        if name.strip() and not any(find_missing(name)):
            topic = resolve_references({"topic": name.strip()})["topic"]
            count = int(options["partitions"]) if options.get("partitions", "").isdecimal() else None
            needed.topics[topic] = count or needed.topics.get(topic, PARTITIONS)


def _title(kind: Kind) -> str:
    """The name of a server at the beginning of a sentence."""
    return f"{TITLES[kind][0].upper()}{TITLES[kind][1:]}"


def _folder(path: Path) -> Path:
    from watersmeet.project import open_project

    return open_project(path).root.absolute() / FOLDER


def _run_servers(path: Path, cases: list[Path]) -> None:
    """Start what a project needs, and wait for Ctrl-C or the signal of `dev stop`."""
    from watersmeet.cli.script import read_project

    folder = _folder(path)
    if read_state(folder) is not None:
        raise _refuse_running(folder)
    _, script = read_project(path)
    needed = requirements_of(script)
    for note in needed.notes:
        typer.echo(note)
    if not needed.kinds:
        typer.echo("This project needs no server: none of its options refers to one by a variable or on localhost.")
        _feed_cases(path, cases)
        return
    with ExitStack() as stack, interruptible():
        stack.enter_context(_lock(folder))
        try:
            _start_and_wait(path, folder, needed, cases, stack)
        except Interrupted as interruption:
            typer.echo("Stopping.")
            stack.close()
            if interruption.number == signal.SIGTERM:
                return
            raise typer.Exit(INTERRUPTED + interruption.number) from None


def _start_and_wait(path: Path, folder: Path, needed: Requirements, cases: list[Path], stack: ExitStack) -> None:
    servers, project = _start_servers(folder, needed, stack), _project_argument(folder)
    variables = {name: servers[kind].parts[part] for name, (kind, part) in needed.variables.items()}
    if "kafka" in servers:
        _make_topics(servers["kafka"].parts["url"], needed.topics)
    _write_state(folder, ServerState(os.getpid(), variables, {kind: server.port for kind, server in servers.items()}))
    stack.callback((folder / STATE).unlink, missing_ok=True)
    for kind, server in servers.items():
        typer.echo(f"{_title(kind)}: {server.shown}")
    if needed.topics and "kafka" in servers:
        typer.echo(f"Topics: {', '.join(sorted(needed.topics))}.")
    if variables:
        names = ", ".join(sorted(variables))
        typer.echo(f"{names}: set for commands on this project; `watersmeet dev env{project}` prints them.")
    _feed_cases(path, cases)
    typer.echo(f"Stop with Ctrl-C, or with `watersmeet dev stop{project}`.")
    sys.stdout.flush()
    while True:
        time.sleep(0.5)
        for kind, server in servers.items():
            if server.has_ended():
                hint = f"see the files in {folder / kind}, and start again: `watersmeet dev`."
                raise refuse("SERVER_NOT_STARTED", server=_title(kind), reason="it has ended", hint=hint)


def _project_argument(folder: Path) -> str:
    """The project of a folder as a command takes it, with a space before it; empty: it is where commands are typed."""
    project, here = folder.parent, Path.cwd()
    if project == here:
        return ""
    return f" {project.relative_to(here) if project.is_relative_to(here) else project}"


@dataclass(frozen=True)
class DevServer:
    """A running server: its port, the parts of its address by name, what is shown of it, and whether it has ended."""

    port: int
    parts: Mapping[str, str]
    shown: str
    has_ended: Any


def _start_servers(folder: Path, needed: Requirements, stack: ExitStack) -> dict[Kind, DevServer]:
    from watersmeet.cli.registry import load_registry, serve_registry
    from watersmeet.cli.servers import broker, postgres

    if "kafka" in needed.kinds and find_spec("confluent_kafka") is None:
        raise refuse("KAFKA_NOT_INSTALLED", package="confluent-kafka")
    servers: dict[Kind, DevServer] = {}
    for kind in needed.kinds:
        port = _choose_port(folder, needed, kind)
        own = folder / kind
        own.mkdir(exist_ok=True)
        with show_wait(f"Starting the {TITLES[kind]}; the first start may download programs"):
            if kind == "kafka":
                started: Broker = stack.enter_context(broker(own, port))
                address = started.address
                servers[kind] = DevServer(started.port, {"url": address}, address, lambda s=started: s.has_ended)
            elif kind == "registry":
                address = stack.enter_context(serve_registry(load_registry(own / "schemas.json"), port or 0))
                number = int(address.rpartition(":")[2])
                servers[kind] = DevServer(number, {"url": address}, address, lambda: False)
            else:
                database = stack.enter_context(postgres(own, port))
                parts = {
                    "url": database.address, "dsn": database.address, "jdbc": database.jdbc_address,
                    "host": "127.0.0.1", "port": str(database.port), "dbname": "postgres", "user": "postgres",
                    "password": database.password,
                }  # fmt: skip
                shown = f"127.0.0.1:{database.port}"
                servers[kind] = DevServer(database.port, parts, shown, lambda d=database: d.process.has_ended)
    return servers


def _choose_port(folder: Path, needed: Requirements, kind: Kind) -> int | None:
    """The port that is written out, or that of the last time if it is free; None: any."""
    from watersmeet.cli.servers import is_free

    if kind in needed.ports:
        port = needed.ports[kind]
        if not is_free(port):
            hint = "stop the other server; or write a variable instead of the address, such as `${env:KAFKA}`."
            raise refuse("SERVER_NOT_STARTED", server=_title(kind), reason=f"port {port} is taken", hint=hint)
        return port
    with suppress(OSError, ValueError, KeyError):
        port = int(json.loads((folder / "ports.json").read_text("utf-8"))[kind])
        return port if is_free(port) else None
    return None


def _make_topics(address: str, topics: Mapping[str, int]) -> None:
    from watersmeet.spark.connectors.kafka import make_topic

    for name, partitions in topics.items():
        make_topic({"kafka.bootstrap.servers": address}, name, partitions, 1)


@contextmanager
def _lock(folder: Path) -> Generator[None]:
    """Hold the servers of a project; refuses if they run already."""
    if not folder.exists():
        folder.mkdir(mode=0o700)
        # Never part of a commit.
        (folder / ".gitignore").write_text("*\n")
    with (folder / LOCK).open("a") as file:
        # Others hold it for a moment, to see whether servers run.
        for attempt in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if attempt == LOCK_ATTEMPTS - 1:
                    raise _refuse_running(folder) from None
                time.sleep(0.05)
        yield


def _refuse_running(folder: Path, hint: str = "use them, or stop them: `watersmeet dev stop {}`.") -> WatersmeetError:
    return refuse("SERVERS_RUNNING", project=folder.parent, hint=hint.format(folder.parent))


def _write_state(folder: Path, state: ServerState) -> None:
    (folder / "ports.json").write_text(json.dumps(state.ports), "utf-8")
    staging = folder / f"{STATE}.new"
    # It has a password.
    with os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump({"pid": state.pid, "variables": state.variables, "ports": state.ports}, file)
    staging.replace(folder / STATE)


def read_state(folder: Path) -> ServerState | None:
    """The state of the servers that run in a folder; None if they do not."""
    with suppress(OSError, ValueError):
        if not _is_unlocked(folder):
            return ServerState(**json.loads((folder / STATE).read_text("utf-8")))
    return None


def _require_state(folder: Path) -> ServerState:
    state = read_state(folder)
    if state is None:
        raise refuse("NO_SERVERS", project=folder.parent)
    return state


def add_dev_variables(root: Path) -> None:
    """Set the variables of servers that `watersmeet dev` runs for a project, unless the environment has them."""
    folder = root / FOLDER
    if not folder.is_dir() or (state := read_state(folder)) is None:
        return
    added = {name: value for name, value in state.variables.items() if name not in os.environ}
    if added:
        os.environ.update(added)
        typer.echo(f"Using the servers of `watersmeet dev` for {', '.join(sorted(added))}.", err=True)


def _start_detached(path: Path) -> None:
    """Start the servers in a process of its own, and wait until they answer or it gives up."""
    folder = _folder(path)
    log = folder.with_name(f"{FOLDER}.log")
    command = [sys.executable, "-m", "watersmeet.cli", "dev", "up", str(path.absolute())]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    with show_wait("Starting the servers; the first start may download programs"):
        while process.poll() is None and ((state := read_state(folder)) is None or state.pid != process.pid):
            time.sleep(0.1)
        # What is printed comes after the state is written.
        while process.poll() is None and "Stop with Ctrl-C" not in log.read_text("utf-8"):
            time.sleep(0.05)
    text = log.read_text("utf-8")
    log.unlink()
    if process.returncode:
        typer.echo(text.rstrip(), err=True)
        raise typer.Exit(process.returncode)
    typer.echo(text.replace("Stop with Ctrl-C, or with", "Stop with").rstrip())


def _stop_servers(folder: Path) -> None:
    state = read_state(folder)
    if state is None:
        typer.echo("No servers run for this project.")
        return
    os.kill(state.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS
    while time.monotonic() < until:
        if read_state(folder) is None and _is_unlocked(folder):
            typer.echo("Stopped the servers.")
            return
        time.sleep(0.05)
    raise _refuse_running(folder, f"they do not end when asked; end their process: `kill -9 {state.pid}`.")


def _is_unlocked(folder: Path) -> bool:
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def _remove_data(folder: Path) -> None:
    if not folder.is_dir():
        return
    link = folder / "postgres" / "of-another-user"
    if link.is_symlink():
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder)
    typer.echo(f"Deleted {folder}. Checkpoints of earlier runs refer to deleted records: delete the storage, too.")


def _feed_cases(path: Path, cases: list[Path]) -> None:
    from watersmeet.cli.feed import feed_case

    for case in cases:
        for line in feed_case(path, case):
            typer.echo(line)
