"""Options of commands: those that several have, and those that travel as one value.

`expand_options` declares a command by the fields of its dataclasses, so that each is an option of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from watersmeet.cli.console import Format

if TYPE_CHECKING:
    from watersmeet.cli.run import Cluster


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every field of its parameters that are dataclasses, in their place.

    >>> @dataclass(frozen=True)
    ... class Page:
    ...     port: int = 8484
    ...     host: str = "127.0.0.1"
    >>> def serve(path: str, page: Page, debug: bool = False) -> None:
    ...     print(path, page)
    >>> serve.__annotations__["page"] = Page
    >>> inspect.signature(expand_options(serve))
    <Signature (path: str, port: int = 8484, host: str = '127.0.0.1', debug: bool = False)>
    >>> expand_options(serve)(path="shop", port=9000, host="::1")
    shop Page(port=9000, host='::1')
    """
    types = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups: dict[str, Any] = {name: type_ for name, type_ in types.items() if is_dataclass(type_)}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            parameters += _field_parameters(groups[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=types[parameter.name]))

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            own = [field.name for field in fields(group) if field.name in values]
            values[name] = group(**{field: values.pop(field) for field in own})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _field_parameters(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=types[field.name])
        for field in fields(group)
    ]


class Restart(StrEnum):
    """``never``, or ``on-failure``: a query that failed, and all of them if Spark died."""

    never = "never"
    on_failure = "on-failure"


class LogLevel(StrEnum):
    """``debug``: every number of every batch; ``warning``: restarts; ``error``: failures alone."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


ProjectPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A project folder, a .sql file or a .substrait plan.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Print text, or JSON for scripts.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="Spark master, for example local[2].", metavar="URL")
]
RemoteOption = Annotated[
    str | None, typer.Option("--remote", help="Spark Connect server, for example sc://host.", metavar="URL")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", help="Spark setting. You can repeat this option.", metavar="NAME=VALUE")
]
PackagesOption = Annotated[
    str | None, typer.Option("--packages", help="Maven coordinates, separated by commas.", metavar="LIST")
]
JarsOption = Annotated[
    str | None, typer.Option("--jars", help="Jar files for Spark, separated by commas.", metavar="LIST")
]


@dataclass(frozen=True)
class ReachOptions:
    """Session options of a command that only reads the storage."""

    conf: ConfOption = None
    packages: PackagesOption = None

    def cluster(self) -> Cluster:
        """The master and the settings."""
        from watersmeet.cli.run import Cluster

        return Cluster.of(None, None, self.conf or [], self.packages)


@dataclass(frozen=True)
class Load:
    """The inputs of a forecast: rates (``orders=1000/s``), times that are behind (``orders=5m``), keys, and cores."""

    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", help="Rate of a source, for --forecast. Can be repeated.", metavar="SOURCE=ROWS/TIME"),
    ] = None
    behind: Annotated[
        list[str] | None,
        typer.Option(
            "--behind", help="How far the event times of a source lag behind the others.", metavar="SOURCE=DURATION"
        ),
    ] = None
    keys: Annotated[
        list[str] | None,
        typer.Option("--keys", help="Number of keys of a table, or of groups of a source.", metavar="SOURCE=N"),
    ] = None
    cores: Annotated[int, typer.Option("--cores", help="Number of cores, for --forecast.", metavar="N", min=1)] = 2
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards", help="Number of shards, for --forecast. Default: the number of cores.", metavar="N", min=1
        ),
    ] = None


@dataclass(frozen=True)
class RunOptions:
    """The options of `watersmeet run`."""

    once: Annotated[bool, typer.Option("--once", help="Process the available input, then stop.")] = False
    end: Annotated[bool, typer.Option("--end", help="Like --once, and declare the input complete.")] = False
    master: MasterOption = None
    remote: RemoteOption = None
    conf: ConfOption = None
    packages: PackagesOption = None
    jars: JarsOption = None
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", help="Serve /metrics for Prometheus.", metavar="PORT", min=0, max=65535),
    ] = None
    metrics_host: Annotated[str, typer.Option("--metrics-host", help="Address of the metrics.", metavar="HOST")] = (
        "127.0.0.1"
    )
    hang_after: Annotated[
        float | None,
        typer.Option(
            "--hang-after",
            help="Silence after which /health reports a query as hanging. Default: 300.",
            metavar="SECONDS",
            min=1,
        ),
    ] = None
    page: Annotated[
        int | None,
        typer.Option("--page", help="Serve the page. Default port: 8484.", metavar="[PORT]", min=0, max=65535),
    ] = None
    page_host: Annotated[
        str, typer.Option("--page-host", help="Address of the page. Other machines need a token.", metavar="HOST")
    ] = "127.0.0.1"
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook",
            help="Post each problem as JSON to this URL when it begins and when it is over.",
            metavar="URL",
            envvar="WATERSMEET_WEBHOOK",
            show_envvar=False,
        ),
    ] = None
    no_rows: Annotated[bool, typer.Option("--no-rows", help="Show no rows on the page, only numbers.")] = False
    restart: Annotated[Restart, typer.Option("--restart", help="Restart what failed, after growing pauses.")] = (
        Restart.never
    )
    restart_limit: Annotated[
        int, typer.Option("--restart-limit", help="Number of restarts without a batch in between.", metavar="N", min=1)
    ] = 5
    accept: Annotated[
        bool, typer.Option("--accept", help="Continue with the state of a changed query, if it can be used.")
    ] = False
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the state of a changed query from its sources.")
    ] = False
    sink_resume: Annotated[
        bool, typer.Option("--sink-resume", help="Rewind sinks that are ahead of a restored checkpoint.")
    ] = False
    evolve: Annotated[
        bool,
        typer.Option("--evolve", help="Add columns that SELECT gained to tables of Postgres, Delta and Iceberg sinks."),
    ] = False
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop all queries when one fails.")] = False
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Level of watersmeet.log in the storage.")] = (
        LogLevel.info
    )
    log_format: Annotated[Format, typer.Option("--log-format", help="Format of watersmeet.log.")] = Format.text
    format: FormatOption = Format.text
