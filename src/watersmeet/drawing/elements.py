"""Elements of an SVG, as text. Whatever comes from outside is escaped here."""

from __future__ import annotations

import re
from html import escape

Attribute = str | float | int | None


def xml(text: str) -> str:
    """Text as XML has it; characters that no XML may hold are replaced.

    >>> xml("<b>&</b>")
    '&lt;b&gt;&amp;&lt;/b&gt;'
    """
    return escape(re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text))


def element(name: str, /, *inside: str, **attributes: Attribute) -> str:
    """An element with what is inside it, which is XML already; ``_`` stands for ``-`` in names of attributes.

    >>> element("text", xml("a & b"), class_="key", font_size=11, x=1.0)
    '<text class="key" font-size="11" x="1">a &amp; b</text>'
    """
    attribute_text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{attribute_text}>{''.join(inside)}</{name}>" if inside else f"<{name}{attribute_text}/>"


def _value(value: str | float) -> str:
    return xml(value) if isinstance(value, str) else f"{round(value, 1):.10g}"


def text(content: str, x: float, y: float, style: str, anchor: str | None = None) -> str:
    """A line of text; ``anchor`` is ``middle`` or ``end`` where it does not begin at ``x``."""
    return element("text", xml(content), class_=style, x=x, y=y, text_anchor=anchor)


def line(x: float, y: float, to_x: float, to_y: float, style: str) -> str:
    """A straight line."""
    return element("line", class_=style, x1=x, y1=y, x2=to_x, y2=to_y)


def shape(name: str, x: float, y: float, style: str = "") -> str:
    """One of the shapes that say what became of a row, around a point."""
    made = f"shape {name} {style}".rstrip()
    match name:
        case "dot":
            return element("circle", class_=made, cx=x, cy=y, r=4.5)
        case "ring":
            return element("circle", class_=made, cx=x, cy=y, r=5.5)
        case "cross":
            return _path(made, f"M {x - 5:g} {y - 5:g} l 10 10 M {x - 5:g} {y + 5:g} l 10 -10")
        case "cap":
            return _path(made, f"M {x:g} {y - 7:g} v 14")
        case "gate":
            return _path(made, f"M {x - 5:g} {y - 6:g} l 5 6 l -5 6")
        case "arrow":
            return _path(made, f"M {x - 1:g} {y - 5:g} l 8 5 l -8 5 z")
        case _:
            return _path(made, f"M {x - 6:g} {y:g} h 12")


def _path(style: str, way: str) -> str:
    return element("path", class_=style, d=way)
