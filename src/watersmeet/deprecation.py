"""Old names of public attributes, arguments and values: they still work, and warn with the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


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


def accept_old_arguments(
    new_values: Mapping[str, Mapping[str, str]] | None = None, /, **new_names: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a call take its old keyword arguments, ``old="new"`` each, and old values of others.

    ``new_values``: the new value for each old one, by argument.

    >>> @accept_old_arguments(marks="watermarks")
    ... def join(*, watermarks: int = 0) -> int:
    ...     return watermarks
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     join(**{"marks": 5}), str(caught[0].message)
    (5, '`join(marks=)` is deprecated: use `join(watermarks=)`.')
    >>> @accept_old_arguments({"late": {"kept": "side_output"}})
    ... def join(*, late: str = "counted") -> str:
    ...     return late
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     join(late="kept"), str(caught[0].message)
    ('side_output', '`join(late="kept")` is deprecated: use `join(late="side_output")`.')
    """

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        name = call.__name__

        @wraps(call)
        def call_with_new_names(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{name}() got both '{new}' and '{old}', which is its old name")
                    warn_renamed(f"{name}({old}=)", f"{name}({new}=)")
                    kwargs[new] = kwargs.pop(old)
            for argument, by_old in (new_values or {}).items():
                value = kwargs.get(argument)
                if isinstance(value, str) and value in by_old:
                    warn_renamed(f'{name}({argument}="{value}")', f'{name}({argument}="{by_old[value]}")')
                    kwargs[argument] = by_old[value]
            return call(*args, **kwargs)

        call_with_new_names.__deprecated_names__ = new_names  # type: ignore[attr-defined]
        return call_with_new_names

    return decorate
