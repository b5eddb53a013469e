"""Late binding: near saturation a request is held back until a worker is about to be free.

Whoever is sent to a worker's queue is bound to it, in the order of arrival, and waits there
behind whatever came before. Held in the router instead, the shortest goes first, and each goes
where it is cheapest by then. A held request's need shrinks by `AGING` for each second it waits, so
no one starves; nobody is held beyond `LONGEST_S`.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Generic, TypeVar

from strategies.base import Decision, Prompt
from strategies.load import Load

T = TypeVar("T")

#: Seconds of prefill that a worker may have booked and still be sent more: so it never idles.
READY_S = 0.3
#: Seconds of prefill that a second of waiting makes up for.
AGING = 0.2
#: Nobody is held longer.
LONGEST_S = 30.0
#: Seconds after which it is decided anew where somebody held would go, for the fleet has changed;
#: less where it is room that is missing, which comes back unseen.
LOOK_S, FULL_LOOK_S = 0.5, 0.1
#: How many of the best workers are remembered between two decisions.
REMEMBERED = 16
#: How many are looked at each time; those who came first.
LOOKED_AT = 64


class Held(Generic[T]):
    """One request that waits to be bound."""

    __slots__ = ("again", "full", "item", "load", "prefill_s", "prompt", "rests", "since")

    def __init__(self, item: T, prompt: Prompt, since: float, decision: Decision) -> None:
        self.item = item
        """Whatever the caller wants back with it."""
        self.prompt = prompt
        self.since = since
        self.look(decision, since)

    def look(self, decision: Decision, now: float) -> None:
        """Note where it would go."""
        candidates = decision.candidates[:REMEMBERED]
        choice = candidates[0]
        self.load: Load = choice.worker.load
        self.rests = {c.worker.load: c.cost.total - c.cost.wait for c in candidates}
        """What it costs at each of the best, but for the wait there."""
        self.prefill_s = choice.cost.prefill
        """What it needs there."""
        self.full = choice.cost.room > 0.0
        self.again = now + (FULL_LOOK_S if self.full else LOOK_S)

    def is_sure(self, ready: Mapping[Load, float], now: float) -> bool:
        """It has to stay, without deciding anew: no `ready` worker has become the cheapest."""
        if now >= self.again:
            return False
        if self.full:
            return True
        rests, load = self.rests, self.load
        cost = rests[load] + load.wait(now) + load.promised_s
        return not any(
            one in rests and rests[one] + wait + one.promised_s <= cost
            for one, wait in ready.items()
        )


class LateBinding(Generic[T]):
    """Who is held. Every time is the caller's clock, in seconds."""

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        """Hold nobody for longer than `longest_s` seconds, nor than `LONGEST_S`."""
        self._longest_s = min(longest_s, LONGEST_S)
        self._held: dict[Held[T], None] = {}
        self._promised: set[Load] = set()
        self._loads: list[Load] = []
        """Of all workers, as of the last decision."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held[T]]:
        """Those held, whoever came first first."""
        return iter(list(self._held))

    @staticmethod
    def must_hold(decision: Decision) -> bool:
        """Even where it is cheapest, it would only wait in a queue."""
        cost = decision.candidates[0].cost
        return cost.wait > READY_S or cost.room > 0.0

    def enter(self, item: T, prompt: Prompt, decision: Decision, now: float) -> Held[T]:
        """Hold it; it leaves by `release` or by `leave`."""
        held = Held(item, prompt, now, decision)
        self._loads = [candidate.worker.load for candidate in decision.candidates]
        self._promise(held)
        self._held[held] = None
        return held

    def leave(self, held: Held[T]) -> None:
        """Its client has gone. Doing it twice, or after its release, changes nothing."""
        self._held.pop(held, None)
        if not self._held:
            self._clear()

    def release(
        self, rank: Callable[[Prompt], Decision], now: float
    ) -> tuple[Held[T], Decision] | None:
        """Let go of the next one that need not be held any more, with the decision for it.

        To be called when a worker may have become free, and again once that one is booked. Those
        held are gone through by need; each that has to stay is promised to where it would go, so
        that those behind it, and those who come, see the line as it will be.
        """
        waits = {load: load.wait(now) for load in self._loads}
        ready = {load: wait for load, wait in waits.items() if wait <= READY_S}
        if not ready and not self._is_over(now):
            return None
        self._clear()
        line = sorted(islice(self._held, LOOKED_AT), key=lambda h: h.prefill_s + AGING * h.since)
        for held in line:
            if held.is_sure(ready, now):
                self._promise(held)
                continue
            decision = rank(held.prompt)
            if now - held.since >= self._longest_s or not self.must_hold(decision):
                del self._held[held]
                return held, decision
            held.look(decision, now)
            self._loads = [candidate.worker.load for candidate in decision.candidates]
            self._promise(held)
        return None

    def _is_over(self, now: float) -> bool:
        """Whether somebody was held for as long as anybody is."""
        return any(now - held.since >= self._longest_s for held in islice(self._held, 1))

    def _promise(self, held: Held[T]) -> None:
        held.load.promised_s += held.prefill_s
        self._promised.add(held.load)

    def _clear(self) -> None:
        for load in self._promised:
            load.promised_s = 0.0
        self._promised.clear()
