"""SELECT DISTINCT ... WITHIN: the first row of each group within a time."""

from __future__ import annotations
