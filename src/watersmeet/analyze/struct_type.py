"""The fields inside a type of Spark's DDL."""

from __future__ import annotations

from watersmeet.catalog import Field


def fields_inside(type: str) -> tuple[Field, ...] | None:
    """The fields of a STRUCT, nothing for a plain type, None where only Spark can tell (arrays, maps, variants).

    >>> fields_inside("STRUCT<city: STRING, geo: STRUCT<x: INT, y: INT>>")[1].type
    'STRUCT<x: INT, y: INT>'
    >>> fields_inside("BIGINT")
    ()
    """
    word = type.strip().upper()
    if word.startswith(("ARRAY", "MAP", "VARIANT")) or word == "":
        return None
    if not word.startswith("STRUCT"):
        return ()
    inner = type.strip()[len("STRUCT") :].strip()
    return tuple(_field(part) for part in _split(inner[1:-1]))


def element_of(type: str) -> str | None:
    """The type of an array's elements; "" where only Spark can tell; None for what is no array.

    >>> element_of("ARRAY<STRUCT<x: INT>>"), element_of(""), element_of("INT")
    ('STRUCT<x: INT>', '', None)
    """
    text = type.strip()
    if text == "":
        return ""
    if not text.upper().startswith("ARRAY"):
        return None
    return text[len("ARRAY") :].strip()[1:-1].strip()


def _field(text: str) -> Field:
    if text.startswith("`"):
        end = text.index("`", 1)
        return Field(text[1:end], _type(text[end + 1 :]))
    end = next((i for i, letter in enumerate(text) if letter in ": "), len(text))
    return Field(text[:end], _type(text[end:]))


def _type(text: str) -> str:
    return text.strip().removeprefix(":").strip()


def _split(text: str) -> list[str]:
    parts, depth, start = list[str](), 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []
