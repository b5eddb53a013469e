"""Late binding: near saturation, requests are held until a worker is about to be free.

A request in a worker's queue is bound to that worker, and waits behind everything that came before
it. If requests are held in the router instead, the shortest can go first, each to the worker that
is cheapest by then (`held.py` says which is first). A long prompt that was sent may still be
preempted (`preemption.py`).
After `LONGEST_S`, a request is sent even if it then has to wait in a worker's queue.
"""

from collections.abc import Callable, Collection, Iterator
from heapq import nsmallest
from itertools import islice, takewhile, zip_longest
from math import inf
from typing import Final, Generic, TypeVar

from strategies.aging import Crowd, aging
from strategies.base import Candidate, Decision, Prompt
from strategies.constants import MARGIN, STEP_S
from strategies.held import Held
from strategies.load import AGING, Load
from strategies.preemption import promised

T = TypeVar("T")

#: A worker with at most this many seconds of prefill booked is sent more, so that it never idles.
READY_S: Final = 0.3
#: So is one with at most this many uncached tokens booked, however long they take. One engine step
#: computes that many (the smallest usual `max_num_batched_tokens` of vLLM). While many requests
#: decode, steps are long, and prompts sent one by one would waste them.
READY_TOKENS = 2_048
#: Or with at most this many for each request that decodes there, if that is more. The token that
#: such a request gets in each step takes about as long as so many tokens of a prompt: a step with
#: fewer would spend most of its time on decoding.
READY_EACH: Final = 12
#: A prompt of at least `JOINED_LEAST` uncached tokens is also sent if it makes at most
#: `JOINED_TOKENS` together with all that is booked there: by `READY_TOKENS` alone, each step would
#: compute one such prompt while the next is on its way. Shorter prompts share a step anyway.
JOINED_LEAST, JOINED_TOKENS = 512, 6_656
#: How many requests `release` looks at: of each line the one with least need, then the next one of
#: each, and so on. There is a line for each tenant and model, so requests for one model do not hide
#: others.
LOOKED_AT = 64
#: The costly part of `release` is deciding anew, which compares all workers. At most `COMPARED`
#: comparisons are spent on requests that are due, longest overdue first, and as many on requests
#: for which another worker has become cheapest; but at least `DECIDED_ANEW` decisions on each.
COMPARED, DECIDED_ANEW = 512, 4


class LateBinding(Generic[T]):
    """The held requests of one pool. Every time is the caller's clock, in seconds."""

    def __init__(
        self,
        waits: Callable[[Prompt], Callable[[], object]] | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        """Create it empty; `crowd` says how many were held before."""
        self.waits = waits
        """Tells the pool's strategy that a request is held (see `Strategy`); raises no error."""
        # By tenant and model; each line in order of arrival.
        self._lines: dict[tuple[str, str], dict[Held[T], None]] = {}
        self._held = 0
        self._told: set[Load] = set()
        """Those that know of held requests."""
        self._seen: dict[Held[T], None] = {}
        """Those that were looked at last, or came since; a dict removes in O(1)."""
        self._promised: dict[Held[T], tuple[float, float]] = {}
        """Those of them that are promised now, each with its entry in `Load.promises`."""
        self._crowd = Crowd() if crowd is None else crowd
        self._aging = AGING
        """Seconds of prefill that a second of waiting makes up for."""

    def __len__(self) -> int:
        return self._held

    def __iter__(self) -> Iterator[Held[T]]:
        """Iterate over all held requests, line by line, each in order of arrival."""
        return iter([held for line in self._lines.values() for held in line])

    @staticmethod
    def must_hold(prompt: Prompt, decision: Decision, now: float) -> bool:
        """Whether the request would have to wait in a queue even on the cheapest worker.

        Or it would wait for room.
        """
        return decision.candidates[0].cost.room > 0.0 or _would_queue(prompt, decision, now)

    def enter(
        self,
        item: T,
        prompt: Prompt,
        decision: Decision,
        now: float,
        tenant: str = "",
        *,
        since: float | None = None,
    ) -> Held[T]:
        """Hold a request, until `release` returns it or `leave` removes it.

        `since`: when it was first held, if that was earlier.
        """
        self._crowd.note(self._held, now)
        held = Held(item, prompt, now, decision, tenant)
        if since is not None:
            held.since = since
        if self.waits is not None:
            held.over = self.waits(prompt)
        self._promise(held, now)
        self._seen[held] = None
        self._add(held)
        self._held += 1
        return held

    def leave(self, held: Held[T], now: float) -> None:
        """Remove a request whose client has gone; no effect if it is not held any more."""
        if held in self._lines.get(held.line, ()):
            self._crowd.note(self._held, now)
            self._withdraw(held)
            self._remove(held)

    def let_go(self, now: float) -> list[Held[T]]:
        """Remove all requests, and return them: their workers may be another binding's next."""
        gone = list(self)
        for held in gone:
            self.leave(held, now)
        return gone

    def release(
        self,
        rank: Callable[[Prompt], Decision | None],
        now: float,
        loads: Collection[Load],
    ) -> tuple[Held[T], Decision] | None:
        """Return the next request that need not be held any more, with the decision for it.

        Call it when a worker may have become free, and again once the returned request is booked.
        `loads` are those of all current workers; `rank` returns None if no worker can take the
        prompt yet. Held requests are visited in order of need. Each one that has to stay is
        promised to the worker it would go to, so that those behind it, and new requests, take it
        into account.
        """
        if not self._held:
            return None
        waits = {load: load.wait(now) for load in loads}
        ready = {
            load: wait
            for load, wait in waits.items()
            if wait <= READY_S
            or _in_one_step(load)
            or load.uncached <= JOINED_TOKENS - JOINED_LEAST
        }
        if not loads or (not ready and not self._is_over(now)):
            self._promise_again(now)
            return None
        self._clear()
        self._crowd.note(self._held, now)
        self._aging = aging(self._crowd.held, loads)
        if self._aging < AGING:
            self._tell(loads)
        line = self._looked_at(now)
        self._seen = dict.fromkeys(line)
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
            elif held.is_over(now) or not self.must_hold(held.prompt, decision, now):
                self._remove(held)
                if held.line in self._lines:  # tenants take turns
                    self._lines[held.line] = self._lines.pop(held.line)
                return held, decision
            else:
                held.look(decision, now)
            self._promise(held, now)
        return None

    def _looked_at(self, now: float) -> list[Held[T]]:
        """Return the requests to look at this time, least need first."""
        names = list(islice(self._lines, LOOKED_AT))
        lines = [self._first(self._lines[name], now) for name in names]
        if len(self._lines) > LOOKED_AT:  # the other lines are looked at next time
            for name in names:
                self._lines[name] = self._lines.pop(name)
        turns = (held for turn in zip_longest(*lines) for held in turn if held is not None)
        return self._first(list(islice(turns, LOOKED_AT)), now)

    def _first(self, line: Collection[Held[T]], now: float) -> list[Held[T]]:
        """Return at most `LOOKED_AT` requests with the least need, least first."""
        return nsmallest(LOOKED_AT, line, key=lambda held: held.need(now, self._aging))

    def _due(self, line: list[Held[T]], now: float, most: int) -> set[Held[T]]:
        """Return at most `most` requests of `line` that are due to be decided anew."""
        over = (held for held in line if now >= held.again or held.is_over(now))
        return set(nsmallest(most, over, key=lambda held: held.again))

    def _is_over(self, now: float) -> bool:
        """Whether any request has been held for `LONGEST_S`."""
        return any(next(iter(line)).is_over(now) for line in self._lines.values())

    def _add(self, held: Held[T]) -> None:
        """Put a request in its line where its arrival puts it: near the end."""
        line = self._lines.setdefault(held.line, {})
        later = list(takewhile(lambda other: other.since > held.since, reversed(line)))
        line[held] = None
        for other in reversed(later):
            del line[other]
            line[other] = None

    def _remove(self, held: Held[T]) -> None:
        """Remove a request, and its line if that is empty."""
        line = self._lines[held.line]
        del line[held]
        if not line:
            del self._lines[held.line]
        self._held -= 1
        self._seen.pop(held, None)
        if not self._held:
            self._clear()
            self._aging = AGING
        held.over()

    def _promise(self, held: Held[T], now: float) -> None:
        load = held.load
        load.aging = self._aging
        need = held.prefill_s + held.area_s + load.aging * held.since
        if held.is_first(now):
            need = -inf
            load.promised_tokens += held.lacking
        self._promised[held] = promise = need, held.prefill_s
        load.promised_s += held.prefill_s
        load.promises.append(promise)
        self._told.add(load)

    def _withdraw(self, held: Held[T]) -> None:
        """Take back the promise of one request, if it has one."""
        if held in self._promised:
            load, promise = held.load, self._promised.pop(held)
            load.promises.remove(promise)
            load.promised_s = load.promised_s - held.prefill_s if load.promises else 0.0
            if promise[0] == -inf:
                load.promised_tokens -= held.lacking

    def _tell(self, loads: Collection[Load]) -> None:
        """Let waiting count less on all these workers, those first compared included."""
        for load in loads:
            load.aging = self._aging
        self._told.update(loads)

    def _promise_again(self, now: float) -> None:
        """Promise all that was looked at last, or came since, and nothing else.

        (Where `release` returned a request, it has not promised those behind it.)
        """
        self._take_back()
        for held in self._seen:
            self._promise(held, now)

    def _take_back(self) -> None:
        """Take back all promises."""
        for load in self._told:
            load.promised_s, load.promised_tokens = 0.0, 0
            load.promises.clear()
        self._promised.clear()

    def _clear(self) -> None:
        """Take back all that the workers were told."""
        self._take_back()
        for load in self._told:
            load.aging = AGING
        self._told.clear()


def _would_queue(prompt: Prompt, decision: Decision, now: float) -> bool:
    """Whether it would wait for other prompts at its worker, or for some that are held."""
    choice = decision.candidates[0]
    cost, load = choice.cost, choice.worker.load
    if cost.wait <= READY_S:
        return False
    if choice.preempts:
        return cost.wait > READY_S + MARGIN * STEP_S
    if promised(load, cost.prefill, now)[0] > READY_S:
        return True
    return not (_in_one_step(load) or _joins(prompt, choice))


def _in_one_step(load: Load) -> bool:
    """Whether one step of the engine is worth all tokens that are booked and not yet computed."""
    return load.uncached <= max(READY_TOKENS, READY_EACH * load.decoding)


def _joins(prompt: Prompt, choice: Candidate) -> bool:
    """Whether a prompt may join what is booked there (see `JOINED_LEAST`)."""
    own = prompt.tokens - choice.held_tokens + choice.loading.tokens
    return own >= JOINED_LEAST and choice.worker.load.uncached + own <= JOINED_TOKENS
