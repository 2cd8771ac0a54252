"""Times as text that names the same instant everywhere: in UTC, whatever the time zone of the session is.

Text in the session's zone loses instants. Offsets of the nineteenth century have seconds, which no format of Spark's
shows (``+08:05`` stands for 8 hours, 5 minutes and 43 seconds in Asia/Shanghai), and where clocks are set back two
instants have one text.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DateType, TimestampNTZType, TimestampType

IN_UTC = {"timeZone": "UTC"}
"""The option of Spark's writers of text that shows times in UTC."""
EXACT = {
    **IN_UTC,
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options with which equal texts are equal times: Spark's own format has milliseconds."""
_OF_TEXT = frozenset({"json", "csv", "xml"})
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
_DAY = 86_400_000_000


def is_text(format_: str) -> bool:
    """Whether a format of Spark writes times as text."""
    return format_.lower() in _OF_TEXT


def text_options(format_: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a writer with times in UTC, unless it writes no text or the options say how times are written.

    >>> text_options("json", {"compression": "gzip"})
    {'timeZone': 'UTC', 'compression': 'gzip'}
    >>> text_options("csv", {"timestampformat": "HH:mm"})
    {'timestampformat': 'HH:mm'}
    """
    names = {name.lower() for name in options}
    is_open = is_text(format_) and names.isdisjoint({"timezone", "timestampformat"})
    return {**IN_UTC, **options} if is_open else dict(options)


def text_in_utc(time: Column) -> Column:
    """A TIMESTAMP as Spark shows it in UTC, with all its digits."""
    micros = F.unix_micros(time)
    rest = micros % _DAY
    days = ((micros - rest).cast("decimal(20,0)") / F.lit(_DAY).cast("decimal(20,0)")).cast("int")
    seconds = (rest.cast("decimal(18,0)") / F.lit(1_000_000).cast("decimal(7,0)")).cast("decimal(18,6)")
    midnight = F.lit("1970-01-01").cast("timestamp_ntz")
    return (midnight + F.make_dt_interval(days, secs=seconds)).cast("string")


def key_text(time: Column, zone: str) -> Column:
    """A TIMESTAMP as the text of a key: as Spark shows it in a session in UTC, elsewhere that with a ``Z``."""
    return time.cast("string") if zone in _UTC else F.concat(text_in_utc(time), F.lit("Z"))


def time_for_postgres(time: Column, type_: DataType) -> Column:
    """A TIMESTAMP, TIMESTAMP_NTZ or DATE as Postgres reads it, whatever its year is."""
    assert isinstance(type_, TimestampType | TimestampNTZType | DateType)
    text = text_in_utc(time) if isinstance(type_, TimestampType) else time.cast("string")
    year = F.regexp_extract(text, r"^([+-]?\d+)-", 1).cast("int")
    # Spark counts the year before 1 as 0, and shows a sign before years of more than four digits.
    digits = F.abs(F.when(year > 0, year).otherwise(year - 1)).cast("string")
    shown = F.when(F.length(digits) > 4, digits).otherwise(F.lpad(digits, 4, "0"))
    era = F.when(year > 0, "").otherwise(" BC")
    zone = F.lit("+00" if isinstance(type_, TimestampType) else "")
    rest = F.regexp_replace(text, r"^[+-]?\d+", "")
    return F.when(year.between(1, 9999), F.concat(text, zone)).otherwise(F.concat(shown, rest, zone, era))
