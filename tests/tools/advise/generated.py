"""Two streams of which everything is known: who is whose partner, how far apart, how far behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Field, Source
from watersmeet.tools.advise.arrivals import SampledRows

SECOND = 1_000_000
START = 1_700_000_000 * SECOND

Shape = Literal["even", "exponential", "both sides", "far tail"]


@dataclass(frozen=True)
class Truth:
    """``spacing``: seconds between left rows on average; ``reach`` and ``disorder``: seconds; ``partners``: a share."""

    shape: Shape = "even"
    reach: int = 600
    disorder: int = 20
    partners: float = 0.8
    spacing: float = 0.5
    rows: int = 12_000

    def distances(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """How long after its left row each right row is."""
        reach = self.reach * SECOND
        match self.shape:
            case "even":
                found = rng.random(count) * reach
            case "exponential":
                found = rng.exponential(reach / 5, count)
            case "both sides":
                found = rng.normal(0, reach / 4, count)
            case "far tail":
                found = np.where(rng.random(count) < 0.005, rng.random(count) * 10, rng.random(count)) * reach
        return found.astype(np.int64)

    def streams(self, seed: int) -> tuple[SampledRows, SampledRows]:
        """Both sides in the order in which they arrive."""
        rng = np.random.default_rng(seed)
        left = START + np.sort((rng.random(self.rows) * self.rows * self.spacing * SECOND).astype(np.int64))
        has = rng.random(self.rows) < self.partners
        ids = rng.permutation(self.rows) * 7 + 3
        right = left[has] + self.distances(rng, int(has.sum()))
        orders = {"id": ids, "at": left, "amount": rng.integers(0, 500, self.rows)}
        deliveries = {"order_id": ids[has], "done": right, "rating": rng.integers(0, 500, int(has.sum()))}
        return self._sample_rows("orders", orders, "at", rng), self._sample_rows("deliveries", deliveries, "done", rng)

    def _sample_rows(
        self, name: str, columns: dict[str, np.ndarray], time: str, rng: np.random.Generator
    ) -> SampledRows:
        behind = rng.exponential(self.disorder * SECOND / 5, len(columns[time])) if self.disorder else 0
        order = np.argsort(columns[time] + behind, kind="stable")
        arrays = {n: pa.array(values[order]) for n, values in columns.items()}
        arrays[time] = arrays[time].cast(pa.timestamp("us", "UTC"))
        fields = tuple(Field(n, "TIMESTAMP" if n == time else "BIGINT") for n in columns)
        return SampledRows(Source(name, fields), pa.table(arrays))
