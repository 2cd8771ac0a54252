"""A schema registry: schemas by their ids and by their subjects, through Confluent's REST interface.

An id never changes its schema, so schemas are cached as long as the process runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from watersmeet.errors import Refusal
from watersmeet.locations import is_secret

if TYPE_CHECKING:
    import ssl
    from urllib.request import Request

URL, SUBJECT, KEY_SUBJECT = "schema.registry.url", "schema.registry.subject", "schema.registry.key.subject"
_USER, _PASSWORD, _TOKEN = "schema.registry.user", "schema.registry.password", "schema.registry.token"
_AUTHORITY = "schema.registry.ca"
OPTIONS = frozenset({URL, SUBJECT, KEY_SUBJECT, _USER, _PASSWORD, _TOKEN, _AUTHORITY})
"""Our own options: the URL, the subjects of values and keys, the credentials, and a file with trusted certificates."""
SECONDS = 10.0
"""The time that it has for an answer."""
MAGIC, HEADER = 0, 5
"""The header of a value with a schema id: this byte, then the id in four bytes, big-endian."""
_NOT_THERE, _TOO_SLOW, _CONFLICT, _FIRST_OF_SERVER = 404, 408, 409, 500
_TEXT = "application/vnd.schemaregistry.v1+json"

Texts = tuple[str, ...]
"""A schema as JSON, and before it those that it refers to."""


def subject_in(said: Mapping[str, str], option: str, column: str, topic: str) -> str:
    """The subject of the schemas of values or keys: as an option says, else as is usual for a topic."""
    return said.get(option, f"{topic}-{column}")


class RegistryError(Exception):
    """A request that a registry did not answer or refused, and why."""


class NotRegisteredError(RegistryError):
    """A schema or subject that a registry does not have."""


class IncompatibleSchemaError(RegistryError):
    """A schema that a registry rejects because of earlier ones of its subject."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema that has a number."""

    id: int
    texts: Texts


@dataclass(frozen=True)
class Registry:
    """A registry, with the credentials for it."""

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    authority: str | None = None

    @staticmethod
    def of(options: Mapping[str, str]) -> Registry | None:
        """The registry that options name, in small letters; None: none."""
        urls = tuple(part.strip().rstrip("/") for part in options.get(URL, "").split(",") if part.strip())
        settings = (options.get(name) for name in (_USER, _PASSWORD, _TOKEN, _AUTHORITY))
        return Registry(urls, *settings) if urls else None

    def by_id(self, number: int) -> Texts:
        """The schema of a number."""
        if (self.urls, number) not in _schemas:
            _schemas[self.urls, number] = self._texts(self._fetch(f"/schemas/ids/{number}"))
        return _schemas[self.urls, number]

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest schema of a subject."""
        return self._remember(self._fetch(f"/subjects/{quote(subject, safe='')}/versions/latest"))

    def register(self, subject: str, schema: str) -> int:
        """The number of a schema under a subject; it gets one if it has none."""
        return int(self._fetch(f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})["id"])

    def _remember(self, answer: Mapping[str, Any]) -> RegisteredSchema:
        schema = RegisteredSchema(int(answer["id"]), self._texts(answer))
        _schemas[self.urls, schema.id] = schema.texts
        return schema

    def _texts(self, answer: Mapping[str, Any]) -> Texts:
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise RegistryError(f"has a {answer['schemaType']} schema there, not Avro")
        before: list[str] = []
        for reference in answer.get("references") or ():
            path = f"/subjects/{quote(reference['subject'], safe='')}/versions/{reference['version']}"
            before += [text for text in self._texts(self._fetch(path)) if text not in before]
        return (*before, str(answer["schema"]))

    def _fetch(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of the first server that responds."""
        from urllib.error import HTTPError  # imported late: checking a script needs no network
        from urllib.request import urlopen

        reason = ""
        for url in self.urls:
            try:
                with urlopen(
                    self._request(f"{url}{path}", body), timeout=SECONDS, context=self._ssl_context()
                ) as answer:
                    return json.load(answer)
            except HTTPError as error:
                reason = f"answers with {error.code} ({_error_message(error)})"
                if error.code == _NOT_THERE:
                    raise NotRegisteredError(reason) from error
                if error.code == _CONFLICT:
                    raise IncompatibleSchemaError(reason) from error
                if error.code < _FIRST_OF_SERVER and error.code != _TOO_SLOW:
                    raise RegistryError(reason) from error
            except (OSError, ValueError) as error:
                cause = getattr(error, "reason", error)
                reason = f"does not answer ({getattr(cause, 'strerror', None) or cause})".lower()
        raise RegistryError(reason)

    def _request(self, url: str, body: Mapping[str, Any] | None) -> Request:
        from urllib.request import Request

        if not url.startswith(("http://", "https://")):
            raise ValueError("its address begins with neither http:// nor https://")
        request = Request(url, None if body is None else json.dumps(body).encode(), {"Accept": _TEXT})
        if body is not None:
            request.add_header("Content-Type", _TEXT)
        # Do not send credentials to a redirect's target.
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        elif self.user is not None:
            login = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")
        return request

    def _ssl_context(self) -> ssl.SSLContext | None:
        import ssl

        return None if self.authority is None else ssl.create_default_context(cafile=self.authority)

    def refusal(self, name: str, error: RegistryError) -> Refusal:
        """The refusal of a source or sink whose schemas cannot be had."""
        return Refusal("REGISTRY_UNREACHABLE", {"name": name, "url": ", ".join(self.urls), "reason": str(error)})


_schemas: dict[tuple[tuple[str, ...], int], Texts] = {}

assert is_secret(_PASSWORD) and is_secret(_TOKEN)


def _error_message(error: Any) -> str:
    try:
        return str(json.load(error)["message"]).rstrip(".")
    except (ValueError, KeyError, OSError, TypeError):
        return str(error.reason)
