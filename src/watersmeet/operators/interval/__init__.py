"""The interval join."""

from __future__ import annotations
