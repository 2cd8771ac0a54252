"""What the binary formats have in common: the bytes of many rows, read and written a step at a time."""

from __future__ import annotations


class SchemaError(Exception):
    """A schema that is none, or that nothing here can read, and why."""
