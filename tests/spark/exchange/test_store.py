"""Requests to the states of a group: PySpark's own client, and a server that speaks as Spark's does."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.stateful_processor import MapState
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.types import IntegerType, StructField, StructType

from watersmeet.operators.state import cache
from watersmeet.operators.state.layout import RowLayout
from watersmeet.operators.state.spine import ShardState
from watersmeet.spark.exchange import store
from watersmeet.spark.exchange.store import NAME, VALUE, States
from watersmeet.spark.private import transfer
from watersmeet.spark.private.transfer import pipeline_requests

SHARD = StructType([StructField("shard", IntegerType())])


class Server(Thread):
    """Keeps values by shard and name; ``rounds`` counts how often it was asked something, or much at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(str(path))
        self.listening.listen()
        self.values: dict[tuple[int, str], bytes] = {}
        self.shard = -1
        self.rounds = 0
        self.requests: list[bytes] = []
        self.start()

    def run(self) -> None:
        from pyspark.sql.streaming.proto.StateMessage_pb2 import StateRequest, StateResponse

        connection, _ = self.listening.accept()
        waiting = b""
        while True:
            read = connection.recv(2**20)
            if not read:
                return
            waiting += read
            is_asked = False
            while len(waiting) >= 8 and len(waiting) >= 8 + (length := struct.unpack("!ii", waiting[:8])[1]):
                # Before the answer: the reader of it may look.
                self.rounds += not is_asked
                is_asked = True
                self.requests.append(waiting[: 8 + length])
                answer = self.answer(StateRequest.FromString(waiting[8 : 8 + length]), StateResponse)
                # One by one, as Spark does.
                connection.sendall(struct.pack("!i", len(answer)) + answer)
                waiting = waiting[8 + length :]

    def answer(self, request: Any, response: Any) -> bytes:
        if request.HasField("implicitGroupingKeyRequest"):
            self.shard = pickle.loads(request.implicitGroupingKeyRequest.setImplicitKey.key)[0]
            return response().SerializeToString()
        call = request.stateVariableRequest.mapStateCall
        asked = getattr(call, call.WhichOneof("method"))
        name = self.shard, pickle.loads(asked.userKey)[0]
        match call.WhichOneof("method"):
            case "getValue":
                found = self.values.get(name)
                return response(value=pickle.dumps((found,)) if found is not None else b"").SerializeToString()
            case "updateValue" if name[1] == "forbidden":
                return response(statusCode=1, errorMessage="no room").SerializeToString()
            case "updateValue":
                self.values[name] = bytes(pickle.loads(asked.value)[0])
            case _:
                self.values.pop(name, None)
        return response().SerializeToString()


class Handle:
    """What the processor has of PySpark's handle."""

    def __init__(self, path: Path) -> None:
        self._statefulProcessorApiClient = StatefulProcessorApiClient(str(path), SHARD)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "state")


@pytest.fixture
def states(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[States]:
    # Every shard on one partition.
    monkeypatch.setattr(store, "state_partitions", lambda: 1)
    monkeypatch.setattr(cache, "run_cache", cache.RunCache())
    handle: Any = Handle(tmp_path / "state")
    client = handle._statefulProcessorApiClient
    client.set_implicit_key((0,))
    yield States(handle, MapState(MapStateClient(client, NAME, VALUE), "state"), 0)
    client.sockfile.close()


def test_writes_of_shards_go_out_at_once_each_to_its_own_state(server: Server, states: States) -> None:
    stores = [states.store(shard) for shard in (0, 1, 2)]
    stores[1].put("gone", b"x")
    states.flush()
    before = server.rounds
    for number, one in enumerate(stores):
        one.put("a", f"of {number}".encode())
        one.put("b", b"first")
        one.put("b", b"second")
        one.remove("gone")
        assert one.get("a") == f"of {number}".encode() and one.get("gone") is None
    assert server.rounds == before
    states.flush()
    assert server.rounds == before + 1
    kept = {(n, "a"): f"of {n}".encode() for n in range(3)} | {(n, "b"): b"second" for n in range(3)}
    assert server.values == kept


def test_much_is_written_before_the_others_are_done(
    server: Server, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAITING", 10)
    first, second = states.store(0), states.store(1)
    first.put("little", b"1")
    second.put("much", b"12345678901")
    assert server.values == {(1, "much"): b"12345678901", (0, "little"): b"1"}
    # Other requests of the first are about its own state again.
    assert first.get("much") is None
    first.put("little", b"2")
    states.flush()
    assert server.values == {(1, "much"): b"12345678901", (0, "little"): b"2"}


def test_more_than_a_socket_holds_is_written(server: Server, states: States) -> None:
    stores = [states.store(shard) for shard in range(20)]
    for one in stores:
        for name in range(100):
            one.put(str(name), bytes(1_000))
        one.put("large", bytes(100_000))
    states.flush()
    assert len(server.values) == 20 * 101


def test_directories_and_small_runs_are_fetched_at_once(server: Server, states: States) -> None:
    layout = RowLayout(("k", "v"), code="k")
    for shard in range(3):
        state = ShardState(states.store(shard))
        for run in range(2):
            state.spine("rows", layout).add(layout.rows(pa.table({"k": np.arange(5), "v": np.arange(5) + 10 * run})))
        state.save()
    states.flush()
    cache.run_cache, states.stores = cache.RunCache(), []
    stores, before = [states.store(shard) for shard in range(3)], server.rounds
    states.fetch()
    # The directories, a run, and the other runs.
    assert server.rounds == before + 3
    for one in stores:
        spine = ShardState(one).spine("rows", layout)
        assert [spine.read(block).table["v"].to_pylist()[0] for block in spine.blocks] == [0, 10]
    assert server.rounds == before + 3
    # What is at hand is not fetched again; what waits to be written goes before what is stored.
    stores[0].put("directory", b"newer")
    states.fetch()
    assert server.rounds == before + 4 and stores[0].get("directory") == b"newer"


def test_a_request_that_is_refused_fails_the_batch(states: States) -> None:
    states.store(0).put("forbidden", b"1")
    with pytest.raises(RuntimeError, match="no room"):
        states.flush()


def test_states_of_another_version_are_left_to_the_refusal(server: Server, states: States) -> None:
    server.values[0, "directory"] = b'{"format": 99}'
    one = states.store(0)
    states.fetch()
    assert one.get("directory") == b'{"format": 99}'


def test_wide_rows_are_left_to_who_reads_them(server: Server, states: States) -> None:
    layout = RowLayout(("k", "v"), code="k")
    state = ShardState(states.store(0))
    for _ in range(3):
        state.spine("rows", layout).add(layout.rows(pa.table({"k": np.arange(5), "v": ["x" * 50_000] * 5})))
    state.save()
    states.flush()
    cache.run_cache, before = cache.RunCache(), server.rounds
    states.fetch()
    # The directory, and one run.
    assert server.rounds == before + 2


def test_another_client_gets_one_request_after_the_other() -> None:
    other = SimpleNamespace(_statefulProcessorApiClient=object())
    with pipeline_requests(other) as answers:
        assert answers is None


@pytest.mark.parametrize("size", [transfer.LARGE - 1, transfer.LARGE, 3_000_000])
def test_a_large_value_goes_out_as_pyspark_would_send_it(
    server: Server, states: States, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    value = np.random.default_rng(size).bytes(size)
    for together in (False, True):
        with pipeline_requests(states.handle) if together else nullcontext():
            transfer.put(states.state, f"run/{together}", value)
    ours, server.requests = server.requests, []
    monkeypatch.setattr(transfer, "LARGE", size + 1)
    for together in (False, True):
        transfer.put(states.state, f"run/{together}", value)
    assert server.values == {(0, f"run/{together}"): value for together in (False, True)}
    assert ours[-2:] == server.requests


def test_a_large_value_that_is_refused_fails_the_batch(states: States) -> None:
    with pytest.raises(RuntimeError, match="no room"):
        transfer.put(states.state, "forbidden", bytes(transfer.LARGE))


def test_without_the_message_that_is_known_pyspark_makes_it(
    server: Server, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_numbers", lambda: None)
    transfer.put(states.state, "run", bytes(transfer.LARGE))
    assert server.values == {(0, "run"): bytes(transfer.LARGE)}
