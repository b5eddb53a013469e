"""The requests of one pool that wait in the router, and which of them is sent next, and where.

In a worker's queue a request waits behind everything that came before it. In the router the
shortest can go first, each to the worker that is cheapest by then. So a request waits here until a
worker that is about to be free accepts it. The order:

1. requests that had their turn in vain, or that have waited for `MAX_WAIT_S` (small prompts could
   take every token of the KV cache that comes free before a large one can); in order of arrival,
2. the tenants in turn,
3. the shortest prefill, where each second since a request came makes up for `AGING` seconds.

A long prompt that was sent may still be preempted (`preemption.py`), and waits here again.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import count, islice, takewhile, zip_longest
from math import inf
from typing import Final, Generic, TypeVar

from strategies.api import Decision, Prompt, nothing
from strategies.constants import (
    AGING,
    FULL_RERANK_INTERVAL_S,
    MARGIN,
    MAX_COMPARISONS,
    MAX_EXAMINED,
    MAX_REMEMBERED_WORKERS,
    MAX_WAIT_S,
    READY_S,
    READY_TOKENS,
    RERANK_INTERVAL_S,
    STEP_S,
)
from strategies.cost.load import Load
from strategies.cost.preemption import promised

T = TypeVar("T")

_NONE: Final = frozenset[str]()
#: Requests for which the same workers will do: tenant, model, the only worker that will do (or
#: empty), and those that will not.
Line = tuple[str, str, str, frozenset[str]]


class Wait:
    """The waiting of one request, however often it comes back. Times are the caller's clock."""

    def __init__(self, since: float, entered: float, deadline: float = inf) -> None:
        self.since = since
        """When the request came."""
        self.entered = entered
        """When it began to wait: anew each time that it was at a worker."""
        self.deadline = deadline
        """When it is to be told that it waits no longer."""
        self.queued = False
        """It has waited, so it has a place whatever the bound is."""
        self.called = False
        """It had its turn, so none takes its place."""
        self.first = False
        """It had its turn in vain, so it goes before others."""


class Entry(Generic[T]):
    """One request that waits: where it would go by now, and how it ranks among others."""

    def __init__(
        self, item: T, prompt: Prompt, line: Line, wait: Wait, number: int, *, bound: bool
    ) -> None:
        self.item = item
        """Anything of the caller's, to identify the request."""
        self.prompt = prompt
        self.line = line
        self.tenant = line[0]
        self.wait = wait
        self.number = number
        self.bound = bound
        """It waits only until a worker accepts it, whether or not that is about to be free."""
        self.over: Callable[[], object] = nothing
        """Called when it does not wait any more."""

    @property
    def only(self) -> str:
        """The name of the only worker that will do; empty if that is not so."""
        return self.line[2]

    def look(self, decision: Decision, now: float) -> None:
        """Store the decision: where it would go now.

        Raises an error if it is none; then the request keeps its place among others.
        """
        candidates = checked(decision).candidates[:MAX_REMEMBERED_WORKERS]
        choice = candidates[0]
        self.load: Load = choice.worker.load
        self.costs = {c.worker.load: c.cost.total - c.cost.wait for c in candidates}
        """Its cost on each of the best workers, without the wait."""
        self.prefill_s: float = choice.cost.prefill
        """Its prefill time on the best worker."""
        self.full: bool = choice.cost.room > 0.0
        self.need: float = self.prefill_s + AGING * self.wait.since
        """By which requests are ordered, least first: the differences stay as time passes."""
        self.look_again(now)

    def look_again(self, now: float) -> None:
        """Set when it is due to be decided anew."""
        self.again: float = now + (FULL_RERANK_INTERVAL_S if self.full else RERANK_INTERVAL_S)

    def is_over(self, now: float) -> bool:
        """Whether it has waited for `MAX_WAIT_S`."""
        return now - self.wait.entered >= MAX_WAIT_S

    def gains(self, ready: Mapping[Load, float], accepting: Container[Load], now: float) -> bool:
        """Whether one of the `ready` workers has become the cheapest of those that accept more."""
        if self.full:
            return False
        costs, load = self.costs, self.load
        if load not in accepting:
            return not ready.keys().isdisjoint(costs)
        cost = costs[load] + load.wait(now) + MARGIN * load.promised_s
        return any(
            other in costs and costs[other] + wait + MARGIN * other.promised_s <= cost
            for other, wait in ready.items()
        )


class Queue(Generic[T]):
    """The requests of one pool that wait. Every time is the caller's clock, in seconds."""

    def __init__(self, waits: Callable[[Prompt], Callable[[], object]] | None = None) -> None:
        self.waits = waits
        """Tells the pool's strategy that a request waits (see `Strategy`); raises no error."""
        self._entries: dict[Entry[T], None] = {}
        """All of them, in the order in which they began to wait; a dict removes in O(1)."""
        self._lines: dict[Line, list[Entry[T]]] = {}
        """Each line in order of need; the lines in the order in which they have their turns."""
        self.bound = 0
        """How many of them only wait until a worker accepts them."""
        self._vain: dict[Entry[T], None] = {}
        """Those that had their turn in vain."""
        self._numbers = count()
        self._loads: set[Load] = set()
        """Loads with promises."""
        self._seen: dict[Entry[T], None] = {}
        """Those that were looked at last, or came since."""
        self._promised: dict[Entry[T], tuple[float, float]] = {}
        """Those of them that are promised now, each with its entry in `Load.promises`."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry[T]]:
        """Iterate over all requests, in the order in which they began to wait."""
        return iter(list(self._entries))

    @staticmethod
    def must_hold(decision: Decision, now: float) -> bool:
        """Whether the request would have to wait at its worker even on the cheapest one.

        That is for other prompts, some that wait here included, or for room in its KV cache.
        """
        choice = decision.candidates[0]
        cost, load = choice.cost, choice.worker.load
        if cost.room > 0.0:
            return True
        if cost.wait <= READY_S:
            return False
        if choice.preempts:
            return cost.wait > READY_S + MARGIN * STEP_S
        if promised(load, cost.prefill, now)[0] > READY_S:
            return True
        return load.uncached > READY_TOKENS

    def enter(
        self,
        item: T,
        prompt: Prompt,
        decision: Decision,
        now: float,
        tenant: str = "",
        *,
        wait: Wait | None = None,
        only: str = "",
        bound: bool = False,
    ) -> Entry[T]:
        """Let a request wait, until `release` returns it or `leave` removes it.

        `wait`: its waiting, if it may come back or has done so. `only` names the one worker that
        will do, if just one will. One that is `bound` is not held for a worker that is about to be
        free.
        """
        line = line_of(prompt, tenant, only)
        if wait is None:
            wait = Wait(now, now)
        entry = Entry(item, prompt, line, wait, next(self._numbers), bound=bound)
        entry.look(decision, now)
        if self.waits is not None:
            entry.over = self.waits(prompt)
        self._promise(entry, now)
        self._seen[entry] = None
        self._add(entry)
        return entry

    def leave(self, entry: Entry[T]) -> None:
        """Remove a request whose client has gone; no effect if it does not wait any more."""
        if entry not in self._entries:
            return
        if entry in self._promised:
            load, promise = entry.load, self._promised.pop(entry)
            load.promises.remove(promise)
            load.promised_s = load.promised_s - entry.prefill_s if load.promises else 0.0
        self._remove(entry)

    def let_go(self) -> list[Entry[T]]:
        """Remove all requests, and return them: their workers may be another queue's next."""
        entries = list(self._entries)
        for entry in entries:
            self.leave(entry)
        return entries

    def length(self, line: Line) -> int:
        """Return how many requests wait in a line."""
        return len(self._lines.get(line, ()))

    def count(self, which: Callable[[Line], bool]) -> int:
        """Return how many requests wait in such lines."""
        return sum(len(line) for name, line in self._lines.items() if which(name))

    def longest(self) -> list[Entry[T]]:
        """Return the longest line."""
        return max(self._lines.values(), key=len, default=[])

    def release(
        self,
        rank: Callable[[Entry[T]], Decision | None],
        now: float,
        loads: Collection[Load],
    ) -> tuple[Entry[T], Decision] | None:
        """Return the next request that need not wait any more, with the decision for it.

        Call it when a worker may have become free, and again once the returned request is booked.
        `loads` are those of all workers that accept more; `rank` returns None if none of them will
        do for a request. Those that wait are visited in their order. Each one that has to stay is
        promised to the worker it would go to, so that those behind it, and new requests, take it
        into account.
        """
        if not self._entries:
            return None
        waits = {load: load.wait(now) for load in loads}
        ready = {
            load: wait
            for load, wait in waits.items()
            if wait <= READY_S or load.uncached <= READY_TOKENS
        }
        over = next(iter(self._entries)).is_over(now)
        if not loads or not (ready or self.bound or over):
            self._promise_again(now)
            return None
        self._take_back()
        looked = self._looked_at(now)
        self._seen = dict.fromkeys(looked)
        left = max(1, MAX_COMPARISONS // len(loads))
        due = self._due(looked, now, left)
        for entry in looked:
            if entry not in due and not entry.bound:
                if not left or not entry.gains(ready, waits, now):
                    self._promise(entry, now)
                    continue
                left -= 1
            decision = rank(entry)
            if decision is None:
                entry.look_again(now)
            elif entry.bound or entry.is_over(now) or not self.must_hold(decision, now):
                self._remove(entry)
                # Its tenant has had its turn, so goes behind all others.
                for name in [name for name in self._lines if name[0] == entry.tenant]:
                    self._lines[name] = self._lines.pop(name)
                return entry, decision
            else:
                self._look(entry, decision, now)
            self._promise(entry, now)
        return None

    def _looked_at(self, now: float) -> list[Entry[T]]:
        """Return the requests to look at this time, in their order.

        Of each line the one with least need, then the next one of each, and so on: so none hides
        those that wait for another worker or model. Nor do those that go before all others.
        """
        names = list(islice(self._lines, MAX_EXAMINED))
        lines = [self._lines[name][:MAX_EXAMINED] for name in names]
        if len(self._lines) > MAX_EXAMINED:  # the other lines are looked at next time
            for name in names:
                self._lines[name] = self._lines.pop(name)
        in_turn = (entry for turn in zip_longest(*lines) for entry in turn if entry is not None)
        tenants: dict[str, list[Entry[T]]] = {}
        for entry in islice(in_turn, MAX_EXAMINED):
            tenants.setdefault(entry.tenant, []).append(entry)
        for own in tenants.values():
            own.sort(key=_place)
        looked = dict.fromkeys(self._first(now))
        for turn in zip_longest(*tenants.values()):
            looked.update(dict.fromkeys(entry for entry in turn if entry is not None))
        return list(looked)

    def _first(self, now: float) -> list[Entry[T]]:
        """Return some of the requests that go before all others, in order of arrival."""
        old = takewhile(lambda entry: entry.is_over(now), self._entries)
        first = {**dict.fromkeys(islice(old, MAX_EXAMINED)), **self._vain}
        return nsmallest(MAX_EXAMINED, first, key=lambda entry: entry.wait.since)

    def _due(self, looked: list[Entry[T]], now: float, most: int) -> set[Entry[T]]:
        """Return at most `most` of these requests that are due to be decided anew."""
        due = (entry for entry in looked if now >= entry.again or entry.is_over(now))
        return set(nsmallest(most, due, key=lambda entry: entry.again))

    def _add(self, entry: Entry[T]) -> None:
        """Put a request where it belongs by its need, and by when it began to wait."""
        began, entries = entry.wait.entered, self._entries
        later = list(takewhile(lambda other: other.wait.entered > began, reversed(entries)))
        entries[entry] = None
        for other in reversed(later):
            del entries[other]
            entries[other] = None
        self._line_up(entry)
        self.bound += entry.bound
        if entry.wait.first:
            self._vain[entry] = None

    def _line_up(self, entry: Entry[T]) -> None:
        """Put a request in its line."""
        line = self._lines.setdefault(entry.line, [])
        line.insert(bisect_left(line, _place(entry), key=_place), entry)

    def _look(self, entry: Entry[T], decision: Decision, now: float) -> None:
        """Store where a request would go now."""
        line = self._lines[entry.line]
        at = bisect_left(line, _place(entry), key=_place)
        entry.look(decision, now)
        del line[at]
        self._line_up(entry)

    def _remove(self, entry: Entry[T]) -> None:
        """Remove a request, and its line if that is empty."""
        del self._entries[entry]
        line = self._lines[entry.line]
        del line[bisect_left(line, _place(entry), key=_place)]
        if not line:
            del self._lines[entry.line]
        self.bound -= entry.bound
        self._vain.pop(entry, None)
        self._seen.pop(entry, None)
        if not self._entries:
            self._take_back()
        entry.over()

    def _promise(self, entry: Entry[T], now: float) -> None:
        first = entry.wait.first or entry.is_over(now)
        load, need = entry.load, -inf if first else entry.need
        self._promised[entry] = promise = need, entry.prefill_s
        load.promised_s += entry.prefill_s
        load.promises.append(promise)
        self._loads.add(load)

    def _promise_again(self, now: float) -> None:
        """Promise all that was looked at last, or came since, and nothing else.

        (Where `release` returned a request, it has not promised those behind it.) If these have
        become many, only those are promised that would be looked at.
        """
        self._take_back()
        if len(self._seen) > 3 * MAX_EXAMINED:
            self._seen = dict.fromkeys(self._looked_at(now))
        for entry in self._seen:
            self._promise(entry, now)

    def _take_back(self) -> None:
        """Take back all promises."""
        for load in self._loads:
            load.promised_s = 0.0
            load.promises.clear()
        self._loads.clear()
        self._promised.clear()


def checked(decision: Decision) -> Decision:
    """Return the decision of a strategy, by which a request can have its place.

    Raises ValueError if its prediction is no time, or any other error if it is no decision.
    """
    prefill_s = decision.candidates[0].cost.prefill
    if not 0.0 <= prefill_s < inf:
        raise ValueError(f"no strategy may predict {prefill_s} s of prefill")
    return decision


def line_of(prompt: Prompt, tenant: str, only: str = "") -> Line:
    """Return the line of a request."""
    return tenant, prompt.model, only, frozenset(prompt.barred) if prompt.barred else _NONE


def to_displace(queues: Iterable[Queue[T]], own: int) -> Entry[T] | None:
    """Return the newest request of the longest line, to make room for a newcomer.

    None if the newcomer's own line, with `own` requests, would not stay shorter than that one, or
    if all of it has had its turn. So neither a tenant nor a stuck pool can lock others out.
    """
    longest = max((queue.longest() for queue in queues), key=len, default=[])
    if own + 1 >= len(longest):
        return None
    uncalled = (entry for entry in longest if not entry.wait.called)
    return max(uncalled, key=lambda entry: (entry.wait.entered, entry.number), default=None)


def _place(entry: Entry[T]) -> tuple[float, int]:
    return entry.need, entry.number
