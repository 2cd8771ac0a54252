"""Settings: names, values, the pass over SET statements, and the dialects of ON (LN-5..LN-8).

Lenses takes equalities with one side on each side of ``=``, and one-sided conditions, joined by AND. Watersmeet runs
others too; ``SET watersmeet.dialect`` chooses:

- ``watersmeet``: every condition that an operator can run; AND binds before OR, unless only the other reading can run
- ``lenses``: what Lenses takes; where AND before OR gives what it refuses, OR binds before AND, with a warning
- ``lenses-strict``: what Lenses takes, AND always before OR
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from zoneinfo import available_timezones

from watersmeet.catalog import NOWHERE
from watersmeet.duration import parse_duration
from watersmeet.errors import Refusal, did_you_mean
from watersmeet.logical.expressions import COMPARISONS, Expr, alternative, conjuncts
from watersmeet.logical.nodes import Join, Relation, Script, Setting, aliases
from watersmeet.logical.passes.comparisons import compare
from watersmeet.logical.passes.conditions import key_of
from watersmeet.logical.passes.draft import Draft, format_list
from watersmeet.logical.passes.meaning import is_resolved
from watersmeet.logical.query import QueryWarning
from watersmeet.logical.words import expression_in_words

DIALECT = "watersmeet.dialect"

DIALECTS = ("watersmeet", "lenses", "lenses-strict")

Mistakes = Callable[[Join], int]
"""Counts the refusals of a join in one reading."""


def read_conditions(draft: Draft, mistakes: Mistakes) -> Draft:
    """The draft with the ON of every join as its dialect reads it, and what the dialect refuses."""
    reading = _read_relation(draft, draft.query.relation, mistakes)
    query = replace(draft.query, relation=reading.relation)
    return replace(draft, query=query).with_refusals(reading.refusals).with_warnings(reading.warnings)


@dataclass(frozen=True)
class _Reading:
    relation: Relation
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[QueryWarning, ...] = ()

    def after(self, *others: _Reading) -> _Reading:
        """The same, with the refusals and warnings of the relations inside it first."""
        refusals = (refusal for other in (*others, self) for refusal in other.refusals)
        warnings = (warned for other in (*others, self) for warned in other.warnings)
        return _Reading(self.relation, tuple(refusals), tuple(warnings))


def _read_relation(draft: Draft, relation: Relation, mistakes: Mistakes) -> _Reading:
    below = [_read_relation(draft, side, mistakes) for side in relation.inputs]
    relation = relation.with_inputs([side.relation for side in below])
    if isinstance(relation, Join) and relation.has_plain_sides and is_resolved(relation.on):
        return _read_join(draft, relation, mistakes).after(*below)
    return _Reading(relation).after(*below)


def _read_join(draft: Draft, join: Join, mistakes: Mistakes) -> _Reading:
    assert join.on is not None, "a join without a condition has no readings"
    dialect = draft.setting(DIALECT, DIALECTS[0]).lower()
    other = alternative(join.on)
    turned = None if other is None else replace(join, on=other)
    is_alternative_valid = turned is not None and any(_breaches(join)) and not any(_breaches(turned))
    if dialect not in DIALECTS[1:]:
        if turned is not None and mistakes(turned) < mistakes(join):
            return _Reading(turned, warnings=(_warn_lenses_reading(join.on, turned.on),))
        return _Reading(join, warnings=(_warn_standard_reading(join.on, other),) if is_alternative_valid else ())
    if turned is not None and is_alternative_valid and dialect == "lenses":
        return _Reading(turned, warnings=(_warn_lenses_reading(join.on, turned.on),))
    meant = other if is_alternative_valid else None
    return _Reading(join, tuple(_refusal(draft, join, part, meant) for part in _breaches(join)))


def _warn_lenses_reading(condition: Expr, taken: Expr | None) -> QueryWarning:
    assert taken is not None, "the other reading has a condition as well"
    message = (
        "AND before OR would be refused here, so the condition is read as Lenses does: "
        f"`{expression_in_words(taken)}`; write these brackets."
    )
    return QueryWarning(message, condition.span)


def _warn_standard_reading(condition: Expr, other: Expr | None) -> QueryWarning:
    assert other is not None, "only a condition with two readings is warned of"
    message = (
        f"AND goes before OR, as in standard SQL: `{expression_in_words(condition)}`. Lenses would read "
        f"`{expression_in_words(other)}`; add brackets to say which."
    )
    return QueryWarning(message, condition.span)


def _breaches(join: Join) -> Iterator[Expr]:
    """The parts of ON that Lenses refuses."""
    left, right = _sides(join)
    for part in conjuncts(join.on):
        is_single = bool(part.sources) and (part.sources <= left or part.sources <= right)
        if not is_single and key_of(part, left, right) is None:
            yield part


def _sides(join: Join) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(aliases(join.left)), frozenset(aliases(join.right))


def _refusal(draft: Draft, join: Join, part: Expr, meant: Expr | None) -> Refusal:
    left, right = _sides(join)
    place, cause = _cause(part, left, right)
    sides = {"left": draft.names_of(aliases(join.left)), "right": draft.names_of(aliases(join.right))}
    return draft.refusal(
        "NOT_IN_DIALECT",
        part.span if place.span == NOWHERE else place.span,
        dialect=draft.setting(DIALECT, DIALECTS[0]).lower(),
        condition=expression_in_words(part),
        **sides,
        cause=cause,
        hint=f"write {_suggestion(part, meant)}, or `SET {DIALECT} = watersmeet`, which can run it.",
    )


def _cause(part: Expr, left: frozenset[str], right: frozenset[str]) -> tuple[Expr, str]:
    """The part of a condition that is to blame, and for what."""
    if not part.sources:
        return part, "names no column of either side"
    if part.op == "=":
        mixed = next((arg for arg in part.args if arg.sources & left and arg.sources & right), part)
        return mixed, "mixes both sides: each side of = may name only one"
    if part.op in COMPARISONS:
        return part, f"compares the sides by {part.op}: only = is allowed"
    if part.op == "or":
        return part, "OR over both sides: only AND may combine conditions on different sides"
    return part, "names both sides, but is not an equality"


def _suggestion(part: Expr, meant: Expr | None) -> str:
    """The suggestion for a part that Lenses refuses: the probable intention, or the same equality in its form."""
    if meant is not None:
        return f"`{expression_in_words(meant)}`"
    equality = compare(part) if part.op == "=" else None
    if equality is None or equality.casts or any(constant.value for constant in equality.constants):
        return "an equality with one side on each side of `=`"
    return f"`{expression_in_words(equality.high)} = {expression_in_words(equality.low)}`"


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
    """The duration of a setting in microseconds; None if it is not a duration above 0.

    >>> parse_setting_duration("1 hour"), parse_setting_duration("soon")
    (3600000000, None)
    """
    try:
        return parse_duration(value) or None
    except ValueError:
        return None


SIZE_EXPECTED = "expected a number of bytes above 0"
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_setting_size(value: str) -> int | None:
    """The bytes of a setting; None if it is not a size above 0.

    >>> parse_setting_size("8 GB"), parse_setting_size("512MiB"), parse_setting_size("much")
    (8000000000, 536870912, None)
    """
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        return None
    unit = 1024 if match[3] else 1000
    return int(match[1]) * unit ** ("kmgt".index(match[2].lower()) + 1 if match[2] else 0) or None


def _set_hint(name: str, example: object) -> str:
    return f"write `SET {name} = {example}`."


OVERFLOW = ("fail", "drop_oldest")
"""The policy of a join that would store more rows than allowed: the query stops, or the oldest rows are dropped."""

OPERATOR_CHAINING, SWITCH = "watersmeet.operator_chaining", ("on", "off")
"""Whether joins of one key that feed each other are chained; a checkpoint keeps the value it was begun with."""

SHARED_VIEWS = "watersmeet.shared_views"
"""Whether INSERTs that read one view run as one query; without it, those that have no checkpoints of their own."""

STATE_CACHE = "watersmeet.state.cache"
"""The number of bytes of the states of all queries that an executor has at hand on its local disk."""

JSON_IN_WORKERS = "watersmeet.json_in_workers"
"""Whether workers decode the JSON of records, where that gives the same as in Spark."""

DEPRECATED_SETTINGS: Mapping[str, str] = {"watersmeet.together": OPERATOR_CHAINING}
"""Old names of settings, each with the new one."""

SETTINGS: Mapping[str, SettingSpec] = {
    "watersmeet.shards": number("watersmeet.shards", 8),
    "watersmeet.state.max_rows": number("watersmeet.state.max_rows", 1000000),
    "watersmeet.state.overflow": SettingSpec(
        OVERFLOW.__contains__,
        f"expected {' or '.join(OVERFLOW)}",
        "write `SET watersmeet.state.overflow = drop_oldest`.",
    ),
    STATE_CACHE: SettingSpec(
        lambda value: parse_setting_size(value) is not None, SIZE_EXPECTED, _set_hint(STATE_CACHE, "8 GB")
    ),
    OPERATOR_CHAINING: choice(OPERATOR_CHAINING, SWITCH, "off"),
    SHARED_VIEWS: choice(SHARED_VIEWS, SWITCH, "off"),
    JSON_IN_WORKERS: choice(JSON_IN_WORKERS, SWITCH, "on"),
    DIALECT: choice(DIALECT, DIALECTS, "lenses"),
    **{old: choice(new, SWITCH, "off") for old, new in DEPRECATED_SETTINGS.items()},
}
"""The settings of Watersmeet that belong to no family. Spark's settings pass through unchanged."""


def check_settings(script: Script, further: Iterable[Mapping[str, SettingSpec]]) -> tuple[Refusal, ...]:
    """The refusals of the settings of a script; ``further`` are those of the families."""
    settings = {**SETTINGS, **{name: spec for family_settings in further for name, spec in family_settings.items()}}
    return tuple(refusal for setting in script.settings for refusal in _check(script, setting, settings))


def warn_deprecated_settings(script: Script) -> Iterator[QueryWarning]:
    """A warning for every setting that is set by its old name."""
    for setting in script.settings:
        new = DEPRECATED_SETTINGS.get(setting.name.lower())
        if new is not None:
            yield QueryWarning(f"`{setting.name}` is deprecated: use `{new}`.", setting.span)


TIME_ZONE = "spark.sql.session.timeZone"
_SHORT_ZONES = frozenset({
    "ACT", "AET", "AGT", "ART", "AST", "BET", "BST", "CAT", "CNT", "CST", "CTT", "EAT", "ECT", "EST", "HST", "IET",
    "IST", "JST", "MIT", "MST", "NET", "NST", "PLT", "PNT", "PRT", "PST", "SST", "UT", "VST",
})  # fmt: skip
"""The short names of time zones that Spark knows besides those of places."""


def time_zone_hint(zone: str) -> str:
    """The hint for a time zone that is not one.

    >>> time_zone_hint("Europe/Berln")
    "did you mean `Europe/Berlin`? An offset such as '+02:00' is a time zone, too."
    """
    return f"{did_you_mean(zone, available_timezones() or ['UTC'])} An offset such as '+02:00' is a time zone, too."


def warn_unknown_zone(script: Script) -> Iterator[QueryWarning]:
    """A warning for a time zone that is a word and not known here; Spark may know other offsets."""
    zones = available_timezones()
    for setting in script.settings:
        is_word = "/" in setting.value or (setting.value.isalpha() and len(setting.value) > 1)
        is_unknown = is_word and zones and setting.value not in {*zones, *_SHORT_ZONES}
        if setting.name.lower() == TIME_ZONE.lower() and is_unknown:
            message = f"`{setting.value}` is not a known time zone: {time_zone_hint(setting.value)}"
            yield QueryWarning(message, setting.span)


_ZONE_HINT = f"write `SET {TIME_ZONE} = Europe/Berlin`, for example."
_FOREIGN_SETTINGS = {
    "timezone": _ZONE_HINT,
    "time_zone": _ZONE_HINT,
    "table.local-time-zone": _ZONE_HINT,
    "auto.offset.reset": "write `startingOffsets 'earliest'` into the OPTIONS of the source.",
    "parallelism.default": "write `SET watersmeet.shards = 4`, for example.",
    "streaming_parallelism": "write `SET watersmeet.shards = 4`, for example.",
    "table.exec.state.ttl": "bound the state in the query: `WITHIN 1 HOUR` behind a join, or GROUP BY a window.",
}
"""Settings of other systems, each with what to write for it."""


def _check(script: Script, setting: Setting, settings: Mapping[str, SettingSpec]) -> Iterator[Refusal]:
    name, place = setting.name.lower(), script.place(setting.span)
    if name.startswith("spark."):
        return
    spec = settings.get(name)
    if spec is None:
        suggestion = _FOREIGN_SETTINGS.get(name) or did_you_mean(setting.name, settings)
        parameters = {"setting": setting.name, "suggestion": suggestion}
        yield Refusal("UNKNOWN_SETTING", parameters, place)
    elif not spec.accepts(setting.value.strip()):
        parameters = {"argument": name, "value": setting.value, "reason": spec.reason, "hint": spec.hint}
        yield Refusal("WRONG_ARGUMENT", parameters, place)
