"""Settings: which there are, which values they take, and the pass that looks at the SET statements of a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from watersmeet.analyze.dialect import DIALECT, DIALECTS
from watersmeet.analyze.draft import format_list
from watersmeet.duration import parse_duration
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.plan.nodes import Script, Setting


@dataclass(frozen=True)
class SettingSpec:
    """A setting there is: which values it takes, and how to say so."""

    accepts: Callable[[str], bool]
    reason: str
    hint: str


def choice(name: str, choices: tuple[str, ...], example: str) -> SettingSpec:
    """A setting that is one of several words, in any case."""
    return SettingSpec(
        lambda value: value.lower() in choices, f"expected {format_list(choices, 'or')}", _set_hint(name, example)
    )


def number(name: str, example: int) -> SettingSpec:
    """A setting that counts something."""
    return SettingSpec(is_positive, "expected a whole number above 0", _set_hint(name, example))


def duration(name: str, example: str) -> SettingSpec:
    """A setting that is a length of time."""
    return SettingSpec(
        lambda value: (parse_setting_duration(value) or 0) > 0,
        "expected a duration above 0",
        _set_hint(name, example),
    )


def is_positive(value: str) -> bool:
    """Whether a value is a whole number above 0."""
    return value.isascii() and value.isdigit() and int(value) > 0


def parse_setting_duration(value: str) -> int | None:
    """The microseconds that the value of a setting stands for; None if it is no length of time above 0.

    >>> parse_setting_duration("1 hour"), parse_setting_duration("soon")
    (3600000000, None)
    """
    try:
        return parse_duration(value) or None
    except ValueError:
        return None


def _set_hint(name: str, example: object) -> str:
    return f"write `SET {name} = {example}`."


OVERFLOW = ("fail", "drop_oldest")
"""What happens when a join would keep more rows than it may: the query stops, or the oldest rows are given up."""

OPERATOR_CHAINING, SWITCH = "watersmeet.together", ("on", "off")
"""Whether joins of one key that feed each other run in one operator; a checkpoint keeps to what it was begun with."""

SETTINGS: Mapping[str, SettingSpec] = {
    "watersmeet.shards": number("watersmeet.shards", 8),
    "watersmeet.state.max_rows": number("watersmeet.state.max_rows", 1000000),
    "watersmeet.state.overflow": SettingSpec(
        OVERFLOW.__contains__,
        f"expected {' or '.join(OVERFLOW)}",
        "write `SET watersmeet.state.overflow = drop_oldest`.",
    ),
    OPERATOR_CHAINING: choice(OPERATOR_CHAINING, SWITCH, "off"),
    DIALECT: choice(DIALECT, DIALECTS, "lenses"),
}
"""The settings of Watersmeet beside those of the families. Those of Spark pass through as they are."""


def check_settings(script: Script, further: Iterable[Mapping[str, SettingSpec]]) -> tuple[Refusal, ...]:
    """What is wrong with the settings of a script; ``further`` are those of the families."""
    settings = {**SETTINGS, **{name: spec for family_settings in further for name, spec in family_settings.items()}}
    return tuple(refusal for setting in script.settings for refusal in _check(script, setting, settings))


def _check(script: Script, setting: Setting, settings: Mapping[str, SettingSpec]) -> Iterator[Refusal]:
    name, place = setting.name.lower(), script.place(setting.span)
    if name.startswith("spark."):
        return
    spec = settings.get(name)
    if spec is None:
        parameters = {"setting": setting.name, "suggestion": did_you_mean(setting.name, settings)}
        yield Refusal("UNKNOWN_SETTING", parameters, place)
    elif not spec.accepts(setting.value.strip()):
        parameters = {"argument": name, "value": setting.value, "reason": spec.reason, "hint": spec.hint}
        yield Refusal("WRONG_ARGUMENT", parameters, place)
