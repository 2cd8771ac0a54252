"""``page``: what the queries of a project do and did, in a browser; and the page beside a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import typer

from watersmeet.cli.interruption import interruptible
from watersmeet.cli.script import OpenedScript, open_script
from watersmeet.errors import refuse
from watersmeet.observe.progress import Progress
from watersmeet.project import storage_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Take = Callable[[Progress], None]
"""What takes in a batch."""
TOKEN = "WATERSMEET_PAGE_TOKEN"
"""The variable with the token of a page that is served elsewhere than on this machine; without it one is made up."""


@dataclass(frozen=True)
class PageHooks:
    """What a run tells the page beside it: each batch, and that the session is there by which rows are asked about."""

    take: Take = lambda progress: None
    ready: Callable[[SparkSession], None] = lambda spark: None


@dataclass(frozen=True)
class Page:
    """Where a page is served; without a port, nowhere. ``shows_rows``: also some of the rows of queries that run."""

    port: int | None = None
    host: str = "127.0.0.1"
    shows_rows: bool = True

    @property
    def has_rows(self) -> bool:
        """Whether there is a page, and rows are shown on it."""
        return self.port is not None and self.shows_rows

    @contextmanager
    def serve(
        self, opened: OpenedScript, metrics: Callable[[], str] | None = None, typed: str = "."
    ) -> Generator[PageHooks]:
        """Serve it while this is entered, and say where; gives what a run tells it.

        ``metrics``: what Prometheus is told, where queries run here; ``typed``: the project, as it was typed.
        """
        if self.port is None:
            yield PageHooks()
            return
        check_installed()
        from watersmeet.page.described import describe_queries
        from watersmeet.page.rows import SWITCHED_OFF, RowSamples
        from watersmeet.page.server import serve_page
        from watersmeet.page.watch import Watch

        queries = describe_queries(opened.script, opened.queries, storage_folder(opened.project))
        rows = None if metrics is None else RowSamples() if self.shows_rows else RowSamples(SWITCHED_OFF)
        watch = Watch(opened.project.name, queries, metrics, rows)
        with serve_page(watch, self.port, self.host, os.environ.get(TOKEN)) as address:
            typer.echo(f"The page is at {address}", err=True)

            def ready(spark: SparkSession) -> None:
                from watersmeet.answers.beside import LiveDiagnosis
                from watersmeet.spark.sources.reading import resolve_options

                script, storage = resolve_options(opened.script), storage_folder(opened.project)
                watch.ask = LiveDiagnosis(spark, script, opened.queries, storage, typed).why

            yield PageHooks(watch.take, ready if self.shows_rows else lambda spark: None)


def check_installed() -> None:
    """Refuse where what serves pages is not installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise refuse("PAGE_NOT_INSTALLED", package=package)


def show_page(path: Path, page: Page) -> None:
    """Serve the page of a project until Ctrl-C, whether its queries run or not."""
    opened = open_script(path)
    with interruptible(), page.serve(opened):
        Event().wait()
