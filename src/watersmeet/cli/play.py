"""``play``: the drawing board, served to a browser until Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from watersmeet.board.server import BoardSession
from watersmeet.cli.failure import Interrupted
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.project import SPEC_NAME

PORT = 8484
"""Where it is, unless that is taken."""


def play_board(path: Path | None, save: Path | None, host: str, port: int | None, *, opens_browser: bool) -> None:
    """Serve the board with a case, a script or a folder on it, or with the first story."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise refuse("BOARD_NOT_INSTALLED", package=package)
    from watersmeet.board.server import BoardSession as Session
    from watersmeet.board.shelf import build_catalog, open_board

    if save is not None and not save.absolute().parent.is_dir():
        raise typer.BadParameter(f"--save {save}: there is no folder {save.parent}")
    catalog = build_catalog(path if path is not None and path.is_dir() else Path())
    first = open_board(_first(path, [entry.path for entry in catalog]))
    server_socket = _open_socket(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{server_socket.getsockname()[1]}"
    session = Session(first, catalog, save, "" if _is_loopback(host) else secrets.token_urlsafe(16))
    address += f"/?token={session.token}" if session.token else ""
    typer.echo(f"The drawing board is at {address}")
    typer.echo(f"It saves to {save}." if save is not None else "It saves as a download; --save FILE names a file.")
    typer.echo("Ctrl-C ends it.")
    if opens_browser:
        webbrowser.open(address)
    _serve(session, server_socket)


def _first(path: Path | None, catalog_paths: list[Path]) -> Path:
    """What lies on the board at first: of a folder that is no project, what is found first in it."""
    if path is None or (path.is_dir() and not (path / SPEC_NAME).is_file()):
        return next(
            (entry_path for entry_path in catalog_paths if path is not None and entry_path.is_relative_to(path)),
            catalog_paths[0],
        )
    return path


def _serve(session: BoardSession, server_socket: socket.socket) -> None:
    import uvicorn

    from watersmeet.board.server import application

    config = uvicorn.Config(application(session), log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    # It closes in order and may then pass the interrupt on, or not: that depends on when it came.
    with suppress(KeyboardInterrupt):
        server.run(sockets=[server_socket])
    if server.should_exit:
        raise Interrupted


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _open_socket(host: str, port: int | None) -> socket.socket:
    """A socket that listens there; without a port that was asked for, at the usual one or at any that is free."""
    for number in (PORT, 0) if port is None else (port,):
        try:
            return socket.create_server((host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, OverflowError) as error:
            is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not (is_taken and port is None and number):
                raise _refusal(error, host, number) from None
    raise AssertionError("a free port is always found, or it is refused")


def _refusal(error: OSError | OverflowError, host: str, port: int) -> WatersmeetError:
    reason, hint = str(error), "give an address of this machine: `--host 127.0.0.1`."
    if isinstance(error, OSError):
        reason = error.strerror or reason
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            is_taken = error.errno == errno.EADDRINUSE
            reason = "another process listens there" if is_taken else "this user may not open that port"
            hint = "leave `--port` out: a free port is used."
    return refuse("BOARD_ADDRESS", address=f"{host}:{port}", reason=reason, hint=hint)
