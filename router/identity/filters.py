"""Filters of the sandbox (`bounds`) that look at the watch by themselves."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import do_round, do_trim, make_attrgetter
from jinja2.runtime import Context

from router.identity.watch import SIZED, WATCH, Watch

#: Digits that a number is rounded to, at most: Python makes a number of as many as it is told.
_DIGITS = 20


def round_(
    value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common"
) -> float:
    """Jinja's own, to as many digits as a prompt may need. Raises SecurityError."""
    if not -_DIGITS <= precision <= _DIGITS:
        raise SecurityError("a number would be too large")
    return do_round(value, precision, method)


@pass_context
def trim(context: Context, value: object, chars: str | None = None) -> str:
    """Jinja's own for what is asked of it most. Raises Unlike, SecurityError."""
    watch: Watch = context.parent[WATCH]
    if chars is not None:
        watch.product(value, [chars])  # each letter is looked for among them
    made = value.strip(chars) if type(value) is str else do_trim(value, chars)  # type: ignore[arg-type]
    watch.charge(len(made))
    return made


@pass_context
def sum_(
    context: Context,
    values: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,  # noqa: ANN401 - as Jinja has it
) -> Any:  # noqa: ANN401 - as Jinja has it
    """Jinja's own; of lists one by one, as each that is added is copied with all before it.

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
    """Give one after the other; each is a turn, and all together may not be longer than a list of
    them. Raises Unlike, SecurityError."""
    total = 0
    for value in values:
        weight = watch.weigh(value)
        total += weight
        watch.measure(total)
        watch.charge(weight)
        yield value


def listed(values: object) -> object:
    """Return what can be weighed: what gives its values one after the other gives all of them."""
    if isinstance(values, SIZED) or not isinstance(values, Iterable):
        return values
    return list(values)


def refuse(*_: object, **__: object) -> None:
    """Stand for what no prompt needs. Raises SecurityError."""
    raise SecurityError("no prompt needs this")


@pass_context
def turn(context: Context, value: object) -> object:
    """Count a turn. Raises Unlike."""
    context.parent[WATCH].turn()
    return value


@pass_context
def keep(context: Context, value: object) -> object:
    """Measure a value that was made just now. Raises Unlike, SecurityError."""
    context.parent[WATCH].keep(value)
    return value


@pass_context
def cut(context: Context, value: object) -> object:
    """Charge a part of another value. Raises Unlike."""
    context.parent[WATCH].cut(value)
    return value


@pass_context
def say(context: Context, value: object) -> object:
    """Charge what is written into a block; texts are looked at where it ends. Raises Unlike,
    SecurityError."""
    if type(value) is not str:
        watch: Watch = context.parent[WATCH]
        watch.charge(watch.weigh(value))
    return value


@pass_context
def compare(context: Context, value: object) -> object:
    """Charge what is compared, with all that is in it. Raises Unlike, SecurityError."""
    if type(value) is int:
        return value  # most are: places in a conversation
    watch: Watch = context.parent[WATCH]
    watch.charge(watch.weigh(value))
    return value


@pass_context
def within(context: Context, value: object) -> object:
    """Charge what something is looked for in; objects find it at once. Raises Unlike,
    SecurityError."""
    watch: Watch = context.parent[WATCH]
    watch.charge(1 if isinstance(value, dict) else watch.weigh(value))
    return value
