"""States of queries, looked at and changed from outside, while nothing runs on them."""

from __future__ import annotations
