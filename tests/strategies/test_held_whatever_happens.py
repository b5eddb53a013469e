"""Held requests, whatever comes, leaves, ends and changes: what loads are told, and who is held."""

from collections.abc import Callable, Collection
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.booking import Booking
from strategies.held import LONGEST_S, Held
from strategies.latebinding import LOOKED_AT, READY_S, LateBinding
from strategies.load import AGING, Load
from tests.strategies.desk import ANY, MANY, Stand

MODELS = st.sampled_from([ANY, "a", "b"])
TENANTS = st.sampled_from(["", "one", "two"])


class Router(RuleBasedStateMachine):
    """Three workers, the requests held for them, and what is in flight there."""

    def __init__(self) -> None:
        super().__init__()
        self.workers = [Stand(name) for name in "abc"]
        self.gone: set[Stand] = set()
        self.full: set[Stand] = set()
        self.running: dict[Booking, Load] = {}
        self.now = 0.0
        self.over = 0
        self.binding, self.other = self._binding(), self._binding()
        self.held: list[Held[int]] = []

    def _binding(self) -> LateBinding[int]:
        return LateBinding(self._waits)

    def _waits(self, _: Prompt) -> Callable[[], object]:
        self.over += 1

        def over() -> None:
            self.over -= 1

        return over

    def _serving(self, model: str) -> list[Stand]:
        """Return the workers that have the model, whether or not they accept more."""
        return [one for one in self.workers if model in {one.name, ANY} and one not in self.gone]

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

    def _enter(self, prompt: Prompt, tenant: str, since: float | None = None) -> None:
        decision = self._rank(prompt)
        if decision is not None:
            number = len(self.held)
            one = self.binding.enter(number, prompt, decision, self.now, tenant, since=since)
            self.held.append(one)
            assert one in self.binding._promised

    @rule(tokens=st.integers(1, 90), model=MODELS, tenant=TENANTS)
    def come(self, tokens: int, model: str, tenant: str) -> None:
        """A request is held."""
        self._enter(Prompt(model, tokens), tenant)

    @precondition(lambda self: len(self.held) < LOOKED_AT)
    @rule(model=MODELS, tenant=TENANTS)
    def crowd(self, model: str, tenant: str) -> None:
        """More come at once than are looked at."""
        for number in range(LOOKED_AT + 6):
            self._enter(Prompt(model, 1 + number), tenant)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), twice=st.booleans())
    def leave(self, data: st.DataObject, *, twice: bool) -> None:
        """A client leaves, or several do."""
        some = data.draw(st.lists(st.sampled_from(self.held), min_size=1, unique=True))
        for one in some:
            self.held.remove(one)
            for _ in range(1 + twice):
                self.binding.leave(one, self.now)

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.6, 4.0, 12.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def look(self) -> None:
        """The held requests are looked at once; one that can go is sent."""
        self._look()

    def _look(self) -> bool:
        """Do so, and return whether one was sent."""
        loads = [one.load for one in self.workers if one not in self.gone]
        looks = self._looks(loads)
        released = self.binding.release(self._rank, self.now, loads)
        if released is None:
            told = self.binding._promised
            assert told.keys() == self.binding._seen.keys()
            assert not looks or len(told) == min(len(self.held), LOOKED_AT)
            return False
        one, decision = released
        self.held.remove(one)
        choice = decision.candidates[0]
        assert one.is_over(self.now) or not self.binding.must_hold(one.prompt, decision, self.now)
        load = choice.worker.load
        stream = len(self.held) % 2 == 0
        booking = load.book(self.now, choice.cost.prefill, uncached=2 * MANY, stream=stream)
        self.running[booking] = load
        return True

    def _looks(self, loads: Collection[Load]) -> bool:
        """Whether any worker is ready, or any request held too long."""
        return any(one.wait(self.now) <= READY_S for one in loads) or (
            bool(loads) and any(one.is_over(self.now) for one in self.held)
        )

    @rule()
    def look_on(self) -> None:
        """They are looked at until none can go; then none is held too long that some worker has."""
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
        """New settings: all are let go, and some held again by the pool that has the workers."""
        gone = self.binding.let_go(self.now)
        assert set(gone) == set(self.held)
        self.binding, self.other = self.other, self.binding
        self.held = []
        for one in gone:
            if data.draw(st.booleans()) if len(gone) < 9 else one.item % 2:
                self._enter(one.prompt, one.line[0], one.since)
            self.other.leave(one, self.now)

    @invariant()
    def counts(self) -> None:
        """All that are held are counted, and the strategy knows of each; lines are in order."""
        assert len(self.binding) == self.over == len(self.held)
        assert len(self.other) == 0
        assert set(self.binding) == set(self.held)
        lines: dict[tuple[str, str], list[float]] = {}
        for one in self.binding:
            lines.setdefault(one.line, []).append(one.since)
        assert all(line == sorted(line) for line in lines.values())

    @invariant()
    def told(self) -> None:
        """Each load is told what is promised there, exactly, and how much waiting counts."""
        among = self.binding._promised
        assert among.keys() <= set(self.held)
        for worker in self.workers:
            load = worker.load
            left, reserved = load.promises.copy(), 0
            for one in among:
                if one.load is not load:
                    continue
                seconds = one.prefill_s
                need = seconds + one.area_s + load.aging * one.since, seconds
                if need not in left:  # as of when it was promised
                    need = -inf, seconds
                    assert one.is_first(self.now)
                    reserved += one.tokens if one.lacks(self.now) else 0
                left.remove(need)
            assert left == []
            assert load.promised_s == pytest.approx(sum(seconds for _, seconds in load.promises))
            assert load.promised_tokens == reserved
            assert load.promises or load.promised_s == 0.0
            assert load.aging in ({AGING, self.binding._aging} if self.held else {AGING})
            assert not load.promises or load.aging == self.binding._aging

    def teardown(self) -> None:
        """Each is released in the end; then nothing is told any more."""
        self.gone.clear()
        self.now += LONGEST_S + 1.0
        self.look_on()
        self.counts()
        assert self.held == []
        for worker in self.workers:
            load = worker.load
            assert (load.promises, load.promised_s, load.promised_tokens) == ([], 0.0, 0)
            assert load.aging == AGING


Router.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRouter = Router.TestCase
