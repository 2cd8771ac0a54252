"""Protobuf's own messages for moments and durations: seconds, and nanoseconds of one.

Spark counts microseconds: what is less than one is cut off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.formats.binary.reader import Reader

MOMENT = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_MICROS, _NANOS = 1_000_000, 1_000_000_000
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999."""
_SECONDS_OF_A_DURATION = 315_576_000_000


def timestamps(reader: Reader, parts: Any) -> Any:
    """Moments; a message that is out of the years that Protobuf has is bad."""
    seconds, nanos = _parts(parts)
    bad = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _NANOS)
    return _to_micros(reader, seconds, nanos // 1000, bad).cast(pa.timestamp("us", "UTC"))


def durations(reader: Reader, parts: Any) -> Any:
    """Durations; a message of which one part is positive and the other negative is bad."""
    seconds, nanos = _parts(parts)
    # Not by the absolute value: that of the smallest number is negative.
    bad = (seconds < -_SECONDS_OF_A_DURATION) | (seconds > _SECONDS_OF_A_DURATION) | (np.abs(nanos) >= _NANOS)
    bad |= np.sign(seconds) * np.sign(nanos) < 0
    return _to_micros(reader, seconds, np.sign(nanos) * (np.abs(nanos) // 1000), bad).cast(pa.duration("us"))


def parts_of(column: Any) -> Any:
    """Moments or durations as the messages that they are; a moment has no negative nanoseconds."""
    micros = np.asarray(column.cast(pa.int64()))
    if pa.types.is_duration(column.type):
        seconds = np.sign(micros) * (np.abs(micros) // _MICROS)
    else:
        seconds = micros // _MICROS
    nanos = ((micros - seconds * _MICROS) * 1000).astype(np.int32)
    return pa.StructArray.from_arrays([pa.array(seconds), pa.array(nanos)], names=["seconds", "nanos"])


def _parts(parts: Any) -> tuple[Any, Any]:
    return np.asarray(parts.field(0)), np.asarray(parts.field(1)).astype(np.int64)


def _to_micros(reader: Reader, seconds: Any, micros: Any, bad: Any) -> Any:
    reader.fail(np.flatnonzero(bad))
    return pa.array(np.where(bad, 0, seconds) * _MICROS + np.where(bad, 0, micros))
