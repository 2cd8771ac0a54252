"""Old names of public attributes: they still work, and warn with the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn the caller of the public surface that a name is deprecated."""
    warnings.warn(f"`{old}` is deprecated: use `{new}`.", DeprecationWarning, stacklevel=stacklevel)


def accept_old_names(**new_names: str) -> Callable[[C], C]:
    """Give a class its old attributes back: ``old="new"`` each.

    >>> @accept_old_names(told="lineage")
    ... class Answer:
    ...     lineage = 5
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     Answer().told, str(caught[0].message)
    (5, '`Answer.told` is deprecated: use `Answer.lineage`.')
    """

    def decorate(cls: C) -> C:
        def read_old_name(self: Any, name: str) -> Any:
            new = new_names.get(name)
            if new is None:
                raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'", name=name, obj=self)
            warn_renamed(f"{cls.__name__}.{name}", f"{cls.__name__}.{new}")
            return getattr(self, new)

        cls.__getattr__ = read_old_name  # type: ignore[attr-defined]
        cls.__deprecated_names__ = new_names  # type: ignore[attr-defined]
        return cls

    return decorate
