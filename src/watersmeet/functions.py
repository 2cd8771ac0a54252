"""The functions that Spark has by itself, known without a JVM: their names, and how many arguments each takes.

``functions.txt`` has a line for each, written by ``python -m tests.spark.builtin_functions`` from a running Spark. A
name alone may be called with any number of arguments, or Spark does not tell which.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

FOREIGN_FUNCTIONS = {
    "proctime": "`current_timestamp()`", "mz_now": "`current_timestamp()`", "getdate": "`current_timestamp()`",
    "sysdate": "`current_timestamp()`", "gen_random_uuid": "`uuid()`", "newid": "`uuid()`",
    "tumble_start": "`window.start`, with `GROUP BY window(t, '1 hour')`",
    "tumble_end": "`window.end`, with `GROUP BY window(t, '1 hour')`",
    "hop_start": "`window.start`, with `GROUP BY window(t, '1 hour', '10 minutes')`",
    "hop_end": "`window.end`, with `GROUP BY window(t, '1 hour', '10 minutes')`",
    "iif": "`if(a, b, c)`", "group_concat": "`listagg(a, ',')`", "latest_by_offset": "`max_by(a, t)`",
    "earliest_by_offset": "`min_by(a, t)`", "argmax": "`max_by(a, t)`", "argmin": "`min_by(a, t)`",
    "strftime": "`date_format(t, 'yyyy-MM-dd')`", "timestamptostring": "`date_format(t, 'yyyy-MM-dd')`",
    "format_timestamp": "`date_format(t, 'yyyy-MM-dd')`", "strptime": "`to_timestamp(a, 'yyyy-MM-dd')`",
    "stringtotimestamp": "`to_timestamp(a, 'yyyy-MM-dd')`", "parse_timestamp": "`to_timestamp(a, 'yyyy-MM-dd')`",
    "epoch_ms": "`timestamp_millis(a)`", "from_epoch_milliseconds": "`timestamp_millis(a)`",
    "json_value": "`get_json_object(a, '$.b')`", "json_extract": "`get_json_object(a, '$.b')`",
    "json_query": "`get_json_object(a, '$.b')`", "extractjsonfield": "`get_json_object(a, '$.b')`",
    "json_extract_scalar": "`get_json_object(a, '$.b')`", "json_object": "`to_json(named_struct('a', a))`",
    "array_to_string": "`array_join(a, ',')`", "string_to_array": "`split(a, ',')`", "unnest": "`LATERAL a AS element`",
    "generate_series": "`sequence(1, 10)`", "regexp_matches": "`regexp_like(a, 'b')`", "tostring": "`string(a)`",
    "toint32": "`int(a)`", "toint64": "`bigint(a)`", "tofloat64": "`double(a)`", "todate": "`to_date(a)`",
    "todatetime": "`to_timestamp(a)`", "strpos": "`instr(a, 'b')`", "string_length": "`length(a)`",
    "toyyyymmdd": "`date_format(t, 'yyyyMMdd')`", "datetime": "`timestamp(a)`", "is_null": "`a IS NULL`",
}  # fmt: skip
"""Functions of other systems, and what to write for them."""


@cache
def builtin_signatures() -> Mapping[str, frozenset[int]]:
    """The numbers of arguments that each function takes, by its name in small letters; none: any number, or unknown.

    >>> sorted(builtin_signatures()["upper"]), "uper" in builtin_signatures()
    ([1], False)
    """
    lines = files("watersmeet").joinpath("functions.txt").read_text("utf-8").splitlines()
    return {name: frozenset(map(int, counts)) for name, *counts in map(str.split, lines)}


def function_hint(name: str) -> str:
    """What whoever calls a function that Spark does not have may have meant.

    >>> function_hint("uper"), function_hint("PROCTIME")
    ('did you mean `upper`?', 'write `current_timestamp()`.')
    """
    lowered = name.lower()
    if lowered in FOREIGN_FUNCTIONS:
        return f"write {FOREIGN_FUNCTIONS[lowered]}."
    near = get_close_matches(lowered, builtin_signatures(), n=1, cutoff=0.75)
    return f"did you mean `{near[0]}`?" if near else "look it up among the functions of Spark SQL."
