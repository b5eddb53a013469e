"""Work in slices: a thread that handles a large body lets go of the interpreter after each.

Only one thread at a time can hold the GIL, and a call into C may hold it until it ends. A large
body takes many such calls. In a row they would stop the event loop, and so everybody else's
streams, for as long as all of them together.
"""

from collections.abc import Callable
from threading import local
from time import monotonic, sleep, thread_time
from typing import TypeVar

T = TypeVar("T")

#: Bytes, and elements of a list, that are handled in one slice: about a millisecond each.
BYTES, ELEMENTS = 1 << 20, 1024
#: A rest is so many times as long as the work before it, and at most so many seconds.
RATIO, LONGEST_S = 2.0, 0.05


class _Thread(local):
    """What is remembered of a thread."""

    working = False
    since = 0.0
    """Its CPU time at the end of the last rest."""
    until = 0.0
    """When the rest after its last work ends."""


_thread = _Thread()


def begin() -> None:
    """Begin work in this thread, after the rest that follows the last one."""
    sleep(max(0.0, _thread.until - monotonic()))
    _thread.working, _thread.since = True, thread_time()


def end() -> None:
    """End the work. Its rest comes before the next one, not before its result."""
    _thread.working = False
    _thread.until = monotonic() + _due()


def sliced(work: Callable[[], T]) -> T:
    """Do work in this thread, with a rest wherever it calls `rest`. Raises what that raises."""
    begin()
    try:
        return work()
    finally:
        end()


def rest() -> None:
    """Let the others go on. Without effect in a thread that did not `begin`, such as the loop's."""
    if _thread.working:
        sleep(_due())
        _thread.since = thread_time()


def count(data: bytes, mark: bytes) -> int:
    """Count a byte in slices."""
    found = 0
    for start in range(0, len(data), BYTES):
        found += data.count(mark, start, start + BYTES)
        rest()
    return found


def _due() -> float:
    return min(LONGEST_S, RATIO * (thread_time() - _thread.since))
