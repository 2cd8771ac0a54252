"""GROUP BY."""

from __future__ import annotations
