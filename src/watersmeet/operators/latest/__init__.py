"""The latest row per key."""

from __future__ import annotations
