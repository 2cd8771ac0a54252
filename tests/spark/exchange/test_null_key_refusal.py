"""The refusal of a state in which earlier versions kept rows with NULL keys in any shard, as a worker raises it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from tests.operators.test_shards import CODES, COMPUTED, upsert_codes

from watersmeet.errors import WorkerRefusalError, refusal_in
from watersmeet.local.query import MemoryStore
from watersmeet.operators.core.chain import Link
from watersmeet.operators.state.format import FORMAT
from watersmeet.spark.exchange.stateful import JoinStage, _check_owner  # pyright: ignore[reportPrivateUsage]


class _Store(MemoryStore):
    """A store of a worker."""

    prefix = ""
    changed: ClassVar[dict[str, Any]] = {}


def _state_from_before() -> _Store:
    store = _Store()
    COMPUTED.step(store, upsert_codes(CODES), {})
    store.put("fingerprint", f"{FORMAT} digest".encode())
    return store


def test_null_keys_of_earlier_versions_are_refused_in_several_shards() -> None:
    stage, store = JoinStage(Link(COMPUTED), "a and b", "digest", {0: 0, 1: 1}, "", ()), _state_from_before()
    with pytest.raises(WorkerRefusalError) as raised:
        _check_owner(stage, store, 0, 2)  # pyright: ignore[reportArgumentType] - a store of the same shape
    refusal = refusal_in(str(raised.value))
    assert refusal is not None
    assert refusal.condition == "NULL_KEYS_IN_ANY_SHARD"
    assert "a and b" in refusal.message


def test_null_keys_of_earlier_versions_are_where_they_belong_in_one_shard() -> None:
    stage, store = JoinStage(Link(COMPUTED), "a and b", "digest", {0: 0, 1: 1}, "", ()), _state_from_before()
    _check_owner(stage, store, 0, 1)  # pyright: ignore[reportArgumentType] - a store of the same shape
    assert store.get("null keys") is not None


def test_a_state_of_a_newer_format_names_the_version_to_install() -> None:
    stage, store = JoinStage(Link(COMPUTED), "a and b", "digest", {0: 0, 1: 1}, "", ()), _state_from_before()
    store.put("fingerprint", f"{FORMAT + 1} digest".encode())
    with pytest.raises(WorkerRefusalError) as raised:
        _check_owner(stage, store, 0, 1)  # pyright: ignore[reportArgumentType] - a store of the same shape
    refusal = refusal_in(str(raised.value))
    assert refusal is not None
    assert refusal.condition == "CHECKPOINT_OF_A_NEWER_VERSION"
    assert refusal.hint == f"install that version of Watersmeet (one with state format {FORMAT + 1}) or a later one."
