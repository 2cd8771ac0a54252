"""The window join."""

from __future__ import annotations
