"""Filters of the sandbox (`bounds`) that report to the watch themselves."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_round, do_trim, make_attrgetter
from jinja2.runtime import Context

from router.rendering.watch import SIZED, WATCH, Watch

#: Most digits that a number may be rounded to: Python creates as many as it is told.
_DIGITS = 20


def round_(
    value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common"
) -> float:
    """Jinja's `round`, limited to a sensible number of digits. Raises SecurityError."""
    if not -_DIGITS <= precision <= _DIGITS:
        raise SecurityError("a number would be too large")
    return do_round(value, precision, method)


@pass_context
def trim(context: Context, value: object, chars: str | None = None) -> str:
    """Jinja's `trim`, with a fast path for strings. Raises Unlike, SecurityError."""
    watch: Watch = context.parent[WATCH]
    if chars is not None:
        watch.product(value, [chars])  # each character is searched for in `chars`
    made = value.strip(chars) if type(value) is str else do_trim(value, chars)  # type: ignore[arg-type]
    watch.charge(len(made))
    return made


@pass_context
def sum_(
    context: Context,
    values: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,  # noqa: ANN401 - Jinja's signature
) -> Any:  # noqa: ANN401 - Jinja's signature
    """Jinja's `sum`; lists are charged one by one, as adding one copies all before it.

    Raises Unlike, SecurityError.
    """
    watch: Watch = context.parent[WATCH]
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    given = each(watch, values)
    if not isinstance(start, list | tuple):
        return sum(given, start)  # type: ignore[arg-type]
    total: Any = start
    for value in given:
        total = total + value
        watch.keep(total)
    return total


def each(watch: Watch, values: Iterable[object]) -> Iterator[object]:
    """Yield the values, charging for each.

    All together may not be longer than a list of them. Raises Unlike, SecurityError.
    """
    total = 0
    for value in values:
        weight = watch.weigh(value)
        total += weight
        watch.measure(total)
        watch.charge(weight)
        yield value


def listed(values: object) -> object:
    """Return a value that can be weighed: an iterator becomes a list of its values."""
    if isinstance(values, SIZED) or not isinstance(values, Iterable):
        return values
    return list(values)


def refuse(*_: object, **__: object) -> None:
    """Replace filters that no prompt needs. Raises SecurityError."""
    raise SecurityError("no prompt needs this")


@pass_context
def turn(context: Context, value: object) -> object:
    """Count a turn of a loop. Raises Unlike."""
    context.parent[WATCH].turn()
    return value


@pass_context
def keep(context: Context, value: object) -> object:
    """Measure and charge a new value. Raises Unlike, SecurityError."""
    context.parent[WATCH].keep(value)
    return value


@pass_context
def cut(context: Context, value: object) -> object:
    """Charge for a part of another value. Raises Unlike."""
    context.parent[WATCH].cut(value)
    return value


@pass_context
def say(context: Context, value: object) -> object:
    """Charge for output inside a block; strings are measured at the block's end.

    Raises Unlike, SecurityError.
    """
    if type(value) is not str:
        watch: Watch = context.parent[WATCH]
        watch.charge(watch.weigh(value))
    return value


@pass_context
def compare(context: Context, value: object) -> object:
    """Charge for a compared value and everything in it. Raises Unlike, SecurityError."""
    if type(value) is int:
        return value  # most are: positions in a conversation
    watch: Watch = context.parent[WATCH]
    watch.charge(watch.weigh(value))
    return value


@pass_context
def within(context: Context, value: object) -> object:
    """Charge for a value that is searched; a dict counts as one item. Raises Unlike,
    SecurityError."""
    watch: Watch = context.parent[WATCH]
    watch.charge(1 if isinstance(value, dict) else watch.weigh(value))
    return value
