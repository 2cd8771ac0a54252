"""Numbers of things, as people write them."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """So many of a thing, one of which is ``thing``.

    >>> counted(1, "row"), counted(1200, "row"), counted(0, "batch"), counted(2, "query"), counted(2, "key")
    ('1 row', '1,200 rows', '0 batches', '2 queries', '2 keys')
    """
    return f"{number:,} {thing if number == 1 else _several(thing)}"


def _several(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith(("ch", "s")) else f"{thing}s"
