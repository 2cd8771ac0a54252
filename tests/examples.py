"""How many examples a property test tries."""

from __future__ import annotations

import os


def examples(number: int) -> int:
    """So many in `make test`, and a part of them where WATERSMEET_EXAMPLES says so, as in `make check`."""
    return max(5, int(number * float(os.environ.get("WATERSMEET_EXAMPLES", "1"))))
