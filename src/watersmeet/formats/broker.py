"""Kafka's servers: whether one answers, asked before Spark does, who would be silent about it for minutes."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from watersmeet.catalog import Sink, Source
from watersmeet.errors import Place, Refusal
from watersmeet.references import resolve_references

SECONDS = 3.0
"""How long each server has to answer."""
_CLIENT = b"watersmeet"
_API_VERSIONS = struct.pack(">ihhih", 10 + len(_CLIENT), 18, 0, 1, len(_CLIENT)) + _CLIENT
"""The request that every broker answers, also to those who have not told yet who they are."""


@dataclass(frozen=True)
class Topics:
    """The topics that a source reads or a sink writes to, and the servers that have them."""

    of: Source | Sink

    @property
    def option(self) -> str:
        """The option that names them."""
        names = ("topic",) if isinstance(self.of, Sink) else ("subscribe", "subscribepattern", "assign")
        return next((name for name in names if name in self.of.lowercase_options), names[0])

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, or what stands for them."""
        return self._split_option(self.option)

    @property
    def in_words(self) -> str:
        """Their names in a sentence."""
        return " and ".join(f"`{name}`" for name in self.names) or "topics"

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that are asked first."""
        return self._split_option("kafka.bootstrap.servers")

    def _split_option(self, option: str) -> tuple[str, ...]:
        text = resolve_references({option: self.of.lowercase_options.get(option, "")})[option]
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def refusal(self, servers: Sequence[str], place: Place | None = None) -> Refusal:
        """The refusal of servers of which none answers."""
        verb = "writes to" if isinstance(self.of, Sink) else "reads"
        parameters = {"name": self.of.name, "verb": verb, "topics": self.in_words, "servers": ", ".join(servers)}
        return Refusal("BROKER_UNREACHABLE", parameters, place)

    def unknown(self, name: str | None = None) -> Refusal:
        """The refusal of topics that are not there: one of them, or all."""
        servers, topics = ", ".join(self.servers), self.in_words if name is None else f"`{name}`"
        made = "; with `partitions '1'` in its OPTIONS it is created" if isinstance(self.of, Sink) else ""
        parameters = {
            "name": self.of.name, "topics": topics, "servers": servers, "option": self.option, "made": made,
        }  # fmt: skip
        return Refusal("UNKNOWN_TOPIC", parameters)

    def silence(self, place: Place | None = None) -> Refusal | None:
        """The refusal if no server answers; one that does suffices, since it knows the others."""
        is_encrypted = any(name.upper().endswith("SSL") for name in self._split_option("kafka.security.protocol"))
        why: list[str] = []
        for server in self.servers:
            problem = server_problem(server, is_encrypted=is_encrypted)
            if problem is None:
                return None
            why.append(f"{server} ({problem})")
        return self.refusal(why, place) if why else None


def server_problem(server: str, *, is_encrypted: bool) -> str | None:
    """Why a server, ``host:port``, does not answer; None: it does.

    >>> server_problem("localhost", is_encrypted=False)
    'not host:port'
    """
    host, _, port = server.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return "not host:port"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS) as connection:
            if is_encrypted:
                _shake_hands(connection)
                return None
            connection.sendall(_API_VERSIONS)
            return None if connection.recv(1) else "closes the connection, as if it expected another protocol"
    except TimeoutError:
        return f"silent for {SECONDS:g} s"
    except socket.gaierror:
        return "unknown host name"
    except (OSError, OverflowError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()


def _shake_hands(connection: socket.socket) -> None:
    """Begin to encrypt; who objects has answered. Whom to trust is Spark's matter, and nothing is told here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(connection).close()
    except ssl.SSLError:
        return
