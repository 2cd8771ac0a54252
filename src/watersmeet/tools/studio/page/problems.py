"""The problems of a query that runs or ran, in sentences, each with something to do about it.

Each problem has a function that finds it, from the description of the query (`QueryDescription`) and its history
(`HistoryFollower`).

Also here: how long rows wait for each other and by how much they are late, as bars and in words; and the problems as
alerts that are posted to a URL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from threading import Event, Thread
from typing import Literal
from urllib.request import Request, urlopen

from watersmeet.duration import MINUTE, SECOND, format_count, rough_duration
from watersmeet.locations import mask_secrets
from watersmeet.logical.words import without_generated_names
from watersmeet.metrics.logs import HistoryFollower
from watersmeet.metrics.metrics import OperatorMetrics
from watersmeet.metrics.progress import Progress, end_time
from watersmeet.operators.core.matching import bucket_maximum
from watersmeet.operators.explainer import PairDistance
from watersmeet.tools.forecast.query import forecast_alerts
from watersmeet.tools.studio.page.description import OperatorSide, QueryDescription, WatermarkColumn

Unit = Literal["time", "number", "arrivals"]
"""The unit of lengths: microseconds, numbers of a column, or rows that arrived."""
BARS = 14
"""The largest number of bars of a histogram."""
PAIR = "Between the two rows of a pair"
PARTS = 4
"""Ranges of one power of two, which a bar holds together."""


def spreads_of(described: QueryDescription, following: HistoryFollower) -> list[dict[str, object]]:
    """The histograms of a query: those of each operator that has seen something."""
    histograms: list[dict[str, object]] = []
    several = len(following.operators) > 1
    for name, numbers in following.operators.items():
        where = f" in {without_generated_names(name)}" if several else ""
        is_time, distance = _is_temporal(described, following, name), described.pair_distances.get(name, PairDistance())
        if numbers.delays:
            unit: Unit = "time" if distance.unit == "clock" else "arrivals" if distance.unit == "arrivals" else is_time
            words, bars = _delays_in_words(numbers, distance.bound, unit), _bars(numbers.delays, distance.bound)
            histograms.append({"title": f"{PAIR}{where}", "words": words, "unit": unit, "bars": bars})
        elif distance.why:
            histograms.append({"title": f"{PAIR}{where}", "words": distance.why, "unit": is_time, "bars": []})
        if numbers.lateness:
            words = _late_in_words(numbers, is_time)
            histograms.append(
                {"title": f"Late by{where}", "words": words, "unit": is_time, "bars": _bars(numbers.lateness)}
            )
    return histograms


def quantile(counts: Mapping[str, int], share: float) -> int:
    """The length that at least this share of the lengths does not exceed.

    >>> quantile({"1": 98, "9": 1, "13": 1}, 0.99)
    4
    """
    wanted, cumulative = share * sum(counts.values()), 0
    ranges = sorted((int(number), count) for number, count in counts.items())
    for number, count in ranges:
        cumulative += count
        if cumulative >= wanted:
            return bucket_maximum(number)
    return bucket_maximum(ranges[-1][0])


def _bars(counts: Mapping[str, int], bound: int | None = None) -> list[dict[str, object]]:
    """A bar per power of two; those below the largest ones are put together. None ends beyond a bound.

    >>> _bars({"118": 99, "132": 1}, 7_200_000_000)[-1]
    {'until': 7200000000, 'count': 1}
    """
    powers: dict[int, int] = {}
    for number, count in counts.items():
        power = -(-int(number) // PARTS)
        powers[power] = powers.get(power, 0) + count
    most = max(powers)
    least = max(min(powers), most - BARS + 1)
    below = sum(count for power, count in powers.items() if power < least)
    bars = [(power, powers.get(power, 0) + (below if power == least else 0)) for power in range(least, most + 1)]
    ends = [bucket_maximum(power * PARTS) for power, _ in bars]
    # A range holds lengths of a quarter more: no pair is further apart than its bound.
    last = next((place for place, end in enumerate(ends) if bound is not None and end >= bound), len(ends) - 1)
    shown: list[dict[str, object]] = [
        {"until": end, "count": count} for end, (_, count) in zip(ends[:last], bars, strict=False)
    ]
    until = ends[last] if bound is None else min(ends[last], bound)
    return [*shown, {"until": until, "count": sum(count for _, count in bars[last:])}]


def _delays_in_words(numbers: OperatorMetrics, bound: int | None, unit: Unit) -> str:
    """The time that most pairs take, against the bound.

    >>> _delays_in_words(OperatorMetrics(delays={"118": 99, "125": 1}), 7_200_000_000, "time")
    '99 % within 13 min 25 s, the bound is 2 h.'
    >>> _delays_in_words(OperatorMetrics(delays={"132": 1}), 7_200_000_000, "time")
    '99 % within 2 h, the bound is 2 h.'
    """
    most = quantile(numbers.delays, 0.99)
    text = f"99 % within {_length(most if bound is None else min(most, bound), unit)}"
    return f"{text}, the bound is {_length(bound, unit)}." if bound is not None else f"{text}."


def _late_in_words(numbers: OperatorMetrics, unit: Unit) -> str:
    half, most = (_length(quantile(numbers.lateness, share), unit) for share in (0.5, 0.99))
    return f"Half by no more than {half}, 99 % by no more than {most}: a lag that much larger would include them."


def _length(micros: int, unit: Unit) -> str:
    if unit != "time":
        return f"{micros:,} arrivals" if unit == "arrivals" else f"{micros:,}"
    return rough_duration(micros) if micros >= 1_000_000 else f"{-(-micros // 1000)} ms"


def _is_temporal(described: QueryDescription, following: HistoryFollower, operator: str) -> Unit:
    last = following.totals.last
    columns = [column for side in described.sides.get(operator, {}).values() for column in side.columns]
    is_time = last is None or not columns or any(column in last.temporal for column in columns)
    return "time" if is_time else "number"


Level = Literal["stopped", "wrong", "watch"]
"""``stopped``: it does not run, though it was not stopped. ``wrong``: rows are missing or wait in vain. ``watch``: it
may become so.
"""

SILENT_AFTER = 60.0
"""Seconds after which a source that brought rows before counts as silent, if batches are not longer than that."""
RECENT = 600.0
"""The seconds before the latest batch that count as recent."""
LATE_SHARE, FULL_SHARE, WAITING_SHARE = 0.01, 0.8, 0.2
CHANGED = "Start the changed query with `watersmeet run --accept`."
ANOTHER = f"Rows then wait longer. {CHANGED}"
NEVER_MATCHED = 1000
"""After this many unmatched rows, some matches would be expected."""


@dataclass(frozen=True)
class Problem:
    """A problem: the observation, and what can be done.

    ``kind`` and ``about`` stay the same while it lasts: which function found it, and the source or join it is about.
    """

    level: Level
    text: str
    advice: str = ""
    about: str = ""
    kind: str = ""


def problems_of(described: QueryDescription, following: HistoryFollower, now: float) -> list[Problem]:
    """The problems of a query at a time in seconds since 1970, worst first."""
    problems = [
        replace(problem, kind=finder.__name__.removeprefix("find_"))
        for finder in FINDERS
        for problem in finder(described, following, now)
    ]
    order = ("stopped", "wrong", "watch")
    return sorted(problems, key=lambda problem: order.index(problem.level))


def find_failures(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """It has failed, keeps failing, or its process is gone."""
    if not following.events:
        return
    last, name = following.events[-1], described.name
    since = rough_duration(int((now - last.at) * SECOND))
    again = f"`watersmeet run` on its project continues from {described.checkpoint}."
    if last.kind == "failed":
        yield Problem("stopped", f"{name} failed {since} ago: {last.text}", f"Correct the cause; {again}")
    elif last.kind in ("started", "retried") and not following.history.is_running:
        heard = max([last.at, *(end_time(batch) for batch in following.batches[-1:])])
        silence = rough_duration(int((now - heard) * SECOND))
        text = f"The process that ran {name} is gone; its last sign of life was {silence} ago, and it left no reason."
        yield Problem("stopped", text, f"Nothing is lost: {again}")
    failures = [batch for batch in following.events if batch.kind == "retried" and now - batch.at < RECENT]
    if failures and last.kind != "failed":
        text = f"{name} failed and was restarted {_times(len(failures))} in the last 10 min: {failures[-1].text}"
        yield Problem("watch", text, about="restarts")


def find_silent_sources(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """A source is silent, and rows of another side wait for it."""
    last = following.totals.last
    if last is None or not following.history.is_running:
        return
    patience = max(SILENT_AFTER, 3 * last.seconds)
    quiet = {name: _silence(following, name, now) for name in last.sources}
    if len(quiet) > 1 and min(quiet.values()) > patience:
        since = rough_duration(int(min(quiet.values()) * SECOND))
        text = f"No source has had a row for {since}; {format_count(last.state_rows, 'row')} kept meanwhile."
        advice = "Check whether they still receive data: event time does not advance without rows."
        yield Problem("watch", text, advice)
        return
    for name, side, other, row_count in _sources_awaited(described, last):
        idle, silence = _column(described, side).idle, quiet.get(name, 0.0)
        if silence < patience or (idle is not None and silence * SECOND > idle):
            continue
        since = f"has been silent for {rough_duration(int(silence * SECOND))}"
        since = since if following.totals.sources.get(name) else "has had no row yet"
        advice = "Check whether it still receives data."
        if idle is None:
            after = "5m" if silence > 300 else "1m"
            advice += f" Add `IDLE AFTER {after}` to its WATERMARK to release them; its later rows may then be late."
            # The first one of a join changes what its state means; another one does not.
            if not any(column.idle for column in described.columns.values()):
                advice += f" {CHANGED}"
        wait = f"{format_count(row_count, 'row')} of {other.name} {'waits' if row_count == 1 else 'wait'} for it."
        yield Problem("wrong", f"{name} {since}; {wait}", advice, name)


def find_lagging_side(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """One side is far behind the others, so that their rows are retained for long."""
    slowest, last = following.totals.slowest, following.totals.last
    if slowest is None or last is None:
        return
    column, by = slowest
    if by is None or column not in last.temporal:
        return
    longest = max(described.bounds.values(), default=0)
    if by > max(longest, 10 * MINUTE) and following.history.is_running:
        source = described.columns.get(column, WatermarkColumn(column)).source or column
        text = f"{source} is {rough_duration(by)} behind the other side, whose rows wait until it catches up."
        yield Problem("watch", text, "Check whether it is read more slowly, or written later, than the other.")


def find_late_rows(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """Many rows are late."""
    rows, sides = dict[str, int](), dict[str, int]()
    for batch in _recent(following):
        for name, numbers in batch.operators.items():
            for side, of_side in numbers.sides.items():
                side_name = described.sides.get(name, {}).get(side, OperatorSide(side, ())).name
                rows[side_name] = rows.get(side_name, 0) + of_side.rows
                sides[side_name] = sides.get(side_name, 0) + of_side.late
    # Each side has a watermark of its own: the share is that of its rows.
    shares = {side: late / rows[side] for side, late in sides.items() if late and rows[side]}
    most = max(shares, key=lambda side: sides[side], default="")
    if most and max(shares.values()) > LATE_SHARE:
        count = sum(sides.values())
        whose = f"{shares[most]:.1%} of those of {most}"
        others = "" if len(shares) == 1 else f", {sides[most]:,} of them"
        rows_late = f"{format_count(count, 'row')} {'was' if count == 1 else 'were'} late"
        text = f"{rows_late} in {_last_minutes(following)}{others}: {whose}."
        advice = _longer_lag(described, following, most)
        if "late" not in described.own_sinks:
            advice += " `LATE INTO sink` keeps them."
        yield Problem("wrong", text, advice)


def _longer_lag(described: QueryDescription, following: HistoryFollower, source: str) -> str:
    """Return the lag that would have included most of the late rows."""
    lags = {column.lag for column in described.columns.values() if column.source == source}
    lateness = [numbers.lateness for numbers in following.operators.values() if numbers.lateness]
    last = following.totals.last
    if len(lags) != 1 or len(lateness) != 1 or None in lags or last is None or not last.temporal:
        return f"A larger lag in its WATERMARK would include them. {ANOTHER}"
    wanted = rough_duration(-(-((lags.pop() or 0) + quantile(lateness[0], 0.99)) // SECOND) * SECOND)
    return f"A lag of {wanted} in its WATERMARK would have included 99 % of them. {ANOTHER}"


def find_malformed_rows(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """Rows could not be read."""
    counts = dict[str, int]()
    for batch in _recent(following):
        for source, count in batch.malformed_of.items():
            counts[source] = counts.get(source, 0) + count
    for source, count in counts.items():
        advice = (
            "They are kept."
            if "malformed" in described.own_sinks
            else "Add `MALFORMED INTO sink` to the query to keep them."
        )
        yield Problem(
            "wrong",
            f"{format_count(count, 'row')} of {source} could not be read in {_last_minutes(following)}.",
            advice,
            source,
        )


def find_full_state(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """The limit on the state is near, or has cost rows."""
    last, limit = following.totals.last, described.max_rows
    dropped = sum(batch.dropped for batch in _recent(following))
    if dropped:
        rows = format_count(dropped, "row")
        reason = "a limit removed them, or they have no usable key or time"
        text = f"{rows} {'was' if dropped == 1 else 'were'} dropped in {_last_minutes(following)}: {reason}."
        advice = (
            "`watersmeet why` gives the reason. A higher `SET watersmeet.state.max_rows` keeps rows that it removes."
        )
        yield Problem("wrong", text, advice)
    if last is None or limit is None:
        return
    for name, numbers in last.operators.items():
        if numbers.state_rows > FULL_SHARE * limit:
            shown = without_generated_names(name)
            text = f"{shown} keeps {format_count(numbers.state_rows, 'row')}; {limit:,} is the limit."
            advice = "A higher `SET watersmeet.state.max_rows`, or tighter bounds, make room."
            yield Problem("watch", text, advice, shown)


def find_backpressure(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """Rows come faster than they are processed."""
    recent = [batch for batch in _recent(following) if batch.batches == 1][-20:]
    if len(recent) < 3 or not following.history.is_running:
        return
    share = sum(item.backpressure for item in recent) / len(recent)
    if share > WAITING_SHARE:
        busiest = max(recent[-1].operators.items(), key=lambda named: named[1].busy, default=None)
        where = (
            f"{without_generated_names(busiest[0])} is busy {busiest[1].busy:.0%} of the time: more shards would help."
            if busiest is not None and busiest[1].busy > 0.5
            else "No join is the bottleneck: see what reading and writing costs, below under Batches."
        )
        yield Problem("watch", f"Rows arrive faster than {described.name} takes them: {share:.0%} had to wait.", where)


def find_unmatched_rows(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """No row matches, for example because keys are never equal."""
    totals = following.totals
    if totals.padded >= NEVER_MATCHED and not totals.matched:
        text = f"{totals.padded:,} rows came out unmatched, and none ever matched."
        yield Problem("watch", text, "Check that keys have the same form on both sides, and times the same zone.")


def find_forecast_alerts(described: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
    """A state is twice as large as its forecast."""
    for alert in [] if described.plan is None else forecast_alerts(described.plan, following.batches):
        advice = "`watersmeet explain --forecast` has the formula, `watersmeet state show` the rows."
        yield Problem("watch", str(alert), advice, f"{alert.who} in {alert.operator}")


Finder = Callable[[QueryDescription, HistoryFollower, float], Iterator[Problem]]
FINDERS: tuple[Finder, ...] = (
    find_failures,
    find_silent_sources,
    find_lagging_side,
    find_late_rows,
    find_malformed_rows,
    find_full_state,
    find_backpressure,
    find_unmatched_rows,
    find_forecast_alerts,
)


def _recent(following: HistoryFollower) -> list[Progress]:
    """The batches of the last ten minutes before the latest one."""
    batches: list[Progress] = []
    for batch in reversed(following.batches):
        if following.batches[-1].at - batch.at > RECENT:
            break
        batches.append(batch)
    return batches[::-1]


def _last_minutes(following: HistoryFollower) -> str:
    """The period that `_recent` covers, in words."""
    return "the last 10 min" if following.history.is_running else "the last 10 min of the run"


def _sources_awaited(
    described: QueryDescription, last: Progress
) -> Iterator[tuple[str, OperatorSide, OperatorSide, int]]:
    """Sources with a watermark, and the state rows of the other side of their join."""
    for name, sides in described.sides.items():
        numbers = last.operators.get(name)
        for key, side in sides.items() if numbers is not None else ():
            others = [(other, other_side) for other, other_side in sides.items() if other != key]
            for other, other_side in others if side.source and side.columns else ():
                row_count = numbers.sides[other].state_rows if numbers is not None and other in numbers.sides else 0
                if row_count:
                    yield side.source or "", side, other_side, row_count


def _silence(following: HistoryFollower, source: str, now: float) -> float:
    """For how many seconds a source has brought nothing, while the query was there to take it."""
    started = next(
        (event.at for event in reversed(following.events) if event.kind == "started"), following.batches[0].at
    )
    brought = next((end_time(event) for event in reversed(following.batches) if event.sources.get(source)), 0.0)
    return now - max(brought, started)


def _column(described: QueryDescription, side: OperatorSide) -> WatermarkColumn:
    return described.columns.get(side.columns[0], WatermarkColumn(side.columns[0]))


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


Alert = dict[str, str]
"""The body of a webhook: a problem, its query and project, and whether it is ``firing`` or ``resolved``."""
CHECKED = 5.0
"""Seconds between two looks for problems that are sent."""
_WITHOUT_A_BATCH = ("failures", "silent_sources")
"""The problems that can be found before this run has had a batch; others would be of an earlier run."""


class ProblemAlerts:
    """Sends each problem of the queries of a run once when it begins, and once when it is over.

    An alert that cannot be sent is sent again with the next look, and that is reported once.
    """

    def __init__(
        self,
        project: str,
        queries: Sequence[QueryDescription],
        send: Callable[[Alert], None],
        on_news: Callable[[str], None],
    ) -> None:
        self.project, self.send, self.on_news = project, send, on_news
        self.began = time.time()
        self._queries = [(query, HistoryFollower(query.storage, query.name)) for query in queries]
        self._sent: dict[tuple[str, str, str], Problem] = {}
        self._is_reported = False

    def look(self, *, is_last: bool = False) -> None:
        """Send what is new. The last look says of nothing that it is over: the run only ends."""
        now = time.time()
        current = {
            (query.name, problem.kind, problem.about): problem
            for query, following in self._queries
            for problem in self._problems(query, following, now)
        }
        for key in current.keys() - self._sent.keys():
            if self._deliver("firing", key[0], current[key]):
                self._sent[key] = current[key]
        for key in () if is_last else self._sent.keys() - current.keys():
            if self._deliver("resolved", key[0], self._sent[key]):
                del self._sent[key]

    def _problems(self, query: QueryDescription, following: HistoryFollower, now: float) -> Iterator[Problem]:
        following.poll()
        if not following.events or following.events[-1].at < self.began:
            return
        is_fresh = bool(following.batches) and end_time(following.batches[-1]) >= self.began
        for problem in problems_of(query, following, now):
            if is_fresh or problem.kind in _WITHOUT_A_BATCH:
                yield problem

    def _deliver(self, status: str, query: str, problem: Problem) -> bool:
        over = "" if status == "firing" else "resolved: "
        text = f"{self.project}, {query}: {over}{problem.text}"
        alert = {"status": status, "project": self.project, "query": query, **asdict(problem), "problem": problem.text}
        try:
            self.send({**alert, "text": text, "at": datetime.now(UTC).isoformat(timespec="seconds")})
        except (OSError, HTTPException) as error:
            if not self._is_reported:
                self.on_news(f"An alert could not be sent and is tried again: {mask_secrets(str(error))}.")
            self._is_reported = True
            return False
        return True


def post_json(url: str, value: Mapping[str, str]) -> None:
    """Post a value as JSON; `OSError` or `HTTPException` if it does not arrive."""
    headers = {"content-type": "application/json", "user-agent": "watersmeet"}
    request = Request(url, json.dumps(value).encode(), headers, method="POST")
    with urlopen(request, timeout=10):
        pass


@contextmanager
def send_alerts(
    url: str | None, project: str, queries: Sequence[QueryDescription], on_news: Callable[[str], None]
) -> Generator[None]:
    """Post the problems of queries to a URL while this is entered, and at its end; without a URL, do nothing."""
    if url is None:
        yield
        return
    alerts = ProblemAlerts(project, queries, partial(post_json, url), on_news)
    stopping = Event()

    def look() -> None:
        while not stopping.wait(CHECKED):
            alerts.look()

    thread = Thread(target=look, name="alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(timeout=30)
        alerts.look(is_last=True)
