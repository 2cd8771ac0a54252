"""Whose checkpoint a folder is: the identity of the queries that wrote it, kept beside Spark's own files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from watersmeet.analyze.settings import OPERATOR_CHAINING
from watersmeet.errors import WatersmeetError, refuse
from watersmeet.operators.core.identity import Identity
from watersmeet.operators.state.format import FORMAT, READABLE_FORMATS
from watersmeet.physical.change import ChangeEffect, ChangeRule, WatermarkValues, classify_edit
from watersmeet.physical.difference import NamedIdentity, difference
from watersmeet.physical.identity import canonical_json, digest
from watersmeet.physical.together import ChainGroups
from watersmeet.version import __version__

OWNER = "watersmeet.json"
"""The file in a checkpoint that says whose it is."""


@dataclass(frozen=True)
class Owner:
    """Whose a checkpoint is: the queries of ours in it, of which there are several where a join feeds another call.

    ``versions``: with what it was written; ``format``: that of its states. ``accepted``: what else a shard may have
    been left by, by its fingerprint: operators of the query as it was before changes that were accepted. ``rebuilt``:
    the last batch whose rows its state was rebuilt from; None: it never was.
    """

    queries: tuple[NamedIdentity, ...]
    versions: dict[str, str] = field(default_factory=dict[str, str])
    format: int = FORMAT
    accepted: Mapping[str, Identity] = field(default_factory=dict[str, Identity])
    rebuilt: int | None = None

    @property
    def shards(self) -> int:
        """Into how many shards the state is split."""
        return int(self.queries[0].identity["shards"])

    @property
    def operator_chains(self) -> ChainGroups:
        """The stages of its first query that share an operator."""
        return tuple(tuple(group) for group in self.queries[0].identity.get("together", ()))

    @property
    def clocks(self) -> tuple[bool, ...]:
        """Which of its stages follow the clock, query by query."""
        return tuple(bool(follows) for query in self.queries for follows in query.identity["clocks"])

    def to_text(self, spark_version: str) -> str:
        """What is kept."""
        queries = [{"identity": query.identity, "words": query.words} for query in self.queries]
        versions = {"watersmeet": __version__, "spark": spark_version}
        record: dict[str, Any] = {
            "format": FORMAT,
            **versions,
            "digest": _record_digest(queries, self.accepted),
            "queries": queries,
        }
        if self.accepted:
            record["accepted"] = dict(self.accepted)
        if self.rebuilt is not None:
            record["rebuilt"] = self.rebuilt
        return json.dumps(record, indent=2) + "\n"

    @staticmethod
    def from_text(text: str, checkpoint: str, anew: str) -> Owner:
        """What was kept, or the refusal of what is no such thing; ``anew`` says how to start without the checkpoint."""
        file = f"{checkpoint}/{OWNER}"
        record = _record(text, checkpoint, file, anew)
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
            raise _wrong_owner(checkpoint, file, "was not written by Watersmeet", anew)
        versions = {name: str(record.get(name, "unknown")) for name in ("watersmeet", "spark")}
        owner_queries = tuple(NamedIdentity(query["identity"], query["words"]) for query in queries)
        return Owner(owner_queries, versions, format_version, accepted, record.get("rebuilt"))

    def check(
        self,
        now: Owner,
        checkpoint: str,
        anew: str,
        changing: Mapping[str, ChangeRule] | None = None,
        marks: Sequence[Sequence[WatermarkValues]] | None = None,
        tables: Collection[str] = (),
        rebuild: str = "",
    ) -> tuple[ChangeEffect, ...]:
        """Refuse to let other queries continue the checkpoint; gives what follows from what has changed of these.

        ``changing``: what of operators may change; without it nothing may. ``marks``: by query and stage. ``tables``:
        the operators whose results are tables. ``rebuild``: how a state is made anew; without it none can be.
        """
        if len(self.queries) != len(now.queries):
            reason = f"it had {len(self.queries)} joins, now it has {len(now.queries)}"
            raise _another_query(checkpoint, reason, f"undo the change, or {anew}")
        follows: list[ChangeEffect] = []
        for number, (was, is_) in enumerate(zip(self.queries, now.queries, strict=True)):
            edit = classify_edit(was, is_, changing or {}, None if marks is None else marks[number], tables)
            if edit.kind == "rebuilt" and rebuild:
                raise refuse(
                    "CHECKPOINT_TO_REBUILD", checkpoint=checkpoint, difference=edit.difference,
                    hint=f"{rebuild}, undo the change, or {anew}",
                )  # fmt: skip
            if edit.kind in ("refused", "rebuilt") or (edit.kind == "continued" and changing is None):
                hint = _same_shards(was, is_) or _same_operators(was, is_) or f"undo the change, or {anew}"
                raise _another_query(checkpoint, edit.difference or str(difference(was, is_)), hint)
            follows += edit.effects
        return tuple(follows)


def rebuilt_batch(checkpoint: Path) -> int | None:
    """The last batch whose rows the state of a checkpoint was rebuilt from; None: it never was, or nothing tells."""
    try:
        record: Any = json.loads((checkpoint / OWNER).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    batch = cast("dict[str, Any]", record).get("rebuilt") if isinstance(record, dict) else None
    return batch if isinstance(batch, int) else None


def move_owner(text: str, move: Callable[[str], str]) -> str:
    """A record that was kept, with other places in it, for which ``move`` is asked."""
    record: dict[str, Any] = json.loads(move(text))
    return (
        json.dumps({**record, "digest": _record_digest(record["queries"], record.get("accepted", {}))}, indent=2) + "\n"
    )


def _record_digest(queries: Any, accepted: Mapping[str, Any]) -> str:
    """What tells a record from one that was changed by hand."""
    return digest([queries, accepted]) if accepted else digest(queries)


def _same_shards(was: NamedIdentity, now: NamedIdentity) -> str | None:
    """What to type where nothing but the number of shards differs."""
    shards = was.identity["shards"]
    if canonical_json({**now.identity, "shards": shards}) != canonical_json(was.identity):
        return None
    rescale = f"`watersmeet state rescale --shards {now.identity['shards']}`"
    return f"pass `shards={shards}` to the call, or write `SET watersmeet.shards = {shards}`; or run {rescale}."


def _same_operators(was: NamedIdentity, now: NamedIdentity) -> str | None:
    """What to type where nothing differs but which joins run in one operator."""
    before, after = ({**query.identity, "together": None} for query in (was, now))
    if canonical_json(before) != canonical_json(after):
        return None
    setting = "on" if "together" in was.identity else "off"
    return f'before the call, write `spark.conf.set("{OPERATOR_CHAINING}", "{setting}")`.'


def _another_query(checkpoint: str, reason: str, hint: str) -> WatersmeetError:
    return refuse("CHECKPOINT_OF_ANOTHER_QUERY", checkpoint=checkpoint, difference=reason, hint=hint)


def _wrong_owner(checkpoint: str, file: str, reason: str, anew: str) -> WatersmeetError:
    hint = f"restore that file, or {anew}"
    return refuse("WRONG_OWNER", checkpoint=checkpoint, file=file, reason=reason, hint=hint)


def _record(text: str, checkpoint: str, file: str, anew: str) -> dict[str, Any]:
    if not text.strip():
        raise _wrong_owner(checkpoint, file, "is empty", anew)
    try:
        record = json.loads(text)
    except ValueError:
        raise _wrong_owner(checkpoint, file, "is incomplete or not JSON", anew) from None
    if not isinstance(record, dict):
        raise _wrong_owner(checkpoint, file, "was not written by Watersmeet", anew)
    content = cast("dict[str, Any]", record)
    if "format" not in content and {"query", "shards"} <= content.keys():
        raise refuse("CHECKPOINT_WITHOUT_FORMAT", checkpoint=checkpoint, file=file, hint=anew)
    return content
