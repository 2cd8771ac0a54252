"""Rows that cannot be read, and what becomes of them."""

from __future__ import annotations

from typing import Literal, get_args

from watersmeet.catalog import Source
from watersmeet.errors import Refusal

MALFORMED = "malformed"
"""Our own option of a source, and behind INTO the words that keep such rows."""
SHOWN = "_malformed"
"""The column in which a result shows them beside its rows."""

MalformedPolicy = Literal["fail", "drop"]
"""``fail``: the query stops and names the first one. ``drop``: they are counted and left out."""


def policy_for(source: Source, unsaid: MalformedPolicy = "fail") -> MalformedPolicy:
    """What becomes of the malformed rows of a source.

    >>> policy_for(Source("orders", (), options={"malformed": "drop"}))
    'drop'
    """
    return "drop" if source.lowercase_options.get(MALFORMED, unsaid).lower() == "drop" else "fail"


def wrong_policy(source: Source, *, may_be: bool) -> Refusal | None:
    """The refusal of what the option says; ``may_be``: whether the source can have malformed rows at all."""
    said = source.lowercase_options.get(MALFORMED)
    if said is None or (may_be and said.lower() in get_args(MalformedPolicy)):
        return None
    reason = "`malformed` can be 'fail' or 'drop'" if may_be else "its rows cannot be malformed"
    hint = "write `malformed 'drop'`, or leave it out." if may_be else "leave it out: only text and records have it."
    parameters = {"format": str(source.format), "option": f"{MALFORMED} '{said}'", "reason": reason, "hint": hint}
    return Refusal("WRONG_OPTION", parameters)
