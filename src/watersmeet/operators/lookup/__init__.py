"""The lookup join."""

from __future__ import annotations
