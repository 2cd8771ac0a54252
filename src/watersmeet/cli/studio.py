"""``page``: the queries of a project and their history in a browser; and the page of a run."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from watersmeet.cli.console import Interrupted, interruptible
from watersmeet.cli.script import OpenedScript, open_script
from watersmeet.duration import format_count
from watersmeet.errors import WatersmeetError, did_you_mean, refuse
from watersmeet.local.cells import FAILURES, NeedsSparkError
from watersmeet.locations import Storage
from watersmeet.metrics.progress import Progress
from watersmeet.metrics.prometheus import bind_failure, is_loopback
from watersmeet.project import SPEC_NAME
from watersmeet.tools.studio.board.model import blank_other_queries
from watersmeet.tools.studio.drawing import draw_timeline
from watersmeet.tools.testing import Case, read_case
from watersmeet.tools.testing.case import script_of
from watersmeet.tools.testing.execute import trace_case
from watersmeet.tools.trace import Lineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from watersmeet.cli.run import Cluster
    from watersmeet.tools.studio.board.server import BoardSession


Take = Callable[[Progress], None]
"""A function that receives the progress of a batch."""
TOKEN = "WATERSMEET_PAGE_TOKEN"
"""The variable with the token of a page that is served elsewhere than on this machine; without it one is made up."""


@dataclass(frozen=True)
class PageHooks:
    """The observer that passes each batch, and the session that answers questions about rows, to the page of a run."""

    take: Take = lambda progress: None
    ready: Callable[[SparkSession], None] = lambda spark: None


@dataclass(frozen=True)
class Page:
    """The address of a page; without a port, none. ``shows_rows``: also some of the rows of queries that run."""

    port: int | None = None
    host: str = "127.0.0.1"
    shows_rows: bool = True

    @property
    def has_rows(self) -> bool:
        """Whether there is a page, and rows are shown on it."""
        return self.port is not None and self.shows_rows

    @contextmanager
    def serve(
        self, opened: OpenedScript, storage: Storage, metrics: Callable[[], str] | None = None, typed: str = "."
    ) -> Generator[PageHooks]:
        """Serve it while this is entered, and say where; gives what a run tells it.

        ``metrics``: the text for Prometheus, if queries run here; ``typed``: the project, as it was typed.
        """
        if self.port is None:
            yield PageHooks()
            return
        check_installed()
        from watersmeet.tools.studio.page.description import describe_queries
        from watersmeet.tools.studio.page.model import SWITCHED_OFF, RowSamples
        from watersmeet.tools.studio.page.server import Watch, serve_page

        queries = describe_queries(opened.script, opened.queries, storage)
        rows = None if metrics is None else RowSamples() if self.shows_rows else RowSamples(SWITCHED_OFF)
        watch = Watch(opened.project.name, queries, metrics, rows)
        with serve_page(watch, self.port, self.host, os.environ.get(TOKEN)) as address:
            typer.echo(f"The page is at {address}", err=True)

            def ready(spark: SparkSession) -> None:
                from watersmeet.spark.connectors.reading import resolve_options
                from watersmeet.tools.trace.live import LiveDiagnosis

                script = resolve_options(opened.script)
                watch.ask = LiveDiagnosis(spark, script, opened.queries, storage, typed).why

            yield PageHooks(watch.take, ready if self.shows_rows else lambda spark: None)


def check_webhook(url: str | None) -> str | None:
    """The URL that alerts are posted to; another text is a wrong option."""
    if url is None or url == "":
        return None
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise typer.BadParameter("--webhook takes an http:// or https:// URL")
    return url


@contextmanager
def alert_problems(
    url: str | None, opened: OpenedScript, storage: Storage, notify: Callable[[str], None]
) -> Generator[None]:
    """Post the problems of a run to a URL while this is entered; without a URL, do nothing."""
    if url is None:
        yield
        return
    from watersmeet.tools.studio.page.description import describe_queries
    from watersmeet.tools.studio.page.problems import send_alerts

    with send_alerts(url, opened.project.name, describe_queries(opened.script, opened.queries, storage), notify):
        yield


def check_installed() -> None:
    """Refuse where what serves pages is not installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise refuse("PAGE_NOT_INSTALLED", package=package)


def show_page(path: Path, page: Page, cluster: Cluster) -> None:
    """Serve the page of a project until Ctrl-C, whether its queries run or not."""
    opened = open_script(path)
    with interruptible():
        storage = cluster.storage(opened.project, opened.script)
    with interruptible(), page.serve(opened, storage):
        Event().wait()


PORT = 8484
"""The default port."""


def play_board(path: Path | None, save: Path | None, host: str, port: int | None, *, opens_browser: bool) -> None:
    """Serve the board with a case, a script or a folder on it, or with the first story."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise refuse("BOARD_NOT_INSTALLED", package=package)
    from watersmeet.tools.studio.board.server import BoardSession as Session
    from watersmeet.tools.studio.board.server import build_catalog, open_board
    from watersmeet.tools.studio.web import address_of

    if save is not None and not save.absolute().parent.is_dir():
        raise typer.BadParameter(f"--save {save}: there is no folder {save.parent}")
    catalog = build_catalog(path if path is not None and path.is_dir() else Path())
    first = open_board(_first(path, [entry.path for entry in catalog]))
    server_socket = _open_socket(host, port)
    session = Session(first, catalog, save, "" if is_loopback(host) else secrets.token_urlsafe(16))
    address = address_of(host, server_socket, session.token)
    typer.echo(f"The drawing board is at {address}")
    typer.echo(f"It saves to {save}." if save is not None else "It saves as a download; --save FILE names a file.")
    typer.echo("Ctrl-C ends it.")
    if opens_browser:
        webbrowser.open(address)
    _serve(session, server_socket)


def _first(path: Path | None, catalog_paths: list[Path]) -> Path:
    """The content of the board at its start: of a folder that is not a project, the first entry in it."""
    if path is None or (path.is_dir() and not (path / SPEC_NAME).is_file()):
        return next(
            (entry_path for entry_path in catalog_paths if path is not None and entry_path.is_relative_to(path)),
            catalog_paths[0],
        )
    return path


def _serve(session: BoardSession, server_socket: socket.socket) -> None:
    from watersmeet.tools.studio.board.server import application
    from watersmeet.tools.studio.web import make_server

    server = make_server(application(session))
    # It closes in order and may then pass the interrupt on, or not: that depends on when it came.
    with suppress(KeyboardInterrupt):
        server.run(sockets=[server_socket])
    if server.should_exit:
        raise Interrupted


def _open_socket(host: str, port: int | None) -> socket.socket:
    """A socket that listens there; without a port that was asked for, at the usual one or at any that is free."""
    from watersmeet.tools.studio.web import open_socket

    for number in (PORT, 0) if port is None else (port,):
        try:
            return open_socket(host, number)
        except (OSError, OverflowError) as error:
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not (is_taken and port is None and number):
                raise _refusal(error, host, number) from None
    raise AssertionError("a free port is always found, or it is refused")


def _refusal(error: OSError | OverflowError, host: str, port: int) -> WatersmeetError:
    reason, is_port = bind_failure(error)
    hint = (
        "leave `--port` out: a free port is used."
        if is_port
        else "give an address of this machine: `--host 127.0.0.1`."
    )
    return refuse("BOARD_ADDRESS", address=f"{host}:{port}", reason=reason, hint=hint)


def draw_case(path: Path, output: Path | None, query: str | None, batch: int | None) -> None:
    """Draw a case, or its beginning, to a file or to the standard output."""
    case = _select_query(read_case(path), query)
    if batch is not None and batch >= len(case.batches):
        raise typer.BadParameter(f"--batch {batch}: the last one of {path} is {len(case.batches) - 1}")
    whole = _trace_case(case)
    shown = whole if batch is None else _trace_case(replace(case, batches=case.batches[: batch + 1], end=None))
    picture = draw_timeline(shown, case.name, whole=whole)
    if output is None:
        typer.echo(picture, nl=False)
        return
    try:
        output.write_text(picture, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{output} cannot be written: {error.strerror}") from None
    rows = len(shown.arrivals)
    typer.echo(f"{output}: {format_count(rows, 'row')} drawn.")


def _select_query(case: Case, name: str | None) -> Case:
    """The case with the query that is asked for; as it is where none is."""
    if name is None:
        return case
    script = script_of(case)
    matches = [query for query in script.queries if (query.into or "").lower() == name.lower()]
    if len(matches) != 1:
        names = [query.into for query in script.queries if query.into is not None]
        reason = f"its script has {len(matches)} queries into `{name}`, not one: {did_you_mean(name, names)}"
        raise refuse("WRONG_CASE", path=case.path, reason=reason.rstrip("."))
    return replace(case, sql=blank_other_queries(replace(script, queries=tuple(matches))), query=None)


def _trace_case(case: Case) -> Lineage:
    try:
        return trace_case(case)
    except NeedsSparkError as needed:
        reason = f"only Spark can evaluate {needed}, and pictures are drawn without Spark"
        raise refuse("WRONG_CASE", path=case.path, reason=reason) from None
    except FAILURES as error:
        raise refuse("WRONG_CASE", path=case.path, reason=f"its query stops: {error}") from None
