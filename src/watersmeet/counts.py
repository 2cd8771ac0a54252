"""Numbers of things, as people write them."""

from __future__ import annotations


def format_count(number: int, thing: str) -> str:
    """So many of a thing, one of which is ``thing``.

    >>> format_count(1, "row"), format_count(1200, "row"), format_count(0, "batch")
    ('1 row', '1,200 rows', '0 batches')
    >>> format_count(2, "query"), format_count(2, "key")
    ('2 queries', '2 keys')
    """
    return f"{number:,} {thing if number == 1 else _plural(thing)}"


def _plural(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith(("ch", "s")) else f"{thing}s"
