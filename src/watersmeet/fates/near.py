"""Near misses: keys that would be equal but for how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from watersmeet.fates.words import value_in_words

Key = tuple[Any, ...]

_ZONE = timedelta(minutes=15)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NearKeys:
    """Keys that are known, by what is left of them when it no longer matters how they are written.

    ``shown``: the values of keys that are not counted as they are written: structs, for instance.

    >>> near = NearKeys([("a-7 ",), ("007",)])
    >>> near.describe_nearest(("A-7",))
    "But there is 'a-7 ', which differs by case and by blanks."
    >>> near.describe_nearest((7,))
    "But there is '007', which differs by leading zeros and by type."
    """

    def __init__(self, keys: Iterable[Key], shown: Mapping[Key, Sequence[Any]] | None = None) -> None:
        self._shown = shown or {}
        self._keys_by_form: dict[Key, list[Key]] = {}
        for key in keys:
            self._keys_by_form.setdefault(tuple(_normal_form(value) for value in key), []).append(key)

    def describe_nearest(self, key: Key) -> str | None:
        """What a key that is not known is nearly equal to, as a sentence; None: to nothing."""
        for other in self._keys_by_form.get(tuple(_normal_form(value) for value in key), ()):
            ways = [_difference(own_value, other_value) for own_value, other_value in zip(key, other, strict=True)]
            if all(way is not None for way in ways):
                differences = dict.fromkeys(part for way in ways for part in way or ())
                shown = ", ".join(value_in_words(value) for value in self._shown.get(other, other))
                return f"But there is {shown}, which differs by {' and by '.join(differences)}."
        return None


def _normal_form(value: Any) -> Any:
    """The same for all values that `_difference` takes for nearly equal."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) % _ZONE
    text = str(value).strip()
    number = _number(text)
    return text.casefold() if number is None else number.normalize().as_tuple().digits


def _difference(value: Any, other: Any) -> tuple[str, ...] | None:
    """By what two values differ that would else be equal; nothing: they are equal; None: they differ otherwise."""
    if type(value) is type(other) and value == other:
        return ()
    if isinstance(value, datetime) and isinstance(other, datetime):
        return _hours(value, other)
    texts = (str(value), str(other))
    by_type = () if isinstance(value, str) == isinstance(other, str) else ("type",)
    stripped = [text.strip() for text in texts]
    blanks = ("blanks",) if list(texts) != stripped else ()
    numbers = [_number(text) for text in stripped]
    if numbers[0] is not None and numbers[0] == numbers[1]:
        return (*blanks, *_as_numbers(stripped), *by_type)
    if stripped[0].casefold() == stripped[1].casefold():
        return (*(("case",) if stripped[0] != stripped[1] else ()), *blanks, *by_type)
    # Of whole numbers, which count, one is often a hundred times another by chance.
    measured = isinstance(value, Decimal | float) or isinstance(other, Decimal | float)
    if measured and numbers[0] and numbers[1] and _is_scaled(numbers[0], numbers[1]):
        return ("scale", *by_type)
    return None


def _as_numbers(texts: list[str]) -> tuple[str, ...]:
    bare = [text.lstrip("+-") for text in texts]
    zeros = any(text != text.lstrip("0") and text.lstrip("0")[:1].isdigit() for text in bare)
    if zeros:
        return ("leading zeros",)
    return ("scale",) if texts[0] != texts[1] else ()


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text) if text and text[-1].isdigit() else None
    except InvalidOperation:
        return None


def _is_scaled(value: Decimal, other: Decimal) -> bool:
    """Whether one is a hundred or a thousand times the other, as cents are of euros."""
    try:
        return abs(value) in {abs(other) * factor for factor in (100, 1000)} or abs(other) in {
            abs(value) * factor for factor in (100, 1000)
        }
    except InvalidOperation:
        return False


def _hours(value: datetime, other: datetime) -> tuple[str, ...] | None:
    gap = abs(
        (value if value.tzinfo else value.replace(tzinfo=UTC)) - (other if other.tzinfo else other.replace(tzinfo=UTC))
    )
    is_zone = gap % _ZONE == timedelta(0) and gap <= timedelta(hours=14)
    return (f"a time zone ({gap})",) if is_zone else None
