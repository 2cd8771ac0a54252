"""The analysis of a script, as the tests of logical plans have it."""

from tests.logical.conftest import analyzed, refused

__all__ = ["analyzed", "refused"]
