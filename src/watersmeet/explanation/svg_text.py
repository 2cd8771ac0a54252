"""How wide text is in a drawing, and how it is broken into lines that fit."""

from __future__ import annotations

from collections.abc import Iterator
from unicodedata import east_asian_width

# Thousandths of the font size for the characters from space to tilde. They are those of DejaVu Sans, the widest of the
# fonts that a drawing asks for, so that no text outgrows its box wherever it is shown.
_ASCII = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337,
    636, 636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531,
    1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787,
    603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500,
    500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
    635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
)  # fmt: skip
_OTHER, _WIDE = 1000, 1400


def text_width(text: str, size: float) -> float:
    """The width of a text in a font of that size, rather too large than too small.

    >>> text_width("WITHIN", 10), text_width("within", 10)
    (36.9, 30.34)
    """
    return sum(_width(character) for character in text) * size / 1000


def _width(character: str) -> int:
    place = ord(character) - 32
    if 0 <= place < len(_ASCII):
        return _ASCII[place]
    return _WIDE if east_asian_width(character) in "WF" else _OTHER


def broken(text: str, size: float, most: float) -> list[str]:
    """The text in lines that are at most so wide, broken at spaces, and inside a word only where it fits no line.

    >>> broken("rows are kept until later", 10, 80)
    ['rows are kept', 'until later']
    """
    lines: list[str] = []
    for word in _pieces(text, size, most):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= most:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pieces(text: str, size: float, most: float) -> Iterator[str]:
    for word in text.split():
        rest = word
        while text_width(rest, size) > most:
            fits = max(n for n in range(1, len(rest) + 1) if n == 1 or text_width(rest[:n], size) <= most)
            yield rest[:fits]
            rest = rest[fits:]
        if rest:
            yield rest
