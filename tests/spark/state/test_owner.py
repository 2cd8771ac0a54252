"""The record beside a checkpoint of whose it is: what was written is read, and what is anything else is refused."""

from __future__ import annotations

import json

import pytest
from tests.physical.test_identity import JOIN, edit_sql, identify

from watersmeet.errors import Refusal, WatersmeetError
from watersmeet.spark.state.owner import Owner

ANEW = "start anew elsewhere."
TEXT = Owner((identify(JOIN),)).to_text("4.3.0")


def refusal_of(text: str) -> Refusal:
    with pytest.raises(WatersmeetError) as raised:
        Owner.from_text(text, "/storage/out", ANEW)
    (found,) = raised.value.refusals
    return found


def test_an_owner_is_read_as_it_was_written() -> None:
    found = Owner.from_text(TEXT, "/storage/out", ANEW)
    assert found.queries == (identify(JOIN),)
    assert found.shards == 4
    assert found.versions["spark"] == "4.3.0"
    found.check(Owner((identify(JOIN),)), "/storage/out", ANEW)


WRONG = {
    "empty": ("", "is empty"),
    "spaces": (" \n", "is empty"),
    "torn": (TEXT[: len(TEXT) // 2], "is incomplete or not JSON"),
    "bytes": ("\ufffd\x00", "is incomplete or not JSON"),
    "a list": ("[]", "was not written by Watersmeet"),
    "of something else": ('{"name": "shop"}', "was not written by Watersmeet"),
    "changed by hand": (TEXT.replace("3600000000", "60"), "was not written by Watersmeet"),
    "without queries": (json.dumps({"format": 1, "queries": []}), "was not written by Watersmeet"),
    "a format that is no number": (TEXT.replace('"format": 1', '"format": "1"', 1), "was not written by Watersmeet"),
}


@pytest.mark.parametrize("case", WRONG)
def test_malformed_owners_are_refused_with_their_file(case: str) -> None:
    text, reason = WRONG[case]
    found = refusal_of(text)
    assert found.condition == "WRONG_OWNER"
    assert found.label.startswith(f"/storage/out/watersmeet.json {reason}")
    assert found.hint == f"restore that file, or {ANEW}"


def test_an_owner_of_before_there_were_formats_is_refused_with_that_reason() -> None:
    found = refusal_of(json.dumps({"query": "...", "shards": 2}))
    assert found.condition == "CHECKPOINT_WITHOUT_FORMAT"
    assert "written by an early version of Watersmeet" in found.message
    assert found.hint == ANEW


def test_an_owner_of_a_newer_format_names_the_version_that_wrote_it() -> None:
    newer = json.dumps({**json.loads(TEXT), "format": 7, "watersmeet": "9.1.0"})
    found = refusal_of(newer)
    assert found.condition == "CHECKPOINT_OF_A_NEWER_VERSION"
    assert "9.1.0" in found.hint


@pytest.mark.parametrize(
    ("now", "difference", "hint"),
    [
        (
            identify(edit_sql(JOIN, {"1 HOUR": "2 HOURS"})),
            "upper bound of `d.ts` was 1 hour",
            "undo the change, or start anew",
        ),
        (identify(JOIN, 8), "has 4 shards, now it would have 8", "pass `shards=4` to the call"),
    ],
)
def test_another_query_is_refused_with_what_differs_and_what_to_do(now: object, difference: str, hint: str) -> None:
    owner = Owner.from_text(TEXT, "/storage/out", ANEW)
    with pytest.raises(WatersmeetError) as raised:
        owner.check(Owner((now,)), "/storage/out", ANEW)  # pyright: ignore[reportArgumentType]
    (found,) = raised.value.refusals
    assert found.condition == "CHECKPOINT_OF_ANOTHER_QUERY"
    assert difference in found.label
    assert found.hint.startswith(hint)
