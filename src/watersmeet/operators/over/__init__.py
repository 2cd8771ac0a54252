"""Window functions, SUM(x) OVER (...): each row of a stream with values of the rows before it."""

from __future__ import annotations
