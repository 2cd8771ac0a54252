"""The functions that Spark has by itself, known without a JVM: their names, and how many arguments each takes.

``functions.txt`` has a line for each, written by ``python -m tests.spark.builtin_functions`` from a running Spark. A
name alone may be called with any number of arguments, or Spark does not tell which.

Nondeterministic calls are known by name, too: random numbers, clocks, files, the session. Only Spark can judge
functions that users add.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

FOREIGN_FUNCTIONS = {
    "proctime": "`current_timestamp()`", "mz_now": "`current_timestamp()`", "getdate": "`current_timestamp()`",
    "sysdate": "`current_timestamp()`", "gen_random_uuid": "`uuid()`", "newid": "`uuid()`",
    "tumble_start": "`window.start`, with `GROUP BY window(t, '1 hour')`",
    "tumble_end": "`window.end`, with `GROUP BY window(t, '1 hour')`",
    "hop_start": "`window.start`, with `GROUP BY window(t, '1 hour', '10 minutes')`",
    "hop_end": "`window.end`, with `GROUP BY window(t, '1 hour', '10 minutes')`",
    "iif": "`if(a, b, c)`", "group_concat": "`listagg(a, ',')`", "latest_by_offset": "`max_by(a, t)`",
    "earliest_by_offset": "`min_by(a, t)`", "argmax": "`max_by(a, t)`", "argmin": "`min_by(a, t)`",
    "arg_max": "`max_by(a, t)`", "arg_min": "`min_by(a, t)`", "jsonb_agg": "`to_json(collect_list(a))`",
    "json_arrayagg": "`to_json(collect_list(a))`", "json_agg": "`to_json(collect_list(a))`",
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
    """Return the hint for a function that Spark does not have.

    >>> function_hint("uper"), function_hint("PROCTIME")
    ('did you mean `upper`?', 'write `current_timestamp()`.')
    """
    lowered = name.lower()
    if lowered in FOREIGN_FUNCTIONS:
        return f"write {FOREIGN_FUNCTIONS[lowered]}."
    near = get_close_matches(lowered, builtin_signatures(), n=1, cutoff=0.75)
    return f"did you mean `{near[0]}`?" if near else "look it up among the functions of Spark SQL."


Cause = Literal["random", "clock", "place", "session"]
"""The reason why a call gives another value: it draws one for each row, it reads the clock, it depends on where a row
is read, or on the session, which the next run of a query may have another one of.
"""

NAMES: dict[str, Cause] = {
    **dict.fromkeys(
        ("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "reflect", "java_method", "try_reflect"),
        "random",
    ),
    **dict.fromkeys(
        ("current_timestamp", "now", "current_date", "curdate", "current_time", "localtime", "localtimestamp"), "clock"
    ),
    **dict.fromkeys(
        ("monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start",
         "input_file_block_length"),
        "place",
    ),
    **dict.fromkeys(
        ("current_user", "user", "session_user", "current_catalog", "current_database", "current_schema",
         "current_path", "current_timezone", "version"),
        "session",
    ),
}  # fmt: skip
"""Spark's functions that give another value whatever their arguments are."""

_BARE = frozenset({"current_timestamp", "current_date", "current_time", "localtimestamp", "current_user"})
"""Those that may stand without brackets."""

_WORD = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\w+|\S", re.DOTALL)
_NAME = re.compile(r"\w+")
_TIME_TYPES = frozenset(
    {"date", "timestamp", "timestamp_ntz", "timestamp_ltz", "to_date", "try_to_date", "to_timestamp",
     "try_to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz"}
)  # fmt: skip
_TIME_WORDS = re.compile(r"['\"]\s*(now|today|tomorrow|yesterday)\b.*['\"]", re.IGNORECASE | re.DOTALL)
_SUSPECT = NAMES.keys() | _TIME_TYPES | {"unix_timestamp", "cast", "try_cast", "aes_encrypt"}


@dataclass(frozen=True)
class ImpureCall:
    """A call that can give another value when it is made again, at ``start`` to ``end`` of its text."""

    name: str
    cause: Cause
    start: int
    end: int


def impure_calls(text: str, columns: Sequence[tuple[int, int]] = ()) -> Iterator[ImpureCall]:
    """The calls in an expression that can give another value when they are made again.

    ``columns``: the stretches of the text that name columns.

    >>> [(call.name, call.cause) for call in impure_calls("concat(uuid(), 'rand()', CURRENT_DATE)")]
    [('uuid()', 'random'), ('CURRENT_DATE', 'clock')]
    >>> [call.name for call in impure_calls("unix_timestamp() - unix_timestamp(t)")]
    ['unix_timestamp()']
    >>> [c.name for c in impure_calls("builtin.uuid() || `system`.builtin.rand() || my.uuid() || s.builtin.now()")]
    ['uuid()', 'rand()']
    """
    if _SUSPECT.isdisjoint(word.lower() for word in _NAME.findall(text)):
        return
    tokens = [*_WORD.finditer(text)]
    named = frozenset(place for start, end in columns for place in range(start, end))
    words = [word[0] for word in tokens]
    for n, word in enumerate(tokens):
        name = word[0].strip("`").lower()
        if name not in _SUSPECT or word.start() in named or not _is_builtin(words[:n]):
            continue
        cause = _cause(name, words[n + 1 :])
        if cause is not None:
            shown = f"{word[0].strip('`')}()" if words[n + 1 : n + 2] == ["("] else word[0]
            yield ImpureCall(shown, cause, word.start(), word.end())


def _is_builtin(before: list[str]) -> bool:
    """Whether the name behind these words is one of Spark's own functions: alone, or behind ``system.builtin``."""
    if before[-1:] != ["."]:
        return True
    names = [word.strip("`").lower() for word in before[-4:-1]]
    return names[-1:] == ["builtin"] and (names[-2:-1] != ["."] or names[:1] == ["system"])


def is_time_of_now(text: str) -> bool:
    """Whether Spark reads a literal, cast to a time, as one that depends on the clock.

    >>> is_time_of_now("'today'"), is_time_of_now("'2026-01-01'")
    (True, False)
    """
    return _TIME_WORDS.fullmatch(text) is not None


def _cause(name: str, following: list[str]) -> Cause | None:
    """The reason why a name, with the words behind it, gives another value each time; None: it does not."""
    is_call = following[:1] == ["("]
    if name in NAMES and (is_call or name in _BARE):
        return NAMES[name]
    if name == "unix_timestamp" and following[:2] == ["(", ")"]:
        return "clock"
    if name in _TIME_TYPES and any(is_time_of_now(word) for word in following[: 1 + is_call]):
        return "clock"
    if name in ("cast", "try_cast") and is_call and is_time_of_now(following[1]):
        return "clock" if any(word.lower() in _TIME_TYPES for word in following[2:4]) else None
    return "random" if name == "aes_encrypt" and is_call and _draws_vector(following[1:]) else None


def _draws_vector(following: list[str]) -> bool:
    """Whether ``aes_encrypt`` draws an initialization vector: none is given, and the mode needs one."""
    depth, args = 0, [[""]]
    for word in following:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
        if depth < 0:
            break
        if word == "," and not depth:
            args.append([])
        else:
            args[-1].append(word)
    mode = "".join(args[2]).strip("'\"").upper() if len(args) > 2 else "GCM"
    return len(args) < 5 and mode != "ECB"
