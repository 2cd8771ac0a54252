"""A schema registry for development: the part of Confluent's REST interface that readers and writers use, for Avro.

Ids, versions, references and messages are as documented there. A subject takes a schema if readers that know it can
read what was written with the latest one before it (BACKWARD, the default of Confluent's registry). With a file,
schemas stay when the registry ends.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from watersmeet.codec.avro_schema import AvroSchema, AvroType, read_schema
from watersmeet.codec.binary import SchemaError

Answer = tuple[int, Any]
"""The status of an answer, and its content."""
_PROMOTIONS = {
    "int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"}, "string": {"bytes"},
    "bytes": {"string"},
}  # fmt: skip
"""The types that a reader may take a written one for."""


@dataclass
class SchemaRegistry:
    """The schemas by their ids, which count from 1, and the ids of each subject in the order of its versions."""

    schemas: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    subjects: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    file: Path | None = None

    def add(self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None) -> int:
        """The id of a schema under a subject; a new one if it is new."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, **({"references": references} if references else {})}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
            self._save()
        return number

    def answer(self, path: str, body: dict[str, Any] | None) -> Answer:
        """The answer to a request; ``body`` is that of a POST."""
        if path == "/subjects":
            return 200, sorted(self.subjects)
        if by_id := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(by_id[1])
            is_there = 0 < number <= len(self.schemas)
            return (200, self.schemas[number - 1]) if is_there else (404, _error(40403, "Schema not found"))
        match = re.fullmatch(r"/subjects/([^/]+)/versions(?:/(latest|\d+))?", path)
        if match is None:
            return 404, _error(404, "HTTP 404 Not Found")
        subject = unquote(match[1])
        if body is not None:
            return self._register(subject, body)
        versions = self.subjects.get(subject)
        if not versions:
            return 404, _error(40401, f"Subject '{subject}' not found.")
        if match[2] is None:
            return 200, list(range(1, len(versions) + 1))
        version = len(versions) if match[2] == "latest" else int(match[2])
        if not 0 < version <= len(versions):
            return 404, _error(40402, f"Version {version} not found.")
        number = versions[version - 1]
        return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}

    def _register(self, subject: str, body: dict[str, Any]) -> Answer:
        kind = body.get("schemaType", "AVRO")
        if kind != "AVRO":
            return 422, _error(42201, f"This registry for development has Avro schemas only, not {kind}")
        try:
            problem = self._problem(subject, str(body["schema"]), body.get("references"))
        except (SchemaError, KeyError, IndexError) as error:
            return 422, _error(42201, f"Invalid Avro schema: {error}")
        if problem is not None:
            text = f'Schema being registered is incompatible with an earlier schema for subject "{subject}": {problem}'
            return 409, _error(409, text)
        return 200, {"id": self.add(subject, body["schema"], body.get("references"))}

    def _problem(self, subject: str, text: str, references: list[dict[str, Any]] | None) -> str | None:
        """The reason why a reader with a new schema cannot read what the latest one has written."""
        schema = self._read({"schema": text, "references": references or []})
        versions = self.subjects.get(subject)
        if not versions:
            return None
        latest = self._read(self.schemas[versions[-1] - 1])
        return find_mismatch(schema, schema.type, latest, latest.type)

    def _read(self, entry: dict[str, Any]) -> AvroSchema:
        return read_schema(entry["schema"], *self._texts_before(entry))

    def _texts_before(self, entry: dict[str, Any]) -> list[str]:
        texts: list[str] = []
        for reference in entry.get("references") or ():
            earlier = self.schemas[self.subjects[reference["subject"]][int(reference["version"]) - 1] - 1]
            texts += [text for text in (*self._texts_before(earlier), earlier["schema"]) if text not in texts]
        return texts

    def _save(self) -> None:
        if self.file is not None:
            staging = self.file.with_suffix(".new")
            staging.write_text(json.dumps({"schemas": self.schemas, "subjects": self.subjects}), "utf-8")
            staging.replace(self.file)


def load_registry(file: Path) -> SchemaRegistry:
    """The registry that a file keeps; an empty one if there is no file."""
    content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return SchemaRegistry(content.get("schemas", []), content.get("subjects", {}), file)


def find_mismatch(
    reader: AvroSchema, wanted: AvroType, writer: AvroSchema, written: AvroType, path: str = ""
) -> str | None:
    """The reason why values of one type cannot be read as another; None if they can.

    >>> record = '{{"type": "record", "name": "r", "fields": [{}]}}'
    >>> one = read_schema(record.format('{"name": "a", "type": "int"}'))
    >>> two = read_schema(record.format('{"name": "a", "type": "long"}, {"name": "b", "type": "int"}'))
    >>> find_mismatch(two, two.type, one, one.type)
    'the field `b` is new and has no default'
    >>> find_mismatch(one, one.type, two, two.type)
    'the field `a` was long and is int'
    """
    wanted, written = reader.resolve(wanted), writer.resolve(written)
    if written.kind == "union":
        mismatches = (find_mismatch(reader, wanted, writer, branch, path) for branch in written.inner)
        return next((mismatch for mismatch in mismatches if mismatch is not None), None)
    if wanted.kind == "union":
        mismatches = [find_mismatch(reader, branch, writer, written, path) for branch in wanted.inner]
        return None if None in mismatches else mismatches[-1]
    if wanted.kind != written.kind and wanted.kind not in _PROMOTIONS.get(written.kind, ()):
        return f"the field `{path or wanted.name}` was {written.kind} and is {wanted.kind}"
    if (wanted.logical, wanted.scale) != (written.logical, written.scale) and "decimal" in (
        wanted.logical,
        written.logical,
    ):
        return f"the field `{path}` is a decimal of another scale"
    if wanted.kind == "enum" and not set(written.symbols) <= set(wanted.symbols):
        return f"the field `{path}` lacks {', '.join(sorted(set(written.symbols) - set(wanted.symbols)))}"
    if wanted.kind in ("array", "map"):
        return find_mismatch(reader, wanted.inner[0], writer, written.inner[0], f"{path}[]")
    if wanted.kind != "record":
        return None
    return _find_field_mismatch(reader, wanted, writer, written, path)


def _find_field_mismatch(
    reader: AvroSchema, wanted: AvroType, writer: AvroSchema, written: AvroType, path: str
) -> str | None:
    before = {member.name: member for member in written.fields}
    for member in wanted.fields:
        name = f"{path}.{member.name}".lstrip(".")
        earlier = next((before[each] for each in (member.name, *member.aliases) if each in before), None)
        if earlier is None:
            if not member.has_default:
                return f"the field `{name}` is new and has no default"
            continue
        mismatch = find_mismatch(reader, member.type, writer, earlier.type, name)
        if mismatch is not None:
            return mismatch
    return None


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


@contextmanager
def serve_registry(registry: SchemaRegistry, port: int = 0) -> Generator[str]:
    """The address at which a registry answers this machine, as long as the block runs."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            except ValueError:
                body = {"schema": "", "schemaType": "of a body that is not JSON"}
            self._reply(body)

        def _reply(self, body: dict[str, Any] | None) -> None:
            with lock:
                status, content = registry.answer(self.path, body)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
