"""Synchronising joins: every port has exactly one event time, and all of them count in the same unit."""

from __future__ import annotations

from collections.abc import Iterator

from watersmeet.analyze.draft import Draft, listed
from watersmeet.analyze.event_time import event_times, is_sound
from watersmeet.analyze.time_units import check_families
from watersmeet.analyze.unbounded import watermark_hint
from watersmeet.errors import Refusal
from watersmeet.families.sync.relation import AnalyzedSyncJoin
from watersmeet.plan.nodes import SyncJoin
from watersmeet.plan.relation import AnalyzedLeaf

DISORDER = "watersmeet.sync.disorder"


def sync_join(draft: Draft, join: SyncJoin, scans: tuple[AnalyzedLeaf, ...]) -> tuple[AnalyzedSyncJoin, list[Refusal]]:
    """The join of all ports, with what is wrong with it."""
    refusals = [*_check(draft, join, scans)] if all(is_sound(scan.source) for scan in scans) else []
    times = tuple(time.column for scan in scans for time in event_times(scan)[:1])
    disorder = "error" if draft.setting(DISORDER, "drop").lower() == "error" else "drop"
    return AnalyzedSyncJoin(scans, times, disorder, join.span), refusals


def _check(draft: Draft, join: SyncJoin, scans: tuple[AnalyzedLeaf, ...]) -> Iterator[Refusal]:
    if len(scans) < 2:
        what, hint = "A SYNC JOIN of one source", "write `a SYNC JOIN b`."
        yield draft.refusal("UNSUPPORTED_STATEMENT", join.span, what=what, hint=hint)
        return
    *most, last = scans
    named = [time.column.name for scan in scans for time in event_times(scan)]
    left, right = draft.names_of(scan.alias for scan in most), draft.name_of(last.alias)
    for scan in scans:
        side, times = draft.name_of(scan.alias), event_times(scan)
        if not times:
            names = {"kind": "SYNC", "left": left, "right": right, "side": side}
            yield draft.refusal("MISSING_WATERMARK", join.span, **names, hint=watermark_hint(scan, named))
        elif len(times) > 1:
            columns = listed([str(time) for time in times])
            hint = f"keep one of them in the declaration of {scan.source.name}."
            yield draft.refusal("NEEDS_ONE_TIME", join.span, join="SYNC JOIN", side=side, columns=columns, hint=hint)
    times = [time for scan in scans for time in event_times(scan)[:1]]
    for time in times[1:]:
        refusal = check_families(draft, time, times[0], join.span)
        if refusal is not None:
            yield refusal
