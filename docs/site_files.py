"""The files of the site, for MkDocs: those of docs/, the documents beside it, and whatever they link to.

A page keeps its place in the repository, so that links lead to the same thing here and there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
FILES = ("*.md", "docs/**/*.md", "docs/assets/*", "examples/**/*.md")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
INSIDE = ("docs/design/", "docs/spec/", "CHANGELOG.md", "CONTRIBUTING.md")
LINK = re.compile(r"\]\(([^)#\s]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """All files under their names in the repository, and the navigation with its patterns filled in."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    for path in _paths():
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    pages = [file.src_uri for file in files.documentation_pages()]
    config.nav = _fill_patterns(config.nav or [], pages)
    return files


def _paths() -> list[str]:
    files = [path for pattern in FILES for path in ROOT.glob(pattern)]
    linked = [path for file in files if file.suffix == ".md" for path in _link_targets(file)]
    return sorted({str(path.relative_to(ROOT)) for path in (*files, *linked)})


def _link_targets(document: Path) -> Iterator[Path]:
    """The files that a document links to. Other links, and those that lead nowhere, MkDocs judges."""
    for link in LINK.findall(FENCE.sub("", document.read_text("utf-8"))):
        path = (document.parent / link).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


def _fill_patterns(nav: list[dict[str, list[str]]], pages: list[str]) -> list[dict[str, list[str]]]:
    """The sections, each pattern replaced by the pages that no other line names; a README comes first."""
    named = {line for section in nav for lines in section.values() for line in lines}
    filled: list[dict[str, list[str]]] = []
    for title, lines in ((title, lines) for section in nav for title, lines in section.items()):
        section: list[str] = []
        for line in lines:
            matches = [page for page in pages if _fits(page, line) and page not in named] if "*" in line else [line]
            named.update(matches)
            section += sorted(matches, key=lambda page: (not page.endswith("README.md"), page))
        filled.append({title: section})
    return filled


def _fits(page: str, pattern: str) -> bool:
    """Whether a page is one of a pattern, in which * stands for no slash."""
    return fnmatchcase(page, pattern) and page.count("/") == pattern.count("/")


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn the text after the language of a block (refused, or the name of a file) into its title.

    Pages about the inside of things are found behind those about their use.
    """
    if page.file.src_uri.startswith(INSIDE):
        page.meta["search"] = {"boost": 0.3}
    return re.sub(r"^```(\w+) ([^\n=]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


class Docstrings(Extension):
    """Docstrings as Markdown: examples as blocks, and one colon in ``Example::``."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring:
            text = re.sub(r"::\n(?=\n +)", ":\n", obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(r"\n```pycon\n\g<0>\n```", text)
