"""How rows go out."""

from __future__ import annotations
