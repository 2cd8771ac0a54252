"""Kafka's servers are asked before Spark is: a closed port and a silent socket are told at once, by name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread
from typing import Literal

import pytest

from watersmeet.catalog import Sink, Source
from watersmeet.formats import kafka
from watersmeet.formats.kafka import Topics

Behaviour = Literal["answers", "is silent", "hangs up", "alerts"]
ALERT = bytes([21, 3, 3, 0, 2, 2, 40])
"""What a server of TLS says that does not want the handshake."""


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "SECONDS", 0.5)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server that does what the test says."""
    behaviour: Behaviour = request.param
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def serve() -> None:
            connected, _ = listening.accept()
            kept.append(connected)
            if behaviour == "is silent":
                return
            said = connected.recv(1000)
            if behaviour == "answers" and said[4:6] == b"\0\x12":
                # The correlation id, as a broker returns it.
                connected.sendall(b"\0\0\0\x06" + said[8:12] + b"\0\0")
            elif behaviour == "alerts":
                connected.sendall(ALERT)
            elif behaviour == "hangs up":
                connected.close()

        Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        for connected in kept:
            connected.close()


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def topics(*servers: str, protocol: str = "PLAINTEXT") -> Topics:
    options = {
        "subscribe": "orders", "kafka.bootstrap.servers": ", ".join(servers), "kafka.security.protocol": protocol,
    }  # fmt: skip
    return Topics(Source("o", (), format="kafka", options=options))


def problem(found: Topics) -> str | None:
    refusal = found.silence()
    if refusal is None:
        return None
    assert refusal.condition == "BROKER_UNREACHABLE" and refusal.may_be_retried
    assert refusal.message.startswith("`o` reads `orders` in Kafka, but no server answers: ")
    return refusal.parameters["servers"]


@pytest.mark.parametrize("server", ["answers"], indirect=True)
def test_a_server_that_answers_suffices(server: str) -> None:
    assert problem(topics(free_address(), server)) is None


@pytest.mark.parametrize(
    ("server", "why"),
    [("is silent", "silent for 0.5 s"), ("hangs up", "closes the connection, as if it expected another protocol")],
    indirect=["server"],
)
def test_servers_that_do_not_answer_are_named_with_why(server: str, why: str) -> None:
    closed = free_address()
    assert problem(topics(closed, server)) == f"{closed} (connection refused), {server} ({why})"


@pytest.mark.parametrize(("server", "expected"), [("is silent", False), ("alerts", True)], indirect=["server"])
def test_an_encrypted_server_need_not_agree_but_must_answer(server: str, expected: bool) -> None:
    assert (problem(topics(server, protocol="SASL_SSL")) is None) == expected


def test_names_that_nobody_knows_and_no_names() -> None:
    assert problem(topics("host", "nowhere.invalid:9092")) == (
        "host (not host:port), nowhere.invalid:9092 (unknown host name)"
    )
    assert problem(topics()) is None, "Spark says itself what is missing"
    assert Topics(Sink("s", "kafka", {"topic": "t"})).in_words == "`t`"
