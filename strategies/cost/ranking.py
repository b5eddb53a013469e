"""Workers sorted by cost, as candidates that are created only when accessed.

Of the hundreds of workers compared, only one or two are accessed; creating an object for each would
take as long as comparing them.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, overload

from strategies.api import Candidate, Cost

#: Sort keys first: total cost, wait, turn, position in the list. Then worker, prefill, price,
#: decode, room and home in seconds, tokens held, which of them have to be loaded, and how many
#: prompts it preempts.
#: (Not a tuple type with a fixed length: mypyc would unpack and rebuild each tuple.)
Row = tuple[Any, ...]

_new = tuple.__new__  # twice as fast as `Cost(...)`


class Ranking(Sequence[Candidate]):
    """Candidates, cheapest first."""

    __slots__ = ("_first", "_rows", "_sorted")

    def __init__(self, rows: list[Row]) -> None:
        """Take the rows, and put the cheapest first; the others are sorted when accessed."""
        place = rows.index(min(rows))
        rows[0], rows[place] = rows[place], rows[0]
        self._rows = rows
        self._sorted = False
        self._first: Candidate | None = None  # cached, as it is usually accessed several times

    def __len__(self) -> int:
        return len(self._rows)

    def _in_order(self) -> list[Row]:
        if not self._sorted:
            self._rows.sort()
            self._sorted = True
        return self._rows

    @overload
    def __getitem__(self, place: int) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> list[Candidate]: ...
    def __getitem__(self, place: int | slice) -> Candidate | list[Candidate]:
        if isinstance(place, slice):
            return [_candidate(row) for row in self._in_order()[place]]
        if place:
            return _candidate(self._in_order()[place])
        if self._first is None:
            self._first = _candidate(self._rows[0])
        return self._first

    def led_by(self, worker: str) -> "Ranking":
        """Return the ranking with `worker` moved to the front, if it is in it."""
        rows = self._rows
        return Ranking([(-inf, *row[1:]) if row[4].name == worker else row for row in rows])


def led_by(ranked: Sequence[Candidate], worker: str) -> Sequence[Candidate] | None:
    """Return the ranking with `worker` moved to the front; None if it is not in it."""
    if isinstance(ranked, Ranking):
        ranked = ranked.led_by(worker)
    else:
        ranked = sorted(ranked, key=lambda one: one.worker.name != worker)
    return ranked if ranked[0].worker.name == worker else None


def _candidate(row: Row) -> Candidate:
    _, wait, _, _, worker, prefill, price, decode, room, home, held, loads, preempts = row
    cost = _new(Cost, (wait, prefill, price, decode, room, home))
    return Candidate(worker, cost, held, loads, preempts)
