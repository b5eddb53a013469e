"""Strategies by name, from entry points: built-in ones and those of installed packages."""

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from strategies.api import Capabilities, Strategy

GROUP = "warmroute.strategies"


def names() -> list[str]:
    """Return the names of all available strategies, sorted."""
    return sorted({entry.name for entry in _entries(*sys.path)})


def find(name: str) -> type[Any]:
    """Return a strategy's class. Raises KeyError, with the known names, if there is none."""
    for entry in _entries(*sys.path):
        if entry.name == name:
            return cast("type[Any]", entry.load())
    raise KeyError(f"no strategy is called {name!r}; known are {', '.join(names())}")


def make(name: str, options: dict[str, object]) -> Strategy:
    """Create a strategy. `options` are in the units of its `Options` (bytes, seconds).

    Raise TypeError if the class is no strategy.
    """
    cls = find(name)
    strategy = cls(cls.Options(**options))
    if not isinstance(getattr(strategy, "capabilities", None), Capabilities):
        raise TypeError(f"{cls.__name__} does not derive from strategies.api.Strategy")
    return cast("Strategy", strategy)


@cache
def _entries(*path: str) -> tuple[EntryPoint, ...]:  # noqa: ARG001 - what the answer depends on
    """Return the entry points of the packages on `sys.path`, which is `path`.

    Finding them opens a file of every package; a reload asks dozens of times, on the event loop.
    """
    return tuple(entry_points(group=GROUP))
