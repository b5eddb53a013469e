"""What one rendering of a chat template may still use: time, and room for what it makes."""

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from router.identity.unlike import Unlike

#: The name by which a rendering finds its watch: none that a template could write.
WATCH = "the watch"
#: All that one rendering makes may together be this many times as long as its longest text.
TOGETHER = 64
#: Turns between two looks at the clock.
TURNS = 16
#: Characters or items that are made or gone through take as long as a turn: 2 to the power of it.
_WORK_BITS = 12
#: Values that are weighed between two looks at the clock, less one; all of its bits are set.
_WEIGHED = 0xFFF
#: Bits of a number: what computes with longer ones takes long.
BITS = 4096

#: Where namespaces keep what they hold.
_ATTRIBUTES = "_Namespace__attrs"
#: What says how long it is, and is weighed by what it holds.
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
    """Looked at by each turn of a loop and each call; told of all that is made. Raises Unlike."""

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float]) -> None:
        """Let it make values of `limit` characters or items, for `seconds` of `clock`."""
        self.limit = limit
        self._left = limit * TOGETHER
        self._turns = TURNS
        self._clock = clock
        self._deadline = clock() + seconds

    def turn(self) -> None:
        """One more turn."""
        self._turns -= 1
        if self._turns < 0:
            self._turns = TURNS
            self.look()

    def look(self) -> None:
        """Look at the clock."""
        if self._clock() > self._deadline:
            raise Unlike("rendered too slowly")

    def charge(self, length: int) -> None:
        """So much is made or gone through: a turn, or many."""
        self._left -= length
        if self._left < 0:
            raise Unlike("rendered too long")
        self._turns -= length >> _WORK_BITS
        self.turn()

    def measure(self, length: int) -> None:
        """One value is that long."""
        if length > self.limit:
            raise Unlike("rendered too long")

    def keep(self, value: object) -> None:
        """Measure and charge a value that was made just now. Raises SecurityError, too."""
        if isinstance(value, str):
            self.measure(len(value))
            self.charge(len(value))
        else:
            self.measure(self.weigh(value))
            self.cut(value)

    def cut(self, value: object) -> None:
        """The same of a part of another value: it is no longer than that, written out."""
        if isinstance(value, SIZED):
            self.charge(len(value))

    def weigh(self, value: object) -> int:
        """Return about how long a value is, written out. Raises SecurityError.

        What stands in it twice counts twice: a list of two times the same list, and so on, is
        small until somebody writes it, compares it or hashes it.
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
        """Charge what comes of a value into which others are put. Raises SecurityError."""
        factor = max(map(self.weigh, by), default=0)
        if factor > 1:
            self.charge(self.weigh(value) * factor)

    def widened(self, value: object, by: list[object]) -> None:
        """The same of a value that is widened by numbers, and filled up. Raises SecurityError."""
        widths = [one for one in by if isinstance(one, int)]
        for width in widths:
            self.measure(width)
        self.product(value, [one for one in by if not isinstance(one, int)])
        self.charge(self.weigh(value) * max(widths, default=0))


def _opened(one: object, waiting: list[object], *, outermost: bool) -> int:
    """Return how long a value is without what it holds, which is to be weighed too."""
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
        if not outermost:  # could be made to hold more once it was weighed
            raise SecurityError("a namespace within something else")
        held: dict[str, object] = getattr(one, _ATTRIBUTES)
        waiting.extend(held.values())
    return 0


def _bits(number: int) -> int:
    bits = number.bit_length()
    if bits > BITS:
        raise SecurityError("a number is too large")
    return bits
