"""The analysis of a script, as the tests of logical plans have it."""

from tests.logical.conftest import analyze_sql, refusals_of

__all__ = ["analyze_sql", "refusals_of"]
