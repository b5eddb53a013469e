"""How many connections each of several processes has, in memory that all of them see.

Pure arithmetic over that memory: each cell is written by one process alone, so nobody needs a
lock; what is read may be a moment old, and then a connection is passed on that need not have been,
or stays that could have gone. Who minds the processes may shut a cell too, and never opens one.
"""

from mmap import mmap

#: Bytes of a cell.
CELL = 8
#: What a process that takes no connections says it has.
SHUT = 1 << 62
#: A process keeps a connection unless another one has this share less, and one more.
SLACK = 8


def cells(count: int) -> int:
    """Return how many bytes `count` processes need."""
    return CELL * count * (count + 2)


class Shares:
    """The memory, as one process sees it. `place` is from 0."""

    __slots__ = ("_cells", "_count", "_open", "_place")

    def __init__(self, memory: mmap, place: int, count: int) -> None:
        # First what each has open, then what each has taken over, then what each has passed to
        # each.
        self._cells = memoryview(memory).cast("Q")
        self._place, self._count = place, count
        self._open = 0

    def begin(self) -> None:
        """Take connections from now on."""
        self._cells[self._place] = self._open

    def shut(self) -> None:
        """Take none any more."""
        self._cells[self._place] = SHUT

    def opened(self, number: int = 1) -> None:
        """So many more, or fewer, are open here."""
        self._open += number
        if self._cells[self._place] < SHUT:
            self._cells[self._place] = self._open

    def took(self) -> None:
        """One that was passed here has been taken over."""
        self._cells[self._count + self._place] += 1

    def passed(self, to: int, number: int = 1) -> None:
        """So many more are on their way to another process."""
        self._cells[self._count * (2 + self._place) + to] += number

    def freest(self) -> int | None:
        """Return who should have the next connection, or None if it may as well stay here."""
        loads = [self._load(place) for place in range(self._count)]
        least = min(loads)
        mine = self._open
        return None if mine <= least + least // SLACK else loads.index(least)

    def _load(self, place: int) -> int:
        count = self._count
        sent = sum(self._cells[2 * count + place :: count])
        return self._cells[place] + sent - self._cells[count + place]

    def close(self) -> None:
        """Let go of the memory."""
        self._cells.release()
