"""ORDER BY ... LIMIT n: a table of the first n rows."""

from __future__ import annotations
