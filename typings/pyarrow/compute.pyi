"""pyarrow makes its functions at run time and ships no types for them: whatever comes from it is Any."""

from typing import Any

def __getattr__(name: str) -> Any: ...
