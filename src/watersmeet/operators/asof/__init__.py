"""The as-of join."""

from __future__ import annotations
