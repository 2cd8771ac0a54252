"""The join of two tables."""

from __future__ import annotations
