"""The queries that a page shows, looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from watersmeet.observe.following import HistoryFollower
from watersmeet.observe.progress import Progress
from watersmeet.page.described import QueryDescription
from watersmeet.page.model import detail, overview, query_drawing_json, query_status
from watersmeet.page.rows import ONLY_WITH_RUN, RowSamples

Ask = Callable[[str, Mapping[str, str | None], int], str]
"""What tells what became of a row: of which query, with which values, and how many rows the query has read."""
NOT_YET = "Spark is not ready yet: ask again in a moment. With --remote, use `watersmeet why` in a terminal."


class Watch:
    """What a page can be asked. Questions come from several threads.

    ``name`` is that of the project; ``metrics`` gives the text for Prometheus, where queries run in this process;
    ``rows`` are those that are shown, and ``ask``, once it is known, tells what became of them.
    """

    def __init__(
        self,
        name: str,
        queries: Sequence[QueryDescription],
        metrics: Callable[[], str] | None = None,
        rows: RowSamples | None = None,
    ) -> None:
        self.name, self.metrics = name, metrics
        self.rows = RowSamples(ONLY_WITH_RUN) if rows is None else rows
        self._queries = {query.name: (query, HistoryFollower(query.storage, query.name)) for query in queries}
        self.ask: Ask | None = None
        self._lock = Lock()

    def take(self, progress: Progress) -> None:
        """Take in one batch of a query that runs in this process, with its rows."""
        with self._lock:
            self.rows.take(progress)

    def versions(self) -> dict[str, str]:
        """What changes when there is something new to be shown of a query."""
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            return {
                name: f"{follower.version} {query_status(follower)}" for name, (_, follower) in self._queries.items()
            }

    def project(self) -> dict[str, object]:
        """All queries, a line each."""
        now = time.time()
        with self._lock:
            for _, following in self._queries.values():
                following.poll()
            queries = [overview(query, following, now) for query, following in self._queries.values()]
        return {"name": self.name, "now": now, "queries": queries, "has_metrics": self.metrics is not None}

    def query(self, name: str) -> dict[str, object] | None:
        """All that is shown of a query; None: there is none of that name."""
        now = time.time()
        with self._lock:
            if name not in self._queries:
                return None
            query, following = self._queries[name]
            following.poll()
            return {"now": now, **detail(query, following, now), "rows": self.rows.to_json(name)}

    def why(self, name: str, number: int) -> str | None:
        """What became of a row that is shown; None: there is no such query, or it has no such row any more."""
        with self._lock:
            row = self.rows.row(name, number) if name in self._queries else None
            if row is None:
                return None
            read = self._queries[name][1].totals.rows_in
        # Without the lock: it may take a while, and the page goes on meanwhile.
        return NOT_YET if self.ask is None else self.ask(name, row.values, read)

    def query_drawing(self, name: str) -> dict[str, object] | None:
        """The drawing of a query; None: there is none of that name."""
        return query_drawing_json(self._queries[name][0]) if name in self._queries else None
