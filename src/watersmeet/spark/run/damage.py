"""Checkpoints of which a file is torn or gone, with the name of that file.

What is small is read before Spark starts: what a start of Spark reads at once, and fails at with words of its own. A
damaged file of the state is met by a worker only; then its name is in what Spark says, or follows from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.spark.private.files import Folder
from watersmeet.spark.private.told import is_state_schema, is_whole_changelog, unread_state

OFFSETS_FOLDER, COMMITS_FOLDER = "offsets", "commits"
"""The folders of a checkpoint with a file per batch: from when it was planned, and from when it was done."""

RESUME_HINT = "if the sink is ahead of the copy, see `watersmeet run --sink-resume`"

_TORN = "is incomplete, or was not written by Spark"


def check_files(folder: Folder, checkpoint: str, anew: str) -> None:
    """Refuse a checkpoint that Spark could not read; ``anew`` says how to start without it."""
    for file, reason in _damages(folder):
        raise damage_refusal(checkpoint, f"{checkpoint}/{file}", reason, anew)


def state_damage(text: str) -> WatersmeetError | None:
    """The refusal of a checkpoint whose state Spark could not read, if that is what an error of a query says."""
    location = unread_state(text)
    if location is None:
        return None
    checkpoint, file = location
    if file is None:
        file, reason = _find_broken_file(Path(checkpoint), text)
    else:
        reason = _TORN if Path(file).exists() else "is missing"
    return damage_refusal(checkpoint, file, reason, "have the query write to a new sink, with another name and path.")


def damage_refusal(checkpoint: str, file: str, reason: str, anew: str) -> WatersmeetError:
    """The refusal of a checkpoint for a file of it."""
    hint = f"restore that file or the checkpoint from a copy ({RESUME_HINT}); or {anew}"
    return refuse("DAMAGED_CHECKPOINT", checkpoint=checkpoint, file=file, reason=reason, hint=hint)


def _damages(folder: Folder) -> Iterator[tuple[str, str]]:
    planned, done = batch_numbers(folder, OFFSETS_FOLDER), batch_numbers(folder, COMMITS_FOLDER)
    if not planned and not done:
        return
    named = folder.read("metadata")
    if named is None or '"id"' not in named or not _is_json(named):
        yield "metadata", _TORN if named else "is empty or missing"
    if done and max(done) not in planned:
        yield f"{OFFSETS_FOLDER}/{max(done)}", "is missing"
    # Those that Spark reads: of a batch that is to be repeated it needs the one before, too.
    read = [
        *(f"{OFFSETS_FOLDER}/{number}" for number in planned[-2:]),
        *(f"{COMMITS_FOLDER}/{number}" for number in done[-1:]),
    ]
    read += [*_source_files(folder), *_operator_files(folder)]
    for file in read:
        text = folder.read(file)
        reason = "is missing" if text is None else _damage(text)
        if reason is not None:
            yield file, reason
    for schemas in (f"state/{operator}/_stateSchema/default" for operator in folder.names("state")):
        for name in folder.names(schemas):
            if not name.startswith(".") and not is_state_schema(folder.read(f"{schemas}/{name}") or ""):
                yield f"{schemas}/{name}", _TORN
    lines = [len((folder.read(f"{OFFSETS_FOLDER}/{number}") or "").splitlines()) for number in planned[-2:]]
    if lines and lines[-1] < lines[0]:
        yield f"{OFFSETS_FOLDER}/{planned[-1]}", _TORN


def _find_broken_file(checkpoint: Path, text: str) -> tuple[str, str]:
    """The file of a state that is broken, as far as it can be seen from outside, else their folder, and why."""
    changes = {file: file.read_bytes() for file in sorted(checkpoint.glob("state/*/*/*.changelog"))}
    is_checkable = any(map(is_whole_changelog, changes.values()))
    for file, data in changes.items():
        if not data or (is_checkable and not is_whole_changelog(data)):
            return str(file), _TORN if data else "is empty"
    causes = re.findall(r"^Caused by: (.*)$", text, re.MULTILINE)
    return str(checkpoint / "state"), f"could not be loaded: {causes[-1] if causes else 'Spark does not say why'}"


def _source_files(folder: Folder) -> Iterator[str]:
    """Where sources of files have written down what they read last; what others write there is their own affair."""
    for log in (f"sources/{source}" for source in folder.names("sources")):
        for file in (f"{log}/{number}" for number in batch_numbers(folder, log)[-1:]):
            if (folder.read(file) or "").startswith('v1\n{"path"'):
                yield file


def _operator_files(folder: Folder) -> Iterator[str]:
    """What the operators have written down of themselves with the last batch."""
    for log in (f"state/{operator}/_metadata/v2" for operator in folder.names("state")):
        yield from (f"{log}/{number}" for number in batch_numbers(folder, log)[-1:])


def batch_numbers(folder: Folder, name: str) -> list[int]:
    """The batches that have a file in a folder of a checkpoint, in order."""
    return sorted(int(file) for file in folder.names(name) if file.isdecimal())


def is_whole(folder: Folder, file: str) -> bool:
    """Whether a file of Spark's is there, with all that belongs to it."""
    text = folder.read(file)
    return text is not None and _damage(text) is None


def _damage(text: str) -> str | None:
    r"""What is wrong with a file of Spark's: a version, then lines of JSON, where a dash stands for nothing.

    >>> _damage('v1\n{"a": 1}\n-'), _damage(""), _damage('v1\n{"a"')
    (None, 'is empty', 'is incomplete, or was not written by Spark')
    """
    if not text.strip():
        return "is empty"
    version, *lines = text.splitlines()
    is_whole = re.fullmatch(r"v\d+", version) and lines and all(line == "-" or _is_json(line) for line in lines)
    return None if is_whole else _TORN


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
