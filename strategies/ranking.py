"""Workers sorted by cost, as candidates that are created only when accessed.

Of the hundreds of workers compared, only one or two are accessed; creating an object for each would
take as long as comparing them.
"""

from collections.abc import Sequence
from typing import Any, Final, overload

from strategies.base import Candidate, Cost, Prompt
from strategies.following import WIDELY, follows
from strategies.latebinding import READY_S, READY_TOKENS
from strategies.load import Load
from strategies.preemption import MOSTLY

#: Requests are alike where at least `WIDELY` of the workers hold the same `MOSTLY` or more of a
#: prompt, such as a system prompt that everybody sends. Those of these workers that cost at most
#: `ALIKE_S` seconds more than the cheapest then take turns: whoever gets requests at even intervals
#: seldom has two in one step. The cheapest is where an answer has just ended, so a step has just
#: begun, and the next request waits for all of it. (That is a seventh of what a full KV cache
#: costs: where requests differ, evenly filled caches matter more than turns.)
ALIKE_S: Final = 0.45

#: Sort keys first: total cost, wait, turn, position in the list. Then worker, prefill, price,
#: decode, room and home in seconds, tokens held, which of them have to be loaded, and how many
#: prompts it preempts.
#: (Not a tuple type with a fixed length: mypyc would unpack and rebuild each tuple.)
Row = tuple[Any, ...]

_new = tuple.__new__  # twice as fast as `Cost(...)`


class Ranking(Sequence[Candidate]):
    """Candidates, cheapest first."""

    __slots__ = ("_first", "_rows", "_sorted")

    def __init__(self, rows: list[Row], prompt: Prompt | None = None) -> None:
        """Take the rows for a prompt, and put the best first; the others are sorted when accessed.

        Without the prompt, workers do not take turns.
        """
        if rows:
            best = min(rows)
            if prompt is not None and prompt.tokens and best[10] >= MOSTLY * prompt.tokens:
                best = _next_of_alike(rows, best, prompt)
            place = rows.index(best)
            rows[0], rows[place] = rows[place], rows[0]
        self._rows = rows
        self._sorted = False
        self._first: Candidate | None = None  # cached, as it is usually accessed several times

    def __len__(self) -> int:
        return len(self._rows)

    def _in_order(self) -> list[Row]:
        if not self._sorted:
            rows = self._rows
            best = rows[0]
            rows.sort()
            if rows[0] is not best:
                rows.remove(best)
                rows.insert(0, best)
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


def _next_of_alike(rows: list[Row], best: Row, prompt: Prompt) -> Row:
    """Return the worker whose turn it is if requests are alike (see `ALIKE_S`), else `best`."""
    held, prefill = best[10], best[5]
    alike = [row for row in rows if row[10] == held and row[5] == prefill]
    if len(alike) < WIDELY * len(rows):
        return best
    most = best[0] + ALIKE_S
    takes = [row for row in alike if row[0] <= most and _takes(row, best, prompt)]
    return min(takes, key=_turn)


def _takes(row: Row, best: Row, prompt: Prompt) -> bool:
    """Whether a worker takes a request as soon as `best` would: nobody is held for a turn."""
    wait: float = row[1]
    load: Load = row[4].load
    if row[8] > best[8]:
        return False
    if wait <= max(best[1], READY_S) or load.uncached <= READY_TOKENS:
        return True
    return follows(prompt, load, wait)


def _turn(row: Row) -> tuple[int, float]:
    """Return when its worker was chosen last, and its cost."""
    turn: int = row[2]
    cost: float = row[0]
    return turn, cost


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
