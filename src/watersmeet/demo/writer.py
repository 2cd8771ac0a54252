"""Files that keep arriving: the streams of the demo, written while a query reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread

from watersmeet.demo.streams import DeliveryRow, OrderRow, Streams


class Writer:
    """Writes file after file of both streams into ``data``, over ``seconds``, in a thread of its own."""

    def __init__(self, streams: Streams, data: Path, seconds: float) -> None:
        self._streams = streams
        self._data = data
        self._pause = seconds / max(1, len(streams.orders))
        self._stopped = Event()
        self._thread = Thread(target=self._write_all, name="demo-writer", daemon=True)

    def __enter__(self) -> Writer:
        prepare_folders(self._data)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write_all(self) -> None:
        for number, (orders, deliveries) in enumerate(zip(self._streams.orders, self._streams.deliveries, strict=True)):
            write_file(self._data / "orders" / f"{number:04}.json", orders)
            write_file(self._data / "deliveries" / f"{number:04}.json", deliveries)
            if self._stopped.wait(self._pause):
                return


def prepare_folders(data: Path) -> None:
    """Make the folders of both sources."""
    for name in ("orders", "deliveries"):
        (data / name).mkdir(parents=True, exist_ok=True)


def write_file(path: Path, rows: Iterable[OrderRow | DeliveryRow]) -> None:
    """Write rows as lines of JSON. The file appears whole: Spark passes over names that begin with a dot."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("".join(f"{row_as_json(row)}\n" for row in rows), "utf-8")
    hidden.replace(path)


def row_as_json(row: OrderRow | DeliveryRow) -> str:
    """A row as a line of JSON.

    >>> row_as_json(DeliveryRow(11, 1, "north", datetime.fromisoformat("2026-03-02T06:00:00.250+00:00")))
    '{"delivery_id": 11, "order_id": 1, "courier": "north", "delivery_time": "2026-03-02T06:00:00.250Z"}'
    """
    return json.dumps({field.name: _plain(getattr(row, field.name)) for field in fields(row)})


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return float(value) if isinstance(value, Decimal) else value
