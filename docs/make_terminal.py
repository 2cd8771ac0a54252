"""Records a real run in a terminal and draws it as docs/images/terminal.svg, a picture that moves.

``python docs/make_terminal.py`` takes as long as its commands do, less than two minutes. The picture shows it at twice
the speed, and shortens what stands still for long; nothing else is changed.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.terminal_theme import SVG_EXPORT_THEME as THEME
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "terminal.svg"
COMMANDS = ("watersmeet demo", "watersmeet why watersmeet-demo orders order_id=115")
COLUMNS, ROWS = 104, 30
SPEED, STEP = 2.0, 0.4
"""How much faster it is shown, and how far screens are apart at least, in seconds of the run."""
SLOWEST, LAST = 0.9, 6.0
"""For how long a screen is shown that stood still, and the last one of a command, in seconds."""
WIDTH, HEIGHT = 7.8, 17
CODES = re.compile(r"\x1b\[(\d*)A|(\x1b\[2K)|(\n)|(\x1b\[[\d;]*m|[^\x1b\r\n]+)|\x1b\[\?\d+[hl]|\r")
"""Up, a line erased, the next line, what is written with its colours; and what does not matter here."""

TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>A terminal: {title}</title>
<style>
text {{ font: 13px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: {ink}; white-space: pre }}
g {{ visibility: hidden }}
{rules}
</style>
<defs>
{texts}
</defs>
<rect width="100%" height="100%" rx="8" fill="{ground}"/>
<circle cx="20" cy="18" r="6" fill="#ff5f57"/>
<circle cx="40" cy="18" r="6" fill="#febc2e"/>
<circle cx="60" cy="18" r="6" fill="#28c840"/>
<svg x="16" y="50" overflow="visible">
{groups}
</svg>
</svg>
"""


class Screen:
    """The screen of a terminal to which a program writes whole lines and rewrites earlier ones."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = [*lines, ""]
        self.row = len(self.lines) - 1

    def write(self, text: str) -> None:
        """Take in what the program has written."""
        for code in CODES.finditer(text):
            up, erased, down, written = code.groups()
            if up is not None:
                self.row = max(self.row - int(up or 1), 0)
            elif erased:
                self.lines[self.row] = ""
            elif down:
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif written:
                self.lines[self.row] += written


def _visible_lines(lines: list[str]) -> tuple[str, ...]:
    """The lines that fit, the last ones; what is longer than a line goes on in the next."""
    code = r"(?:\x1b\[[\d;]*m)*"
    letters = [re.findall(f"{code}[^\\x1b]{code}", line) for line in lines]
    folded = [
        "".join(line[start : start + COLUMNS]) for line in letters for start in range(0, max(len(line), 1), COLUMNS)
    ]
    return tuple(folded[-ROWS:])


def frames() -> Iterator[tuple[tuple[str, ...], float]]:
    """The screens, each with its duration in seconds."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            prompt = "\x1b[1;32m$\x1b[0m "
            for end in range(0, len(command) + 1, 4):
                yield _visible_lines([*lines, prompt + command[:end]]), 0.1
            lines.append(prompt + command)
            screen = Screen(lines)
            before, since = _visible_lines(screen.lines), time.monotonic()
            for text in _run_command(command, folder):
                screen.write(text)
                now, seen = time.monotonic(), _visible_lines(screen.lines)
                if seen != before and now - since > STEP:
                    yield before, min((now - since) / SPEED, SLOWEST)
                    before, since = seen, now
            yield _visible_lines(screen.lines), LAST
            lines = screen.lines


def _run_command(command: str, folder: str) -> Iterator[str]:
    """The output of a command in a terminal, piece by piece."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    arguments = [sys.executable, "-m", "watersmeet.cli", *shlex.split(command)[1:]]
    program = subprocess.Popen(arguments, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environ)
    os.close(theirs)
    output = b""
    while True:
        try:
            output += os.read(ours, 1 << 16)
        except OSError:  # the terminal of a program that has ended
            break
        # a table that is redrawn comes in pieces
        if not select.select([ours], [], [], 0.05)[0]:
            yield output.decode().replace(folder, "~")
            output = b""
    yield output.decode().replace(folder, "~")
    if program.wait():
        raise SystemExit(f"{command} failed")


def draw(shown: list[tuple[tuple[str, ...], float]]) -> str:
    """The frames in a loop; only the last one for a reader who prefers reduced motion."""
    names: dict[str, str] = {}
    groups, rules, begun = [], [], 0.0
    total = sum(seconds for _, seconds in shown)
    for number, (lines, seconds) in enumerate(shown):
        for line in lines:
            names.setdefault(line, f"l{len(names)}")
        uses = [f'<use href="#{names[line]}" y="{HEIGHT * i}"/>' for i, line in enumerate(lines) if line.strip()]
        groups.append(f'<g id="f{number}">{"".join(uses)}</g>')
        start, end = (f"{100 * moment / total:.2f}%" for moment in (begun, begun + seconds))
        rules.append(
            f"@keyframes k{number} {{ 0% {{ visibility: {'hidden' if number else 'visible'} }} "
            f"{start} {{ visibility: visible }} {end}, 100% {{ visibility: hidden }} }}\n"
            f"#f{number} {{ animation: k{number} {total:.1f}s step-end infinite }}"
        )
        begun += seconds
    texts = [f'<text id="{name}">{_spans(line)}</text>' for line, name in names.items() if line.strip()]
    still = f"g {{ animation: none !important }} #f{len(shown) - 1} {{ visibility: visible }}"
    rules.append(f"@media (prefers-reduced-motion) {{ {still} }}")
    return TEMPLATE.format(
        width=f"{COLUMNS * WIDTH + 32:.0f}", height=ROWS * HEIGHT + 56,
        title=escape(", then ".join(COMMANDS)), ink=THEME.foreground_color.hex, ground=THEME.background_color.hex,
        rules="\n".join(rules), texts="\n".join(texts), groups="\n".join(groups),
    )  # fmt: skip


def _spans(line: str) -> str:
    """A line with its colours; each piece has its column, so that letters of any width stand where they should."""
    text = Text.from_ansi(line)
    pieces, column = [], 0
    for piece in text.divide(sorted({end for span in text.spans for end in (span.start, span.end)})):
        style = piece.spans[0].style if piece.spans else ""
        said = "" if isinstance(style, str) else _look(style)
        if piece.plain.strip():
            pieces.append(f'<tspan x="{column * WIDTH:.1f}"{said}>{escape(piece.plain)}</tspan>')
        column += piece.cell_len
    return "".join(pieces)


def _look(style: object) -> str:
    colour, is_bold, is_dim = (getattr(style, name) for name in ("color", "bold", "dim"))
    said = f' fill="{colour.get_truecolor(THEME).hex}"' if colour and not colour.is_default else ""
    return said + (' font-weight="bold"' if is_bold else "") + (' opacity="0.6"' if is_dim else "")


if __name__ == "__main__":
    PICTURE.write_text(draw(list(frames())), "utf-8")
