"""``python -m watersmeet.cli`` is ``watersmeet``."""

from __future__ import annotations

from watersmeet.cli import main

main()
