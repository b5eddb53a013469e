"""How many workers of a pool are ejected at once, and when ejections are ignored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.breaker import BreakerState
from router.settings.fleet import EjectionSettings
from tests.fleet.breakers import SETTINGS, Pool, fail, work


@pytest.mark.parametrize(
    ("size", "share", "most"),
    [
        (1, 1.0, 0),
        (2, 0.5, 1),
        (2, 0.49, 0),
        (2, 1.0, 1),
        (3, 0.5, 1),
        (10, 0.3, 3),
        (100, 0.29, 29),
        (4, 0.0, 0),
    ],
)
def test_no_more_than_a_share_is_left_out(size: int, share: float, most: int) -> None:
    """The number is rounded down, and never covers the whole pool."""
    pool = Pool(size, EjectionSettings.model_construct(failures=1, share=share, panic=0))
    for place in range(size):
        fail(pool[place], 0)
    assert len(pool.admitted(0)) == size - most
    assert pool.out() == list(range(most))


@pytest.mark.parametrize("trial", [False, True])
def test_who_makes_room(trial: bool) -> None:
    """A worker whose time is over is let in, so that another can be ejected, unless its trial is
    under way."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    if trial:
        pool[0].began(10)
    fail(pool[1], 10, 3)
    assert pool.admitted(10) == ([1] if trial else [0])


def test_too_few_healthy_workers_and_nobody_is_left_out() -> None:
    """Ejections are ignored; one log line says when that begins and one when it ends."""
    pool = Pool(4)
    fail(pool[0], 0, 3)
    assert pool.admitted(0) == [1, 2, 3]
    pool.members[1].ready = pool.members[2].ready = False
    for _ in range(3):
        assert pool.admitted(1) == [0, 3]
    assert (pool.breakers.panicking, pool.breakers.admits(1, pool.members[0])) == (True, True)
    pool.members[1].ready = True
    for _ in range(3):
        assert pool.admitted(2) == [1, 3]
    assert (pool.breakers.panicking, pool.breakers.admits(2, pool.members[0])) == (False, False)
    assert pool.told[1:] == [
        "1 of 4 workers are healthy: ejections are ignored",
        "2 of 4 workers are healthy: ejections count again",
    ]


def test_the_share_of_the_healthy_is_exact() -> None:
    """7 of 100 is not less than a share of 0.07, despite floating point."""
    pool = Pool(100, EjectionSettings.model_construct(failures=1, panic=0.07))
    for member in pool.members[8:]:
        member.ready = False
    fail(pool[0], 0)
    assert pool.admitted(0) == list(range(1, 8))
    pool.members[7].ready = False
    assert pool.admitted(0) == list(range(7))


@pytest.mark.parametrize("leaves", [False, True])
def test_it_ends_with_the_last_ejection(leaves: bool) -> None:
    """Panic ends when no worker is ejected any more, because it works or has left the pool."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    pool.members[1].ready = False
    assert pool.admitted(10) == [0]
    if leaves:
        pool.breakers.change(SETTINGS, pool.members[1:])
    else:
        work(pool[0], 10)
    assert pool.breakers.panicking is False
    assert pool.told[-1].endswith("workers are healthy: ejections count again")


def test_requests_that_panic_sends_there_say_nothing() -> None:
    """Their outcome is ignored, the ejection is no longer for it, and the trial comes after it."""
    pool = Pool(4)
    fail(pool[0], 0, 3)
    for member in pool.members[1:]:
        member.ready = False
    assert pool.admitted(5) == [0]
    stray = pool[0].began(5)
    fail(pool[0], 5, 3)
    work(pool[0], 5)
    assert (pool[0].state(9), pool[0].until) == (BreakerState.OPEN, 10)
    assert pool[0].state(10) is BreakerState.HALF_OPEN
    pool[0].worked(10, stray)
    assert pool.out() == [0]


def test_a_reload_keeps_who_is_left_out() -> None:
    """If the changed pool allows fewer ejections, the workers due back first are let in."""
    pool = Pool(4)
    fail(pool[0], 0, 3)
    fail(pool[1], 5, 3)
    pool.breakers.change(SETTINGS, pool.members)
    assert pool.admitted(6) == [2, 3]
    smaller = pool.members[:3]
    pool.breakers.change(SETTINGS, smaller)
    assert pool.breakers.admitted(6, smaller) == [pool.members[0], pool.members[2]]
    pool.breakers.change(EjectionSettings.model_construct(share=0), smaller)
    assert pool.out() == []
    assert pool.told[2:] == ["worker w0 is let back in", "worker w1 is let back in"]


def test_who_leaves_the_pool_takes_its_state_along() -> None:
    """It does not count in the old pool any more, and is still ejected in the new one."""
    pool, other = Pool(3), Pool(3)
    fail(pool[0], 0, 3)
    moved = pool.members[0]
    pool.breakers.change(SETTINGS, pool.members[1:])
    assert pool.breakers.any_open is False
    other.breakers.change(SETTINGS, [moved, *other.members])
    assert other.breakers.admitted(1, [moved, *other.members]) == other.members
    work(moved.breaker, 10)
    assert (other.breakers.any_open, other.told) == (False, ["worker w0 is let back in"])


def test_who_has_come_before_it_left_stays() -> None:
    """A worker that joins another pool before it leaves its own belongs to the new one."""
    pool, other = Pool(3), Pool(3)
    moved = pool.members[0]
    other.breakers.change(SETTINGS, [moved, *other.members])
    pool.breakers.change(SETTINGS, pool.members[1:])
    fail(moved.breaker, 0, 3)
    assert (pool.breakers.any_open, other.breakers.any_open) == (False, True)


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "answering", "worked", "failed", "neutral", "ready", "wait"]),
        st.integers(0, 7),
        st.floats(0, 30),
    ),
    max_size=80,
)


@given(st.integers(1, 6), st.floats(0, 1), st.floats(0, 1), steps)
def test_whatever_happens(
    size: int, share: float, panic: float, actions: list[tuple[str, int, float]]
) -> None:
    """Share, single trials and panic are right after every step; then every worker comes back."""
    play = Play(size, share, panic)
    for what, which, seconds in actions:
        if what == "wait":
            play.now += seconds
        elif what == "ready":
            member = play.pool.members[which % size]
            member.ready = not member.ready
        elif what == "send":
            play.send(which)
        elif play.sent:
            play.report(what, which % len(play.sent))
        play.check(share)
    play.recover()


class Play:
    """A pool, the requests under way, and which of them are trials."""

    def __init__(self, size: int, share: float, panic: float) -> None:
        settings = EjectionSettings.model_construct(
            failures=2, first=10, longest=60, share=share, panic=panic
        )
        self.pool = Pool(size, settings)
        self.now = 0.0
        self.sent: list[tuple[int, int]] = []
        self.trials: dict[tuple[int, int], float] = {}
        """When each trial expires."""

    def send(self, which: int) -> None:
        """Send a request to one of the admitted workers, and check that it may go there."""
        pool, now = self.pool, self.now
        admitted = pool.admitted(now)
        ready = [place for place, member in enumerate(pool.members) if member.ready]
        assert set(admitted) <= set(ready)
        assert bool(admitted) is bool(ready)
        if not admitted:
            return
        place = admitted[which % len(admitted)]
        state = pool[place].state(now)
        heeded = not pool.breakers.panicking and any(pool[each].admits(now) for each in ready)
        assert not (heeded and state is BreakerState.OPEN)
        may_try = pool[place].admits(now)
        assert may_try or not heeded
        mark = pool[place].began(now)
        self.sent.append((place, mark))
        if may_try and state is BreakerState.HALF_OPEN:
            assert all(until <= now for (on, _), until in self.trials.items() if on == place)
            self.trials[place, mark] = now + 60

    def report(self, what: str, which: int) -> None:
        """Report the outcome of one of the requests."""
        place, mark = self.sent[which]
        breaker = self.pool[place]
        self.trials.pop((place, mark), None)
        if what == "answering":
            breaker.answering(self.now, mark)
            return
        del self.sent[which]
        if what == "worked":
            breaker.worked(self.now, mark)
        elif what == "failed":
            breaker.failed(self.now, mark, "closed")
        else:
            breaker.neutral(mark)

    def check(self, share: float) -> None:
        """Check what must hold after every step."""
        pool, now = self.pool, self.now
        out = [
            each.breaker
            for each in pool.members
            if each.breaker.state(now) is not BreakerState.CLOSED
        ]
        assert pool.breakers.any_open is bool(out)
        assert len(out) <= share * len(pool.members) + 1e-6
        assert len(out) < len(pool.members)
        assert pool.breakers.any_open or not pool.breakers.panicking
        for breaker in out:
            assert breaker.until <= now + 60
            assert breaker.reason(now)
        panics = [line for line in pool.told if "healthy" in line]
        assert all(("ignored" in line) is (at % 2 == 0) for at, line in enumerate(panics))

    def recover(self) -> None:
        """After two longest ejections, let all requests succeed: every worker is in again."""
        for member in self.pool.members:
            member.ready = True
        now = self.now + 120
        for place in self.pool.admitted(now):
            work(self.pool[place], now)
        everyone = list(range(len(self.pool.members)))
        assert (self.pool.out(), self.pool.admitted(now)) == ([], everyone)
        assert not self.pool.breakers.panicking
