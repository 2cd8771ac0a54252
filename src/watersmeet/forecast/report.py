"""A forecast as people read it and as machines do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from watersmeet.counts import counted
from watersmeet.duration import rough_duration
from watersmeet.forecast.query import KeptForecast, QueryForecast
from watersmeet.forecast.units import shown

UNKNOWN = "not known"
ORIGINS = {"given": "given", "sampled": "sampled", "runs": "of the last runs"}


def render(found: QueryForecast) -> str:
    """The forecast of a query as text, every number beside the law that it follows."""
    return "\n".join(_lines(found))


def _lines(found: QueryForecast) -> Iterator[str]:
    given = found.given
    yield f"forecast on {counted(given.cores, 'core')}, in {counted(given.shards, 'shard')}"
    rates = [
        f"{name or 'every other source'} {shown(rate.per_second, 'rows/s')} ({ORIGINS[rate.origin]})"
        for name, rate in given.rates.items()
    ]
    yield f"├─ rates    {', '.join(rates) or 'none are known'}"
    behind = [f"{name} {rough_duration(by)}" for name, by in given.behind.items() if by]
    if behind:
        yield f"├─ behind   {', '.join(behind)}"
    for operator in found.operators:
        yield f"├─ {operator.name}"
        rows = [(f"│    {one.who}", _number(one.rows, "rows"), _number(one.bytes, "B"), _fullest(one), one.law)
                for one in operator.kept]  # fmt: skip
        yield from aligned(rows)
    busy = UNKNOWN if found.busy is None else f"{found.busy:.0%} of the cores' time"
    yield f"├─ busy     {busy}"
    if found.is_too_slow:
        yield "├─ a batch  takes ever longer: rows come faster than they are joined. Give it more cores and shards."
    else:
        yield f"├─ a batch  {_number(found.seconds, 's')}, if it starts when the one before ends"
    yield f"├─ memory   {_number(found.memory, 'B')}: Spark, its workers, the rows of a batch, runs at hand"
    per_second = f"{_number(found.disk_per_second, 'B/s')} written"
    yield f"├─ disk     {_number(found.disk, 'B')} of state, {per_second}"
    read = sum(operator.read for operator in found.operators)
    if read:
        yield f"├─ read     {shown(read, 'B')} by every batch, for more is kept than a machine has at hand"
    for missing in found.missing:
        yield f"├─ missing  {missing}"
    rough = f"seconds are rough, from runs at {given.costs.commit}"
    yield f"└─ assumed  one result for each row of the slower side; {rough}"


def _fullest(kept: KeptForecast) -> str:
    return "" if kept.fullest is None else f"{_number(kept.fullest, 'rows')} in the fullest shard"


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else shown(value, unit)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of a table in columns."""
    if rows:
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def as_data(found: QueryForecast) -> dict[str, object]:
    """The forecast of a query for machines; what is not known is null."""
    given = found.given
    return {
        "cores": given.cores,
        "shards": given.shards,
        "rates": {name: {"per_second": r.per_second, "origin": r.origin} for name, r in given.rates.items()},
        "operators": [asdict(operator) for operator in found.operators],
        "rows_in": found.rows_in,
        "busy": found.busy,
        "is_too_slow": found.is_too_slow,
        "seconds": found.seconds,
        "memory": found.memory,
        "disk": found.disk,
        "disk_per_second": found.disk_per_second,
        "missing": list(found.missing),
        "costs": {"commit": given.costs.commit, "machine": given.costs.machine},
    }
