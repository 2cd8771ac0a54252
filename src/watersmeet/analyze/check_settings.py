"""The pass that looks at the SET statements of a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watersmeet.analyze.dialect import DIALECT, DIALECTS
from watersmeet.analyze.family import FamilyAnalysis
from watersmeet.analyze.settings import Known, choice, number
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.nodes import Script, Setting

OVERFLOW = ("fail", "drop_oldest")
"""What happens when a join would keep more rows than it may: the query stops, or the oldest rows are given up."""

SETTINGS: Mapping[str, Known] = {
    "watersmeet.shards": number("watersmeet.shards", 8),
    "watersmeet.state.max_rows": number("watersmeet.state.max_rows", 1000000),
    "watersmeet.state.overflow": Known(
        OVERFLOW.__contains__, f"it is {' or '.join(OVERFLOW)}", "write `SET watersmeet.state.overflow = drop_oldest`."
    ),
    DIALECT: choice(DIALECT, DIALECTS, "lenses"),
}
"""The settings of Watersmeet beside those of the families. Those of Spark pass through as they are."""


def check_settings(script: Script, families: tuple[FamilyAnalysis, ...]) -> tuple[Refusal, ...]:
    """What is wrong with the settings of a script."""
    settings = {**SETTINGS, **{name: known for family in families for name, known in family.settings.items()}}
    return tuple(refusal for setting in script.settings for refusal in _check(script, setting, settings))


def _check(script: Script, setting: Setting, settings: Mapping[str, Known]) -> Iterator[Refusal]:
    name, place = setting.name.lower(), script.place(setting.span)
    if name.startswith("spark."):
        return
    known = settings.get(name)
    if known is None:
        parameters = {"setting": setting.name, "suggestion": did_you_mean(setting.name, settings)}
        yield Refusal("UNKNOWN_SETTING", parameters, place)
    elif not known.accepts(setting.value.strip()):
        parameters = {"argument": name, "value": setting.value, "reason": known.reason, "hint": known.hint}
        yield Refusal("WRONG_ARGUMENT", parameters, place)
