"""Classes that describe something answer a misspelt keyword with the nearest name they have."""

from __future__ import annotations

import inspect
from typing import Any

from descend.errors import ConfigurationError, nearest

__all__ = ["Described"]


class Described(type):
    """The metaclass of descriptions: a keyword that the class does not take is an error that names the nearest one.

    Raises:
        ConfigurationError: when an object is made with unknown keywords; all of them are named.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object."""
        taken = inspect.signature(cls.__init__).parameters
        if kwargs and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            options = [name for name in taken if name not in ("self", "where")]
            unknown = [name for name in kwargs if name not in taken]
            if unknown:
                shown = ", ".join(options) or "none"
                raise ConfigurationError(
                    [
                        f"{cls.__name__} has no option '{n}'{nearest(n, options) or ';'} its options are {shown}"
                        for n in unknown
                    ]
                )
        return super().__call__(*args, **kwargs)
