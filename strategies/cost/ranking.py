"""Workers sorted by cost, as candidates that are created only when accessed.

Of the hundreds of workers compared, only one or two are accessed; creating an object for each would
take as long as comparing them.
"""

from collections.abc import Sequence
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
        if rows:
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

    def led_by(self, worker: str) -> "Ranking | None":
        """Return the ranking with `worker` first; see the function of the same name."""
        rows = self._in_order()
        for place, row in enumerate(rows):
            if row[4].name == worker:
                led = Ranking([])
                led._rows, led._sorted = [row, *rows[:place], *rows[place + 1 :]], True
                return led
        return None

    def __repr__(self) -> str:
        return f"<Ranking {list(self)}>"


def led_by(ranked: Sequence[Candidate], worker: str) -> Sequence[Candidate] | None:
    """Return the ranking with `worker` moved to the front; None if it is not in it."""
    if isinstance(ranked, Ranking):
        return ranked.led_by(worker)
    home = next((one for one in ranked if one.worker.name == worker), None)
    return None if home is None else [home, *(one for one in ranked if one is not home)]


def ordered_as(ranked: Sequence[Candidate], other: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates of `ranked` in the order of `other`, a ranking of the same workers."""
    found = {one.worker.name: one for one in ranked}
    return [found[one.worker.name] for one in other]


def _candidate(row: Row) -> Candidate:
    _, wait, _, _, worker, prefill, price, decode, room, home, held, loads, preempts = row
    cost = _new(Cost, (wait, prefill, price, decode, room, home))
    return Candidate(worker, cost, held, loads, preempts)
