"""Keeps what only watches a query from failing it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import ParamSpec

from watersmeet.observe.logs import log

P = ParamSpec("P")


def guard_observer(what: str, observe: Callable[P, None], on_news: Callable[[str], None]) -> Callable[P, None]:
    """The same observer, of which an error does not get out: it is told once, and logged each time.

    An output that nobody reads any more (``watersmeet run | head``) still ends the run.

    >>> failing = guard_observer("The page", lambda batch: print(1 / batch), print)
    >>> failing(0), failing(0)
    The page shows less than there is: ZeroDivisionError: division by zero. The query goes on. This is said once.
    (None, None)
    """
    is_reported = False

    def observe_safely(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal is_reported
        try:
            observe(*args, **kwargs)
        except BrokenPipeError:
            raise
        except Exception as error:
            log("warning", "unobserved", text=f"{what}: {traceback.format_exc()}")
            if not is_reported:
                is_reported = True
                reason = f"{type(error).__name__}: {error}"
                on_news(f"{what} is incomplete: {reason}. The query continues. This message appears only once.")

    return observe_safely
