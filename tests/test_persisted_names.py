"""Names that are stored, scraped or typed: a rename in the code must not reach them.

Each list in `persisted/` is compared with what the code writes or accepts now. A line that goes breaks a checkpoint, a
dashboard or a script of a user; a new one is added with ``WRITE_GOLDEN=1``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.case_files import FILES, case_name

import watersmeet
import watersmeet.calls
from watersmeet.errors import WatersmeetError
from watersmeet.local.cells import NeedsSparkError
from watersmeet.local.query import MemoryStore
from watersmeet.logical.passes.settings import SETTINGS
from watersmeet.metrics import prometheus
from watersmeet.metrics.metrics import OperatorMetrics, SideMetrics
from watersmeet.metrics.progress import Progress
from watersmeet.operators import FAMILIES, OPERATORS
from watersmeet.operators.core.operator import StepError
from watersmeet.operators.state.format import decode_rows
from watersmeet.physical import limits_of, plan_query
from watersmeet.physical.identity import digest, identity_of
from watersmeet.project import Spec
from watersmeet.queries import analyze
from watersmeet.tools.testing import Case, CaseBatch, read_case
from watersmeet.tools.testing.case import parse_case, script_of
from watersmeet.tools.testing.execute import outcomes_of

GOLDEN = Path(__file__).parent / "persisted"


def identities() -> Iterator[str]:
    """By case, the identity of its query: a checkpoint is refused if its own differs in anything."""
    for path in FILES:
        try:
            script = script_of(read_case(path))
            queries = analyze(script)
        except WatersmeetError:
            continue
        for number, query in enumerate(queries):
            identity = identity_of(plan_query(query, OPERATORS, late="side_output", limits=limits_of(script)), 2)
            yield f"{case_name(path)} {number} {digest(identity)}"


def state_names() -> Iterator[str]:
    """What a shard stores: names of values, fields of the directory, columns beside those of the query."""
    stored: set[tuple[str, bytes]] = set()
    put = MemoryStore.put

    def record(self: MemoryStore, name: str, value: bytes) -> None:
        stored.add((name, bytes(value)))
        put(self, name, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "put", record)
        for path in FILES:
            with suppress(WatersmeetError, NeedsSparkError, StepError):
                outcomes_of(read_case(path))
    for name, value in stored:
        kind, *parts = name.split("/")
        if kind == "directory":
            directory = json.loads(value)
            yield from (f"directory .{key}" for key in directory)
            yield from (f"directory .runs.{spine}" for spine in directory["runs"])
            yield from (f"directory .numbers.{key}" for key in directory["numbers"])
        elif kind == "run":
            # The names of others are expressions of the query, as they are in its identity.
            for column in decode_rows(value).schema.names:
                if fold := re.fullmatch(r"([a-z ]+)\(.*\)(#\d+)", column):
                    yield f"fold {fold[1]} {fold[2]}"
                elif column.startswith("#"):
                    yield f"run {column}"
        else:
            yield "/".join([kind, *parts[:-1], "<block>"])


def metrics() -> Iterator[str]:
    """The metrics that can be scraped, with their types."""
    groups: list[Any] = [inner for outer in vars(prometheus).values() if isinstance(outer, tuple) for inner in outer]
    for metric in (*vars(prometheus).values(), *groups):
        if dataclasses.is_dataclass(metric) and not isinstance(metric, type) and hasattr(metric, "help"):
            yield f"watersmeet_{getattr(metric, 'name')} {getattr(metric, 'type')}"  # noqa: B009 - of any class


def progress_fields() -> Iterator[str]:
    """The fields of a line of a history, which `ws.progress` has, too."""
    for owner, kind in (("batch", Progress), ("operator", OperatorMetrics), ("side", SideMetrics)):
        yield from (f"{owner} {field.name}" for field in dataclasses.fields(kind))


def settings() -> Iterator[str]:
    """The settings that SET accepts."""
    yield from SETTINGS
    for family in FAMILIES.values():
        yield from family.analyze.settings


def conditions() -> Iterator[str]:
    """The conditions of refusals."""
    yield from tomllib.loads((Path(watersmeet.__file__).parent / "errors.toml").read_text("utf-8"))


def calls() -> Iterator[str]:
    """The Python calls with their arguments, and the fields of what they return."""
    for name in watersmeet.__all__:
        value = getattr(watersmeet, name)
        if inspect.isclass(value):
            old_names: Mapping[str, str] = getattr(value, "__deprecated_names__", {})
            public = (member for member in (*dir(value), *old_names) if not member.startswith("_"))
            yield from (f"{name}.{member}" for member in public if not hasattr(Exception, member))
        elif callable(value):
            parameters = dict(inspect.signature(value).parameters)
            if match := re.fullmatch(r"Unpack\[(\w+)\]", str(getattr(parameters.get("options"), "annotation", ""))):
                del parameters["options"]
                yield from (f"{name}({option})" for option in getattr(watersmeet.calls, match[1]).__annotations__)
            yield from (
                f"{name}({argument})" for argument in (*parameters, *getattr(value, "__deprecated_names__", ()))
            )
        yield name


def files_of_users() -> Iterator[str]:
    """The fields of watersmeet.yml and of cases."""
    yield from (f"watersmeet.yml {field}" for field in Spec.model_fields)
    yield from (f"case {field.name}" for field in dataclasses.fields(Case))
    yield from (f"batch of a case {field.name}" for field in dataclasses.fields(CaseBatch))
    if parse_case("{name: a, sql: b, batches: [{marks: {l: 1}}]}").batches[0].input_watermarks:
        yield "batch of a case marks"


LISTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "identities": identities,
    "state": state_names,
    "metrics": metrics,
    "progress": progress_fields,
    "settings": settings,
    "conditions": conditions,
    "calls": calls,
    "files": files_of_users,
}


@pytest.mark.parametrize("name", LISTS)
def test_persisted_names_stay(name: str) -> None:
    lines = "".join(f"{line}\n" for line in sorted(set(LISTS[name]())))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(lines, "utf-8")
    assert lines == path.read_text("utf-8")
