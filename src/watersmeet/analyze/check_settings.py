"""The pass that looks at the SET statements of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from watersmeet.analyze.dialect import DIALECT, DIALECTS
from watersmeet.analyze.draft import listed
from watersmeet.analyze.sync_join import DISORDER
from watersmeet.analyze.table_joins import LATE, LOAD, RETENTION, WAITING, duration_set
from watersmeet.analyze.window_join import EMIT_DISCARDED
from watersmeet.catalog import Source
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.nodes import Script, Setting


@dataclass(frozen=True)
class Known:
    """A setting there is: which values it takes, and how to say so."""

    accepts: Callable[[str], bool]
    reason: str
    hint: str


def _is_positive(value: str) -> bool:
    return value.isascii() and value.isdigit() and int(value) > 0


def _is_policy(value: str) -> bool:
    return value in OVERFLOW


def _is_disorder(value: str) -> bool:
    return value.lower() in ("drop", "error")


def _is_late_table(value: str) -> bool:
    return value.lower() in ("reemit", "ignore")


def _is_load(value: str) -> bool:
    return value.lower() in ("first", "together")


def _is_duration(value: str) -> bool:
    return (duration_set(value) or 0) > 0


def _is_dialect(value: str) -> bool:
    return value.lower() in DIALECTS


def _is_truth(value: str) -> bool:
    return value.lower() in ("true", "false")


OVERFLOW = ("fail", "drop_oldest")
"""What happens when a join would keep more rows than it may: the query stops, or the oldest rows are given up."""

SETTINGS: Mapping[str, Known] = {
    "watersmeet.shards": Known(_is_positive, "it is a whole number above 0", "write `SET watersmeet.shards = 8`."),
    "watersmeet.state.max_rows": Known(
        _is_positive, "it is a whole number above 0", "write `SET watersmeet.state.max_rows = 1000000`."
    ),
    "watersmeet.state.overflow": Known(
        _is_policy, f"it is {' or '.join(OVERFLOW)}", "write `SET watersmeet.state.overflow = drop_oldest`."
    ),
    DISORDER: Known(_is_disorder, "it is drop or error", f"write `SET {DISORDER} = error`."),
    EMIT_DISCARDED: Known(_is_truth, "it is true or false", f"write `SET {EMIT_DISCARDED} = true`."),
    DIALECT: Known(_is_dialect, f"it is {listed(DIALECTS, 'or')}", f"write `SET {DIALECT} = lenses`."),
    LATE: Known(_is_late_table, "it is reemit or ignore", f"write `SET {LATE} = ignore`."),
    RETENTION: Known(_is_duration, "it is a length of time above 0", f"write `SET {RETENTION} = 1 hour`."),
    WAITING: Known(_is_positive, "it is a whole number above 0", f"write `SET {WAITING} = 100000`."),
    LOAD: Known(_is_load, "it is first or together", f"write `SET {LOAD} = first`."),
}
"""The settings of Watersmeet. Those of Spark pass through as they are."""


def check_settings(script: Script, sources: Mapping[str, Source]) -> tuple[Refusal, ...]:
    """What is wrong with the settings of a script."""
    return tuple(refusal for setting in script.settings for refusal in _check(script, setting))


def _check(script: Script, setting: Setting) -> Iterator[Refusal]:
    name, place = setting.name.lower(), script.place(setting.span)
    if name.startswith("spark."):
        return
    known = SETTINGS.get(name)
    if known is None:
        parameters = {"setting": setting.name, "suggestion": did_you_mean(setting.name, SETTINGS)}
        yield Refusal("UNKNOWN_SETTING", parameters, place)
    elif not known.accepts(setting.value.strip()):
        parameters = {"argument": name, "value": setting.value, "reason": known.reason, "hint": known.hint}
        yield Refusal("WRONG_ARGUMENT", parameters, place)
