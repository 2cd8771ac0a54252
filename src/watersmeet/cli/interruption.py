"""Ctrl-C and a polite kill: raised where that is wanted, or noted until the command is ready for it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from watersmeet.cli.failure import Interrupted


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C and a polite kill raise `Interrupted`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _install_handler(interrupt):
        yield


@contextmanager
def defer_interruptions() -> Generator[list[int]]:
    """Note Ctrl-C and a polite kill instead of acting on them, once: a second one raises `Interrupted`."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise Interrupted(number)
        noted.append(number)

    with _install_handler(note):
        yield noted


@contextmanager
def _install_handler(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in wanted]
    try:
        yield
    finally:
        for number, former in zip(wanted, before, strict=True):
            signal.signal(number, former)
