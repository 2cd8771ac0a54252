"""Copies of tables that are read once: which copy belongs to which declaration.

A copy lies in ``static/<table>-<digest>`` of the storage folder, with its declaration beside the rows. So a table that
is declared otherwise is read again into a folder of its own, queries that have read the earlier copy keep theirs, and
two starts at once never write into the same folder. Earlier versions had one folder, ``static/<table>``, and no
declaration: it counts while its files have the declared columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from watersmeet.catalog import Source
from watersmeet.formats import source_format
from watersmeet.physical.identity import digest

FOLDER, DECLARATION = "static", "_declaration.json"
"""The folder of the storage, and the file beside a copy: Spark takes it for hidden."""

BY_PLACE = frozenset({"csv"})
"""Formats whose columns are read by their place in a row, whatever they are called."""

Declaration = Mapping[str, Any]
"""What decides about the rows of a copy: table, format, changes, options, columns, and their order where it counts."""


def declaration_of(source: Source) -> dict[str, Any]:
    """What a table is declared as. Secrets are not in it.

    >>> declaration_of(Source("Items", (), kind="table", format="json", options={"path": "/data", "static": "true"}))
    {'table': 'items', 'format': 'json', 'changes': None, 'options': {'path': '/data'}, 'columns': {}}
    """
    options = source_format(source).row_options
    declaration: dict[str, Any] = {
        "table": source.name.lower(),
        "format": str(source.format).lower(),
        "changes": source.changes,
        "options": {name: options[name] for name in sorted(options) if name != "static"},
        "columns": {field.name.lower(): field.type.upper() for field in source.fields},
    }
    # Which column of a file a name stands for is a matter of its place there.
    return {**declaration, "order": list(declaration["columns"])} if declaration["format"] in BY_PLACE else declaration


def copy_of(source: Source, storage: Path) -> Path:
    """The folder of the copy that was made of a table as it is declared, or in which that is to be made."""
    wanted = declaration_of(source)
    made = storage / FOLDER / f"{source.name}-{digest(wanted)[:8]}"
    others = (folder for folder, declaration in copies_of(source, storage) if _covers(declaration, wanted))
    return made if made.is_dir() else next(others, made)


def copies_of(source: Source, storage: Path) -> Iterator[tuple[Path, Declaration]]:
    """All copies of a table that there are, with their declarations as far as these are known."""
    name = re.compile(rf"{re.escape(source.name)}(-[0-9a-f]{{8}})?", re.IGNORECASE)
    folders = sorted((storage / FOLDER).iterdir()) if (storage / FOLDER).is_dir() else []
    for folder in (path for path in folders if path.is_dir() and name.fullmatch(path.name)):
        file = folder / DECLARATION
        declaration: Declaration = (
            json.loads(file.read_text("utf-8")) if file.is_file() else {"columns": _columns(folder)}
        )
        if declaration.get("table", source.name.lower()) == source.name.lower():
            yield folder, declaration


def copy_read(source: Source, storage: Path, chosen: Path, files: Collection[str]) -> str | None:
    """How a copy was declared that is among these ``files``, if it is another than the chosen one; None: it is not."""
    for folder, declaration in copies_of(source, storage):
        inside = f"{folder.absolute()}/"
        if folder != chosen and any(file.startswith(inside) for file in files):
            return _difference(declaration, declaration_of(source))
    return None


def write_declaration(source: Source, folder: Path) -> None:
    """Write down what a copy was made of."""
    (folder / DECLARATION).write_text(json.dumps(declaration_of(source), indent=2) + "\n", "utf-8")


def _covers(declaration: Declaration, wanted: Declaration) -> bool:
    """Whether a copy has the rows and the columns of a declaration; what is not known of it is as it should be."""
    same = all(declaration.get(name, wanted[name]) == wanted[name] for name in ("format", "changes", "options"))
    columns, order = declaration["columns"], wanted.get("order", [])
    # A copy of an earlier version tells the order only as its files have it.
    same = same and [*declaration.get("order", columns)][: len(order)] == order
    return same and all(columns.get(name) in (type_, "") for name, type_ in wanted["columns"].items())


def _columns(folder: Path) -> dict[str, str]:
    """The columns of a copy without a declaration; their types as declared are not known."""
    file = next(folder.glob("*.parquet"), None)
    return {} if file is None else dict.fromkeys((name.lower() for name in pq.read_schema(file).names), "")


def _difference(declaration: Declaration, wanted: Declaration) -> str:
    """How a declaration has changed, in words."""
    for name, now in wanted["columns"].items():
        was = declaration["columns"].get(name)
        if was is None:
            return f"its column `{name}` was not declared"
        if was not in (now, ""):
            return f"its column `{name}` was {was}, now it is {now}"
    order = wanted.get("order", [])
    if [*declaration.get("order", declaration["columns"])][: len(order)] != order:
        return "its columns were in another order, and a row has them by their place"
    was, now = declaration.get("options", {}), wanted["options"]
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            return f"its `{name}` was `{was.get(name, '')}`, now it is `{now.get(name, '')}`"
    return f"it was `USING {declaration.get('format')}`, now it is `USING {wanted['format']}`"
