"""The budget of one rendering of a chat template: time, and the size of what it creates."""

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from router.rendering.errors import Unlike

#: The name under which a rendering finds its watch: not a name that a template could write.
WATCH = "the watch"
#: Everything that one rendering creates may together be this many times its longest text.
TOGETHER = 64
#: Turns between two checks of the clock.
TURNS = 16
#: Characters or items created or traversed that count as one turn, as a power of two.
_WORK_BITS = 12
#: Values weighed between two checks of the clock, minus one; used as a bit mask.
_WEIGHED = 0xFFF
#: Most bits of a number: calculations with longer ones are slow.
BITS = 4096

#: The attribute in which Jinja's namespaces keep their values.
_ATTRIBUTES = "_Namespace__attrs"
#: Types with a length, which are weighed by their content.
SIZED = (str, bytes, list, tuple, set, frozenset, dict)
_COLLECTIONS: tuple[type, ...] = (
    list,
    tuple,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


class Watch:
    """Called at each turn of a loop and each call, and for every value created. Raises Unlike."""

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float]) -> None:
        """Allow values of up to `limit` characters or items, for `seconds` of `clock`."""
        self.limit = limit
        self._left = limit * TOGETHER
        self._turns = TURNS
        self._clock = clock
        self._deadline = clock() + seconds

    def turn(self) -> None:
        """Count one turn."""
        self._turns -= 1
        if self._turns < 0:
            self._turns = TURNS
            self.look()

    def look(self) -> None:
        """Check the clock."""
        if self._clock() > self._deadline:
            raise Unlike("rendered too slowly")

    def charge(self, length: int) -> None:
        """Charge for a length created or traversed, which counts as one turn or more."""
        self._left -= length
        if self._left < 0:
            raise Unlike("rendered too long")
        self._turns -= length >> _WORK_BITS
        self.turn()

    def measure(self, length: int) -> None:
        """Check the length of one value."""
        if length > self.limit:
            raise Unlike("rendered too long")

    def keep(self, value: object) -> None:
        """Measure and charge a new value. Raises SecurityError too."""
        if isinstance(value, str):
            self.measure(len(value))
            self.charge(len(value))
        else:
            self.measure(self.weigh(value))
            self.cut(value)

    def cut(self, value: object) -> None:
        """Charge for a part of another value; written out, it is no longer than that value."""
        if isinstance(value, SIZED):
            self.charge(len(value))

    def weigh(self, value: object) -> int:
        """Return the approximate length of a value, written out. Raises SecurityError.

        Content that occurs twice counts twice: a list of twice the same list, nested further, is
        small only until it is written, compared or hashed.
        """
        if type(value) is str:
            return 1 + len(value)
        weight, seen, waiting = 0, 0, [value]
        while waiting:
            one = waiting.pop()
            weight += 1 + _opened(one, waiting, outermost=one is value)
            if weight + len(waiting) > self.limit:
                raise Unlike("rendered too long")
            seen += 1
            if not seen & _WEIGHED:
                self.look()
        return weight

    def product(self, value: object, by: list[object]) -> None:
        """Charge for inserting other values into a value. Raises SecurityError."""
        factor = max(map(self.weigh, by), default=0)
        if factor > 1:
            self.charge(self.weigh(value) * factor)

    def widened(self, value: object, by: list[object]) -> None:
        """Charge for widening a value to given widths, filled with other values. Raises
        SecurityError."""
        widths = [one for one in by if isinstance(one, int)]
        for width in widths:
            self.measure(width)
        self.product(value, [one for one in by if not isinstance(one, int)])
        self.charge(self.weigh(value) * max(widths, default=0))


def _opened(one: object, waiting: list[object], *, outermost: bool) -> int:
    """Return a value's own length; what it contains is added to `waiting`."""
    if isinstance(one, str | bytes):
        return len(one)
    if isinstance(one, Mapping):
        waiting.extend(one)
        waiting.extend(one.values())
    elif isinstance(one, _COLLECTIONS):
        waiting.extend(cast("Iterable[object]", one))
    elif isinstance(one, int):
        return _bits(one) >> 2
    elif isinstance(one, Namespace):
        if not outermost:  # it could grow after it was weighed
            raise SecurityError("a namespace within something else")
        held: dict[str, object] = getattr(one, _ATTRIBUTES)
        waiting.extend(held.values())
    return 0


def _bits(number: int) -> int:
    bits = number.bit_length()
    if bits > BITS:
        raise SecurityError("a number is too large")
    return bits
