"""What things cost, as measured: the constants of all laws, in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Costs on a machine. Seconds are those of a core, but for ``batch`` and ``stage``, which no core shortens.

    - ``batch``: a batch whatever it brings: offsets, planning, logs, commits; ``stage``: each further operator
    - ``columns``: a row of 28 bytes from a file that workers read as columns; ``scanned``: one that Spark reads
    - ``byte``: what each further byte of a row adds
    - ``result``: a row that comes out; ``shard``: the call of a shard in a batch; ``task``: a map task without a row
    - ``probe``: to look for a row in one run of the other side; ``read``: a byte of a run that is not at hand
    - ``mark``: a record of marks of one map task for one shard: made, shuffled, folded; ``record``: one of rows
    - ``record_bytes``: what such a record has besides its rows
    - ``worker``: bytes of a Python worker without rows; ``jvm``: bytes of Spark's own process without much to do
    - ``copies``: how often rows are in a worker's memory at once; ``piece``: bytes of a batch that are joined at once
    - ``mapped``: bytes of decoded runs that the workers of a machine keep at hand at most
    - ``stored``: bytes on disk per byte of a row as Arrow has it: compressed, with what RocksDB adds
    """

    commit: str
    machine: str
    batch: float
    stage: float
    columns: float
    scanned: float
    byte: float
    result: float
    shard: float
    task: float
    probe: float
    read: float
    mark: float
    record: float
    record_bytes: int
    worker: int
    jvm: int
    copies: float
    piece: int
    mapped: int
    stored: float

    def per_row(self, bytes: float, *, columns: bool) -> float:
        """Seconds of a core for a row of so many bytes."""
        return (self.columns if columns else self.scanned) + self.byte * max(0.0, bytes - NARROW)


NARROW = 28.0
"""Bytes of the rows whose costs were measured first: a key, a time, two numbers."""

MEASURED = Costs(
    commit="2a42d9a",
    machine="two cores of a small virtual machine, Spark 4.3.0, Python 3.11, Java 17, local[2]",
    batch=0.17,
    stage=0.35,
    columns=1.15e-6,
    scanned=2.2e-6,
    byte=4.4e-8,
    result=0.33e-6,
    shard=0.004,
    task=0.05,
    probe=7e-8,
    read=1.5e-8,
    mark=2.5e-5,
    record=1.5e-4,
    record_bytes=900,
    worker=95_000_000,
    jvm=1_300_000_000,
    copies=14.0,
    piece=256 * 2**20,
    mapped=2 * 2**30,
    stored=1.1,
)
"""Seconds per batch, row, byte and result are from one run of the section `forecast` of ``make bench`` on a quiet
machine, those of a shard from `shards` (2 ms in small batches, 4.5 ms in large ones); a later run of `forecast` checks
them (docs/forecast.md). What a further operator and a task without rows take is from older runs on a busy one, and so
is memory. ``read`` is from one run with and without runs at hand, ``probe`` from a search in a sorted million, records
and marks from ``watersmeet plan --simulate``, with what a shuffle adds as an estimate."""
