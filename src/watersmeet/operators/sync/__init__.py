"""The sync join."""

from __future__ import annotations
