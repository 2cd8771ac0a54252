"""What happens to a query that fails: how often it is started again, and what is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import StorageError
from watersmeet.spark.refusals import storage_failure
from watersmeet.spark.run import watching
from watersmeet.spark.run.watching import Listeners, QueryActions, RestartPolicy, WatchedQuery

REASON = "java.net.ConnectException: Connection refused"


@pytest.mark.parametrize("error", [refuse("STORAGE_UNREACHABLE", reason=REASON), StorageError(5, REASON)])
def test_a_storage_that_does_not_answer_is_waited_for(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "UNREACHABLE_WAIT", 0)
    news: list[str] = []
    watched = watch_failing(error, news)
    never = RestartPolicy(restarts=0)
    assert all(watched.poll(never) for _ in range(9))
    assert news[0] == f"joined: The storage cannot be reached: {REASON}. Trying again in 0 s, for another 300 seconds."
    assert watched.failure is None
    monkeypatch.setattr(watching, "UNREACHABLE_SECONDS", 0)
    assert not watched.poll(never)
    assert watched.failure is not None
    assert watched.failure.refusals[0].condition == "STORAGE_UNREACHABLE"


def test_other_failures_are_not_waited_for() -> None:
    news: list[str] = []
    watched = watch_failing(refuse("QUERY_FAILED", reason="a value is wrong", hint="correct it."), news)
    assert not watched.poll(RestartPolicy(restarts=0))
    assert isinstance(watched.failure, WatersmeetError)
    assert not news


MORE = "For more details see:  http://wiki.apache.org/hadoop/"
TEXTS = {
    f'End of File Exception between local host is: "a"; destination host is: "b":8020; {MORE}': True,
    f"Call From a to b:8020 failed on connection exception: java.net.ConnectException: refused; {MORE}": True,
    "Zero blocklocations for /shop/checkpoints/joined/metadata. Name node is in safe mode.": True,
    "java.io.EOFException\n\tat org.apache.hadoop.fs.FSDataInputStream.readFully": False,
    "java.net.ConnectException: Connection refused\n\tat org.postgresql.Driver.connect": False,
}


@pytest.mark.parametrize(("text", "is_silent"), TEXTS.items())
def test_a_silent_server_of_files_is_recognised(text: str, is_silent: bool) -> None:
    unreachable = storage_failure(text)
    assert (unreachable is not None) == is_silent
    assert unreachable is None or text.split(";")[0] in unreachable.refusals[0].message


def watch_failing(error: Exception, news: list[str]) -> WatchedQuery:
    """A query that is to be started, which fails each time."""

    def start(prepared: object) -> NoReturn:
        raise error

    actions = QueryActions(start, cast("Any", None))
    return WatchedQuery(cast("Any", SimpleNamespace(name="joined", tables=())), actions, Listeners(on_news=news.append))
