"""Counts the connections of each process in shared memory.

Pure arithmetic over that memory. Each cell is written by one process only, so no lock is needed. A
value read may be slightly old; at worst a connection is passed on, or kept, without need. The
parent process may shut a cell too, but never opens one.
"""

from mmap import mmap

#: Bytes of a cell.
CELL = 8
#: The count shown by a process that takes no connections.
SHUT = 1 << 62
#: A process keeps a connection unless its count exceeds the lowest one by more than 1/SLACK.
SLACK = 8


def cells(count: int) -> int:
    """Return how many bytes of memory `count` processes need."""
    return CELL * count * (count + 2)


class Shares:
    """One process's view of the memory. `place` is counted from 0."""

    __slots__ = ("_cells", "_count", "_open", "_place")

    def __init__(self, memory: mmap, place: int, count: int) -> None:
        # Layout: open connections per process, connections taken over per process, then a matrix of
        # connections passed, by sender and receiver.
        self._cells = memoryview(memory).cast("Q")
        self._place, self._count = place, count
        self._open = 0

    def begin(self) -> None:
        """Take connections from now on."""
        self._cells[self._place] = self._open

    def shut(self) -> None:
        """Take no connections any more."""
        self._cells[self._place] = SHUT

    def opened(self, number: int = 1) -> None:
        """Count `number` more connections open here; fewer if it is negative."""
        self._open += number
        if self._cells[self._place] < SHUT:
            self._cells[self._place] = self._open

    def took(self) -> None:
        """Count a connection taken over from another process."""
        self._cells[self._count + self._place] += 1

    def passed(self, to: int, number: int = 1) -> None:
        """Count `number` more connections passed to process `to`."""
        self._cells[self._count * (2 + self._place) + to] += number

    def freest(self) -> int | None:
        """Return the process that should get the next connection, or None to keep it here."""
        loads = [self._load(place) for place in range(self._count)]
        least = min(loads)
        mine = self._open
        return None if mine <= least + least // SLACK else loads.index(least)

    def _load(self, place: int) -> int:
        count = self._count
        sent = sum(self._cells[2 * count + place :: count])
        return self._cells[place] + sent - self._cells[count + place]

    def close(self) -> None:
        """Release the memory."""
        self._cells.release()
