"""Checkpoints and states of queries, read and changed from outside while no query runs on them."""

from __future__ import annotations
