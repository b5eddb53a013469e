"""Late binding: near saturation a request is held back until a worker is about to be free.

Whoever is sent to a worker's queue is bound to it, in the order of arrival, and waits there
behind whatever came before. Held in the router instead, the shortest goes first, and each goes
where it is cheapest by then. A held request's need shrinks by `AGING` for each second it waits, and
who then lacks room in the KV cache is not passed over any more. Beyond `LONGEST_S` nobody is held
who may be sent somewhere.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import nsmallest
from itertools import islice, zip_longest
from typing import Final, Generic, TypeVar

from strategies.base import Decision, Prompt
from strategies.load import Load

T = TypeVar("T")

#: Seconds of prefill that a worker may have booked and still be sent more: so it never idles.
READY_S: Final = 0.3
#: Tokens that it may have booked and still be sent more, however long they take: one step computes
#: as many together (vLLM's least usual `max_num_batched_tokens`), and where steps are long because
#: many decode, prompts that come one by one waste them.
READY_TOKENS = 2_048
#: Seconds of prefill that a second of waiting makes up for.
AGING = 0.2
#: Who lacks room in the KV cache after so many seconds is before all others, and what it takes
#: counts as taken for whoever comes. At once would be first come, first served: room then lies idle
#: until there is enough for a large prompt, which waits no longer than the small ones that it keeps
#: waiting. Late, that is seldom needed; it leaves a third of the longest hold to find room.
LACKING_S = 20.0
#: Nobody is held longer who may be sent somewhere.
LONGEST_S = 30.0
#: Seconds after which it is decided anew where somebody held would go, for the fleet has changed;
#: less where it is room that is missing, which comes back unseen.
LOOK_S, FULL_LOOK_S = 0.5, 0.1
#: How many of the best workers are remembered between two decisions.
REMEMBERED = 16
#: How many are looked at each time: of each line the first, then of each the second, and so on.
#: A tenant has a line for each model: who waits for one hides nobody who waits for another.
LOOKED_AT = 64
#: What a look takes its time for is deciding anew, which compares all workers. So many comparisons
#: it may make for those for whom it is time, the longest overdue first, and as many for those for
#: whom a worker has become cheaper; so many decisions of each kind at least.
COMPARED, DECIDED_ANEW = 512, 4


class Held(Generic[T]):
    """One request that waits to be bound."""

    __slots__ = (
        "again",
        "full",
        "item",
        "line",
        "load",
        "prefill_s",
        "prompt",
        "rests",
        "since",
        "tokens",
    )

    def __init__(
        self, item: T, prompt: Prompt, since: float, decision: Decision, tenant: str
    ) -> None:
        self.item = item
        """Whatever the caller wants back with it."""
        self.line = tenant, prompt.model
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
        self.tokens = self.prompt.tokens - choice.held_tokens + self.prompt.answer_tokens
        """What it takes in the KV cache there, beyond what is held."""
        self.full = choice.cost.room > 0.0
        self.look_again(now)

    def need(self, now: float) -> tuple[bool, float]:
        """Seconds of prefill, less what its waiting makes up for; the least goes first.

        Who lacks room after a long wait is before all others, whoever came first first: a large
        prompt would else see every token that comes free taken by a small one.
        """
        if self.lacks(now):
            return False, self.since
        return True, self.prefill_s - AGING * (now - self.since)

    def lacks(self, now: float) -> bool:
        """It has waited for long, and it is room that is missing."""
        return self.full and now - self.since >= LACKING_S

    def look_again(self, now: float) -> None:
        """Note when it is to be decided anew."""
        self.again = now + (FULL_LOOK_S if self.full else LOOK_S)

    def gains(self, ready: Mapping[Load, float], now: float) -> bool:
        """One of the `ready` workers has become the cheapest."""
        if self.full:
            return False
        rests, load = self.rests, self.load
        cost = rests[load] + load.wait(now) + load.promised_s
        return any(
            one in rests and rests[one] + wait + one.promised_s <= cost
            for one, wait in ready.items()
        )


class LateBinding(Generic[T]):
    """Who is held. Every time is the caller's clock, in seconds."""

    def __init__(self) -> None:
        # Whoever came first first.
        self._lines: dict[tuple[str, str], dict[Held[T], None]] = {}
        self._held = 0
        self._promised: set[Load] = set()

    def __len__(self) -> int:
        return self._held

    def __iter__(self) -> Iterator[Held[T]]:
        """Those held, of each line whoever came first first."""
        return iter([held for line in self._lines.values() for held in line])

    @staticmethod
    def must_hold(decision: Decision) -> bool:
        """Even where it is cheapest, it would only wait in a queue."""
        choice = decision.candidates[0]
        cost, load = choice.cost, choice.worker.load
        if cost.room > 0.0 or cost.wait <= READY_S:
            return cost.room > 0.0
        return load.uncached > READY_TOKENS or load.promised_s > READY_S

    def enter(
        self, item: T, prompt: Prompt, decision: Decision, now: float, tenant: str = ""
    ) -> Held[T]:
        """Hold it; it leaves by `release` or by `leave`."""
        held = Held(item, prompt, now, decision, tenant)
        self._promise(held, now)
        self._lines.setdefault(held.line, {})[held] = None
        self._held += 1
        return held

    def leave(self, held: Held[T], now: float) -> None:
        """Its client has gone. Doing it twice, or after its release, changes nothing."""
        if held in self._lines.get(held.line, ()):
            self._remove(held)
            self._clear()
            for other in islice(self, LOOKED_AT):
                self._promise(other, now)
        elif not self._held:
            self._clear()

    def release(
        self,
        rank: Callable[[Prompt], Decision | None],
        now: float,
        loads: Collection[Load],
    ) -> tuple[Held[T], Decision] | None:
        """Let go of the next one that need not be held any more, with the decision for it.

        To be called when a worker may have become free, and again once that one is booked. `loads`
        are those of all workers there are now, `rank` decides, or tells by None that nobody can
        take the prompt yet. Those held are gone through by need; each that has to stay is promised
        to where it would go, so that those behind it, and those who come, see the line as it will
        be.
        """
        waits = {load: load.wait(now) for load in loads}
        ready = {
            load: wait
            for load, wait in waits.items()
            if wait <= READY_S or load.uncached <= READY_TOKENS
        }
        if not ready and not self._is_over(now):
            return None
        self._clear()
        line = self._looked_at(now)
        left = max(DECIDED_ANEW, COMPARED // max(1, len(loads)))
        due = self._due(line, now, left)
        for held in line:
            if held not in due:
                if not left or not held.gains(ready, now):
                    self._promise(held, now)
                    continue
                left -= 1
            decision = rank(held.prompt)
            if decision is None:
                held.look_again(now)
            elif now - held.since >= LONGEST_S or not self.must_hold(decision):
                self._remove(held)
                return held, decision
            else:
                held.look(decision, now)
            self._promise(held, now)
        return None

    def _looked_at(self, now: float) -> list[Held[T]]:
        """Those it is the turn of, the least need first."""
        names = list(islice(self._lines, LOOKED_AT))
        lines = [self._lines[name] for name in names]
        if len(self._lines) > LOOKED_AT:  # the others are next
            for name in names:
                self._lines[name] = self._lines.pop(name)
        turns = (held for turn in zip_longest(*lines) for held in turn if held is not None)
        return sorted(islice(turns, LOOKED_AT), key=lambda h: h.need(now))

    def _due(self, line: list[Held[T]], now: float, most: int) -> set[Held[T]]:
        """Those that are to be decided anew, whatever is known of the workers."""
        over = (held for held in line if now >= held.again or now - held.since >= LONGEST_S)
        return set(nsmallest(most, over, key=lambda held: held.again))

    def _is_over(self, now: float) -> bool:
        """Whether somebody was held for as long as anybody is."""
        return any(now - next(iter(line)).since >= LONGEST_S for line in self._lines.values())

    def _remove(self, held: Held[T]) -> None:
        """Take it out; its line's turn has been."""
        line = self._lines.pop(held.line)
        del line[held]
        if line:
            self._lines[held.line] = line
        self._held -= 1

    def _promise(self, held: Held[T], now: float) -> None:
        held.load.promised_s += held.prefill_s
        if held.lacks(now):
            held.load.promised_tokens += held.tokens
        self._promised.add(held.load)

    def _clear(self) -> None:
        for load in self._promised:
            load.promised_s, load.promised_tokens = 0.0, 0
        self._promised.clear()
