"""Strategies by name: ours and those of installed packages, by entry point."""

from importlib.metadata import entry_points
from typing import Any, cast

from strategies.base import Strategy

GROUP = "warmroute.strategies"


def names() -> list[str]:
    """Every strategy that could be made, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find(name: str) -> type[Any]:
    """Return the strategy's class. Raises KeyError with the known names if there is none."""
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return cast("type[Any]", entry.load())
    raise KeyError(f"no strategy is called {name!r}; known are {', '.join(names())}")


def make(name: str, options: dict[str, object]) -> Strategy:
    """Make a strategy. `options` are in the units of its `Options` (bytes, seconds)."""
    cls = find(name)
    return cast("Strategy", cls(cls.Options(**options)))
