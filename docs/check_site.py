"""Looks at the built site: nothing in it is fetched from elsewhere, and what its pages refer to is there.

``python docs/check_site.py build/site``, which `make docs` does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class References(HTMLParser):
    """The references of a page, those that a browser fetches by itself, and the named places in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the references of a tag."""
        for name, value in attrs:
            if (tag, name) in FETCHED:
                self.fetched.append(value or "")
            elif (tag, name) == ("a", "href"):
                self.linked.append(value or "")
            elif name in ("id", "name"):
                self.names.add(value or "")
            elif name == "class" and "mermaid" in (value or "").split():
                self.fetched.append("https://unpkg.com, for a diagram of Mermaid")


def problems(site: Path) -> Iterator[str]:
    """A line for each reference that leaves the machine or leads nowhere."""
    pages = {page: References(page) for page in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} has no pages"
    for page, found in pages.items():
        place = page.relative_to(site)
        yield from (f"{place} fetches {url}" for url in found.fetched if _is_external(url))
        # the page for addresses that do not exist cannot know its own
        if page.name != "404.html":
            inside = [url for url in (*found.fetched, *found.linked) if not urlsplit(url).scheme]
            yield from (
                f"{place} refers to {url}, which is not there" for url in inside if not _leads(page, url, pages)
            )
    for style in (*site.rglob("*.css"), *site.rglob("*.svg"), *pages):
        for url in IN_STYLES.findall(style.read_text("utf-8")):
            yield f"{style.relative_to(site)} fetches {url}"


def _is_external(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def _leads(page: Path, url: str, pages: dict[Path, References]) -> bool:
    parts = urlsplit(url)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].names


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
