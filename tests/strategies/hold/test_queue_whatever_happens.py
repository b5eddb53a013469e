"""Requests that wait, whatever comes, leaves, ends and changes: who waits, what loads are told."""

from collections.abc import Callable, Collection
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strategies.api import Candidate, Cost, Decision, Prompt
from strategies.cost.load import Booking, Load
from strategies.hold.queue import Entry, Queue, Wait
from tests.strategies.hold.desk import ANY, MANY, Stand

MODELS = st.sampled_from([ANY, "a", "b"])
TENANTS = st.sampled_from(["", "one", "two"])
#: More than are looked at, and longer than any waits.
CROWD, LONG = 70, 60.0


class Router(RuleBasedStateMachine):
    """Three workers, the requests that wait for them, and what is in flight there."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = [Stand(name) for name in "abc"]
        self.gone: set[Stand] = set()
        self.full: set[Stand] = set()
        self.running: dict[Booking, Load] = {}
        self.now = 0.0
        self.over = 0
        self.queue, self.other = Queue[int](self._waits), Queue[int](self._waits)
        self.held: list[Entry[int]] = []

    def _waits(self, _: Prompt) -> Callable[[], object]:
        self.over += 1

        def over() -> None:
            self.over -= 1

        return over

    def _serving(self, model: str) -> list[Stand]:
        """Return the workers that have the model, whether or not they accept more."""
        return [one for one in self.workers if model in {one.name, ANY} and one not in self.gone]

    def _ranked(self, entry: Entry[int]) -> Decision | None:
        return self._rank(entry.prompt)

    def _rank(self, prompt: Prompt) -> Decision | None:
        """Compare the workers by wait and prefill; what is full has no room for long prompts."""
        costs = [
            Candidate(
                one,
                Cost(
                    one.load.wait(self.now) + one.load.promised_s,
                    prompt.tokens / 10.0,
                    room=1.0 if one in self.full and prompt.tokens > 20 else 0.0,
                ),
            )
            for one in self._serving(prompt.model)
        ]
        return Decision(sorted(costs, key=lambda c: c.cost.total), "load") if costs else None

    def _enter(
        self, prompt: Prompt, tenant: str, wait: Wait | None = None, *, bound: bool = False
    ) -> None:
        decision = self._rank(prompt)
        if decision is not None:
            number = len(self.held)
            one = self.queue.enter(
                number, prompt, decision, self.now, tenant, wait=wait, bound=bound
            )
            self.held.append(one)

    @rule(tokens=st.integers(1, 90), model=MODELS, tenant=TENANTS, bound=st.booleans())
    def come(self, tokens: int, model: str, tenant: str, *, bound: bool) -> None:
        """A request waits."""
        self._enter(Prompt(model, tokens), tenant, bound=bound)

    @rule(tokens=st.integers(1, 90), tenant=TENANTS, age=st.sampled_from([0.0, 9.0]))
    def come_back(self, tokens: int, tenant: str, age: float) -> None:
        """One waits that had its turn in vain."""
        wait = Wait(self.now - age, self.now)
        wait.first = wait.called = True
        self._enter(Prompt(ANY, tokens), tenant, wait)

    @precondition(lambda self: len(self.held) < CROWD)
    @rule(model=MODELS, tenant=TENANTS)
    def crowd(self, model: str, tenant: str) -> None:
        """More come at once than are looked at."""
        for number in range(CROWD):
            self._enter(Prompt(model, 1 + number), tenant)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), twice=st.booleans())
    def leave(self, data: st.DataObject, *, twice: bool) -> None:
        """A client leaves, or several do."""
        some = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        for one in some:
            self.held.remove(one)
            for _ in range(1 + twice):
                self.queue.leave(one)

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.6, 4.0, 12.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def look(self) -> None:
        """Those that wait are looked at once; one that can go is sent."""
        self._look()

    def _look(self) -> bool:
        """Do so, and return whether one was sent."""
        loads = self._loads()
        released = self.queue.release(self._ranked, self.now, loads)
        if released is None:
            return False
        one, decision = released
        self.held.remove(one)
        choice = decision.candidates[0]
        over = one.is_over(self.now) or one.bound
        assert over or not self.queue.must_hold(decision, self.now)
        load = choice.worker.load
        stream = len(self.held) % 2 == 0
        booking = load.book(self.now, choice.cost.prefill, uncached=2 * MANY, stream=stream)
        self.running[booking] = load
        return True

    def _loads(self) -> Collection[Load]:
        return [one.load for one in self.workers if one not in self.gone]

    @rule()
    def look_on(self) -> None:
        """They are looked at until none can go; then none has waited too long for some worker."""
        for _ in range(3):  # not all of them are looked at each time
            while self._look():
                pass
        for one in self.held:
            assert not (one.is_over(self.now) and self._serving(one.prompt.model))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A request in flight ends."""
        booking = data.draw(st.sampled_from(list(self.running)))
        self.running.pop(booking).release(booking, self.now)

    @rule(which=st.integers(0, 2))
    def turn(self, which: int) -> None:
        """A worker goes, or is there again."""
        self.gone ^= {self.workers[which]}

    @rule(which=st.integers(0, 2))
    def fill(self, which: int) -> None:
        """A KV cache becomes full, or has room again."""
        self.full ^= {self.workers[which]}

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        """New settings: all are let go, and some wait again in the pool that has the workers."""
        gone = self.queue.let_go()
        assert set(gone) == set(self.held)
        self.queue, self.other = self.other, self.queue
        self.held = []
        for one in gone:
            if data.draw(st.booleans()) if len(gone) < 9 else one.item % 2:
                self._enter(one.prompt, one.tenant, one.wait, bound=one.bound)
            self.other.leave(one)

    @invariant()
    def counts(self) -> None:
        """All that wait are counted, and the strategy knows of each; they are in order."""
        assert len(self.queue) == self.over == len(self.held)
        assert len(self.other) == 0
        assert set(self.queue) == set(self.held)
        began = [one.wait.entered for one in self.queue]
        assert began == sorted(began)

    @invariant()
    def told(self) -> None:
        """Each load is told what some of those that wait are promised there, and no more."""
        for worker in self.workers:
            load = worker.load
            needs = [(one.need, one.prefill_s) for one in self.held if one.load is load]
            firsts = [one.prefill_s for one in self.held if one.load is load]
            for need, seconds in load.promises:
                if need == -inf:
                    firsts.remove(seconds)
                else:
                    needs.remove((need, seconds))
            assert load.promised_s == pytest.approx(sum(seconds for _, seconds in load.promises))
            assert load.promises or load.promised_s == 0.0

    def teardown(self) -> None:
        """Each is released in the end; then nothing is told any more."""
        self.gone.clear()
        self.now += LONG
        self.look_on()
        self.counts()
        assert self.held == []
        for worker in self.workers:
            load = worker.load
            assert (load.promises, load.promised_s) == ([], 0.0)


Router.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRouter = Router.TestCase
