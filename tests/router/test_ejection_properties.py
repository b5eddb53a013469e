"""Passive health of a pool under random sequences of outcomes."""

from hypothesis import given
from hypothesis import strategies as st

from router.fleet.breaker import BreakerState
from router.settings.fleet import EjectionSettings
from tests.router.breakers import Pool, work

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
