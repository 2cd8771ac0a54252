"""Owners of checkpoints: the identity of their queries, locks on the storage, and damaged files.

The identity lies beside Spark's files. Runs share a storage folder and lock their queries in it, because two runs of
one query would repeat batches behind each other; changing or moving a checkpoint needs the whole folder. Locks end with
the process, and a network file system shares them between machines if it is mounted with locks. Any other storage has
leases instead (``spark/leases.py``). Programs that start queries themselves take neither.

Small files of a checkpoint are read before Spark starts, so that a torn or missing one is reported by name. Only a
worker finds a damaged file of the state; Spark's message then names it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from watersmeet.errors import WatersmeetError, refuse
from watersmeet.locations import OWNER, Storage, has_scheme, is_local
from watersmeet.logical.passes.settings import OPERATOR_CHAINING
from watersmeet.operators.core.identity import Identity, canonical_json
from watersmeet.operators.state.format import FORMAT, READABLE_FORMATS
from watersmeet.physical.chaining import ChainGroups
from watersmeet.physical.change import (
    ChangeEffect,
    ChangeRule,
    NamedIdentity,
    WatermarkValues,
    classify_edit,
    difference,
)
from watersmeet.physical.identity import digest
from watersmeet.spark.leases import NO_LEASES, Holder, Leases, hold_leases, holder_in_words
from watersmeet.spark.private.files import Folder
from watersmeet.spark.private.introspection import is_state_schema, is_whole_changelog, unread_state
from watersmeet.version import __version__


@dataclass(frozen=True)
class Owner:
    """The owner of a checkpoint: our queries in it; there are several where a join feeds another call.

    ``versions``: the versions that wrote it; ``format``: that of its states. ``accepted``: other operators whose shards
    may continue, by their fingerprint: those of the query before changes that were accepted. ``rebuilt``: the last
    batch whose rows its state was rebuilt from; None: it never was. ``changed``: the last batch of the query before it
    was changed in what becomes of its rows; None: it never was, or not since an earlier version. ``sinks``: those of
    its result, if it was started with several; none: the one that it is named after.
    """

    queries: tuple[NamedIdentity, ...]
    versions: dict[str, str] = field(default_factory=dict[str, str])
    format: int = FORMAT
    accepted: Mapping[str, Identity] = field(default_factory=dict[str, Identity])
    rebuilt: int | None = None
    changed: int | None = None
    sinks: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        """Into how many shards the state is split."""
        return int(self.queries[0].identity["shards"])

    @property
    def operator_chains(self) -> ChainGroups:
        """The stages of its first query that share an operator."""
        return chains_of(self.queries[0])

    @property
    def clocks(self) -> tuple[bool, ...]:
        """For each stage, query by query, whether it follows the clock."""
        return tuple(bool(follows) for query in self.queries for follows in query.identity["clocks"])

    def to_text(self, spark_version: str) -> str:
        """The record as stored."""
        queries = [{name: getattr(query, name) for name in ("identity", "words", "outcomes")} for query in self.queries]
        versions = {"watersmeet": __version__, "spark": spark_version}
        record: dict[str, Any] = {
            "format": FORMAT,
            **versions,
            "digest": _record_digest(queries, self.accepted),
            "queries": queries,
        }
        if self.accepted:
            record["accepted"] = dict(self.accepted)
        batches = {"rebuilt": self.rebuilt, "changed": self.changed}
        record |= {name: batch for name, batch in batches.items() if batch is not None}
        record |= {"sinks": list(self.sinks)} if self.sinks else {}
        return json.dumps(record, indent=2) + "\n"

    @staticmethod
    def from_text(text: str, checkpoint: str, restart_hint: str) -> Owner:
        """The owner from a stored record, or a refusal; ``restart_hint`` says how to start without the checkpoint."""
        file = f"{checkpoint}/{OWNER}"
        record = _record(text, checkpoint, file, restart_hint)
        format_version = record.get("format")
        if isinstance(format_version, int) and format_version > FORMAT:
            version = record.get("watersmeet", "unknown")
            raise refuse(
                "CHECKPOINT_OF_A_NEWER_VERSION",
                checkpoint=checkpoint,
                version=version,
                format=format_version,
                known=FORMAT,
            )
        queries, accepted = record.get("queries"), record.get("accepted", {})
        if (
            format_version not in READABLE_FORMATS
            or not queries
            or record.get("digest") != _record_digest(queries, accepted)
        ):
            raise _wrong_owner(checkpoint, file, "was not written by Watersmeet", restart_hint)
        versions = {name: str(record.get(name, "unknown")) for name in ("watersmeet", "spark")}
        owner_queries = tuple(
            NamedIdentity(query["identity"], query["words"], query.get("outcomes", "")) for query in queries
        )
        return Owner(
            owner_queries, versions, format_version, accepted, record.get("rebuilt"), record.get("changed"),
            tuple(record.get("sinks", ())),
        )  # fmt: skip

    def check(
        self,
        now: Owner,
        checkpoint: str,
        restart_hint: str,
        changing: Mapping[str, ChangeRule] | None = None,
        marks: Sequence[Sequence[WatermarkValues]] | None = None,
        gives_table: Callable[[Identity], bool] = lambda operator: False,
        rebuild: str = "",
    ) -> tuple[ChangeEffect, ...]:
        """Refuse other queries for the checkpoint; returns the effects of changes to the same ones.

        ``changing``: the changes that operators allow; without it none is. ``marks``: watermarks by query and stage.
        ``gives_table``: whether the result of an operator is a table. ``rebuild``: how to rebuild a state; without it
        none can be.
        """
        if len(self.queries) != len(now.queries):
            reason = f"it had {len(self.queries)} joins, now it has {len(now.queries)}"
            raise _another_query(checkpoint, reason, f"undo the change, or {restart_hint}")
        follows: list[ChangeEffect] = []
        for number, (was, query) in enumerate(zip(self.queries, now.queries, strict=True)):
            edit = classify_edit(was, query, changing or {}, None if marks is None else marks[number], gives_table)
            if edit.kind == "rebuilt" and rebuild:
                raise refuse(
                    "CHECKPOINT_TO_REBUILD", checkpoint=checkpoint, difference=edit.difference,
                    hint=f"{rebuild}, undo the change, or {restart_hint}",
                )  # fmt: skip
            if edit.kind in ("refused", "rebuilt") or (edit.kind == "continued" and changing is None):
                hint = _same_shards(was, query) or _same_operators(was, query) or f"undo the change, or {restart_hint}"
                raise _another_query(checkpoint, edit.difference or str(difference(was, query)), hint)
            follows += edit.effects
        return tuple(follows)


def chains_of(query: NamedIdentity) -> ChainGroups:
    """The stages of a query that share an operator."""
    return tuple(tuple(group) for group in query.identity.get("together", ()))


def last_change(checkpoint: Storage) -> tuple[int, str] | None:
    """The last batch before a query was changed or its state rebuilt, and which in words; None: never, or unknown."""
    try:
        record: Any = json.loads((checkpoint / OWNER).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    stored = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    words = {"rebuilt": "the state was rebuilt", "changed": "the query was changed"}
    changes = [(stored[name], text) for name, text in words.items() if isinstance(stored.get(name), int)]
    return max(changes, key=lambda change: change[0], default=None)


def move_owner(text: str, move: Callable[[str], str]) -> str:
    """A stored record, with its paths replaced by ``move``."""
    record: dict[str, Any] = json.loads(move(text))
    return (
        json.dumps({**record, "digest": _record_digest(record["queries"], record.get("accepted", {}))}, indent=2) + "\n"
    )


def _record_digest(queries: Any, accepted: Mapping[str, Any]) -> str:
    """The digest that shows whether a record was changed by hand."""
    return digest([queries, accepted]) if accepted else digest(queries)


def _same_shards(was: NamedIdentity, now: NamedIdentity) -> str | None:
    """The hint where only the number of shards differs."""
    shards = was.identity["shards"]
    if canonical_json({**now.identity, "shards": shards}) != canonical_json(was.identity):
        return None
    rescale = f"`watersmeet state rescale --shards {now.identity['shards']}`"
    return f"pass `shards={shards}` to the call, or write `SET watersmeet.shards = {shards}`; or run {rescale}."


def _same_operators(was: NamedIdentity, now: NamedIdentity) -> str | None:
    """The hint where only operator chaining differs."""
    before, after = ({**query.identity, "together": None} for query in (was, now))
    if canonical_json(before) != canonical_json(after):
        return None
    setting = "on" if "together" in was.identity else "off"
    return f'before the call, write `spark.conf.set("{OPERATOR_CHAINING}", "{setting}")`.'


def _another_query(checkpoint: str, reason: str, hint: str) -> WatersmeetError:
    return refuse("CHECKPOINT_OF_ANOTHER_QUERY", checkpoint=checkpoint, difference=reason, hint=hint)


def _wrong_owner(checkpoint: str, file: str, reason: str, restart_hint: str) -> WatersmeetError:
    hint = f"restore that file, or {restart_hint}"
    return refuse("WRONG_OWNER", checkpoint=checkpoint, file=file, reason=reason, hint=hint)


def _record(text: str, checkpoint: str, file: str, restart_hint: str) -> dict[str, Any]:
    if not text.strip():
        raise _wrong_owner(checkpoint, file, "is empty", restart_hint)
    try:
        record = json.loads(text)
    except ValueError:
        raise _wrong_owner(checkpoint, file, "is incomplete or not JSON", restart_hint) from None
    if not isinstance(record, dict):
        raise _wrong_owner(checkpoint, file, "was not written by Watersmeet", restart_hint)
    content = cast("dict[str, Any]", record)
    if "format" not in content and {"query", "shards"} <= content.keys():
        raise refuse("CHECKPOINT_WITHOUT_FORMAT", checkpoint=checkpoint, file=file, hint=restart_hint)
    return content


OFFSETS_FOLDER, COMMITS_FOLDER = "offsets", "commits"
"""The folders of a checkpoint with a file per batch: from when it was planned, and from when it was done."""

RESUME_HINT = "if the sink is ahead of the copy, see `watersmeet run --sink-resume`"

_TORN = "is incomplete, or was not written by Spark"


def check_files(folder: Folder, checkpoint: str, restart_hint: str) -> None:
    """Refuse a checkpoint that Spark could not read; ``restart_hint`` says how to start without it."""
    for file, reason in _damages(folder):
        raise damage_refusal(checkpoint, f"{checkpoint}/{file}", reason, restart_hint)


def state_damage(text: str) -> WatersmeetError | None:
    """The refusal of a checkpoint with an unreadable state, if that caused an error of a query."""
    location = unread_state(text)
    if location is None:
        return None
    checkpoint, file = location
    if file is None:
        file, reason = _find_broken_file(Path(checkpoint), text)
    else:
        is_remote = has_scheme(file) and not file.startswith("file:")
        reason = "could not be read" if is_remote else _TORN if Path(file).exists() else "is missing"
    return damage_refusal(checkpoint, file, reason, "have the query write to a new sink, with another name and path.")


def damage_refusal(checkpoint: str, file: str, reason: str, restart_hint: str) -> WatersmeetError:
    """The refusal of a checkpoint because of one of its files."""
    hint = f"restore that file or the checkpoint from a copy ({RESUME_HINT}); or {restart_hint}"
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
    # The files that Spark reads: to repeat a batch it also needs the one before.
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


def _find_broken_file(checkpoint: Storage, text: str) -> tuple[str, str]:
    """The file of a state that is broken, as far as it can be seen from outside, else their folder, and why."""
    changes = {file: file.read_bytes() for file in sorted(checkpoint.glob("state/*/*/*.changelog"))}
    is_checkable = any(map(is_whole_changelog, changes.values()))
    for file, data in changes.items():
        if not data or (is_checkable and not is_whole_changelog(data)):
            return str(file), _TORN if data else "is empty"
    causes = re.findall(r"^Caused by: (.*)$", text, re.MULTILINE)
    return str(checkpoint / "state"), f"could not be loaded: {causes[-1] if causes else 'Spark does not say why'}"


def _source_files(folder: Folder) -> Iterator[str]:
    """The last log file of each file source; other sources write their own formats there."""
    for log in (f"sources/{source}" for source in folder.names("sources")):
        for file in (f"{log}/{number}" for number in batch_numbers(folder, log)[-1:]):
            if (folder.read(file) or "").startswith('v1\n{"path"'):
                yield file


def _operator_files(folder: Folder) -> Iterator[str]:
    """The metadata files that the operators wrote with the last batch."""
    for log in (f"state/{operator}/_metadata/v2" for operator in folder.names("state")):
        yield from (f"{log}/{number}" for number in batch_numbers(folder, log)[-1:])


def batch_numbers(folder: Folder, name: str) -> list[int]:
    """The batches that have a file in a folder of a checkpoint, in order."""
    return sorted(int(file) for file in folder.names(name) if file.isdecimal())


def is_whole(folder: Folder, file: str) -> bool:
    """Return whether a file of Spark exists, with its parts."""
    text = folder.read(file)
    return text is not None and _damage(text) is None


def _damage(text: str) -> str | None:
    r"""The defect of one of Spark's files: a version, then lines of JSON, where a dash means no offset.

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


LOCK = "in-use.lock"

Use = Literal["shared", "alone"]


@contextmanager
def lock_storage(storage: Storage, use: Use, queries: Collection[str] = ()) -> Generator[Leases]:
    """Lock a storage folder, and queries of it, while this is entered; refused if another process conflicts.

    A storage of this machine has locks of its file system, any other has leases.
    """
    if not is_local(storage):
        with hold_leases(storage, use, queries) as leases:
            yield leases
        return
    with ExitStack() as stack:
        if not _try_lock(storage, LOCK, use, stack):
            raise refuse("CHECKPOINT_IN_USE", storage=storage, holder="")
        for query in queries:
            name = f"in-use.{query}.lock"
            if not _try_lock(storage, name, "alone", stack):
                holder = holder_in_words(_read_holder(storage / name))
                raise refuse("QUERY_IN_USE", query=query, storage=storage, holder=holder)
        yield NO_LEASES


def _read_holder(lock: Path) -> str | None:
    try:
        return lock.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _try_lock(storage: Path, name: str, use: Use, stack: ExitStack) -> bool:
    """Try to take a lock, held until the stack closes; True also where the system has no locks."""
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return True
    try:
        storage.mkdir(parents=True, exist_ok=True)
        file = os.open(storage / name, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        # A folder that cannot be written to is read at most.
        return True
    stack.callback(os.close, file)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if use == "shared" else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # This file system has no locks.
        return True
    if name != LOCK:
        # For the message of a command that finds the lock taken. The lock of the storage stays unchanged, since a
        # command may still be refused.
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.write(file, Holder.here().to_text().encode())
    return True
