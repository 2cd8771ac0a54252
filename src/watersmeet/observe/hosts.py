"""By which names a server of ours answers.

A browser can be led to a server of this machine by a name that an attacker made point here (DNS rebinding); the page of
the attacker could then read what the server answers. The browser sends that name in the header ``Host``, so a server
answers only to names that it knows. A host in numbers is the address itself, which no name server decides.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

_NAMED = re.compile(r"(?P<host>[a-z0-9._-]+|\[[0-9a-f:.%]+\])(?::\d{1,5})?", re.IGNORECASE)


def host_of(header: str) -> str | None:
    """The host that a request asks for, in small letters and without its port; None: the header is malformed.

    >>> host_of("LocalHost:8484"), host_of("[::1]:80"), host_of("[::1"), host_of("a:b:c")
    ('localhost', '::1', None, None)
    """
    match = _NAMED.fullmatch(header.strip())
    return None if match is None else match["host"].strip("[]").lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other reaches.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_answered(requested: str, served: str, names: Collection[str] = ()) -> bool:
    """Whether a server at the address ``served`` answers to a host; ``names``: further ones, ``*`` for all.

    On this machine alone it goes by the machine's own names. Elsewhere it goes by addresses in numbers, the name that
    it is served at, and the name of the machine.

    >>> [is_answered(host, "127.0.0.1") for host in ("localhost", "evil.example", "10.0.0.7")]
    [True, False, False]
    >>> [is_answered(host, "0.0.0.0", ["metrics.shop"]) for host in ("10.0.0.7", "metrics.shop", "evil.example")]
    [True, True, False]
    """
    accepted = {name.strip().lower() for name in names}
    if is_loopback(requested) or requested in accepted or "*" in accepted:
        return True
    return not is_loopback(served) and (_is_address(requested) or requested in (served.lower(), *_own_names()))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own_names() -> tuple[str, str]:
    # Not `getfqdn`, which asks the network.
    name = socket.gethostname().lower()
    return name, name.partition(".")[0]
