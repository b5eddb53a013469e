"""Requests of other router processes are booked as if they were sent from here."""

from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.replicas.messages import Batch, Began, Booked, Ended, News, Resync, decode, encode, size
from router.replicas.mirror import Mirror
from strategies.api import Candidate, Capabilities, NoOptions, Outcome, Prompt, WorkerView
from strategies.cost.load import Booking, Load, late_s
from strategies.cost.preemption import drop
from strategies.policies.least_load import LeastLoad
from strategies.policies.prefix_aware import PrefixAware
from tests.fleet.fleets import choice, fleet, prompt

TEXT = "the quick brown fox jumps over the lazy dog and so on " * 400


class There:
    """Another process, which books requests as a router does and returns the news of it."""

    def __init__(self, strategy: str = "prefixaware") -> None:
        self.fleet = fleet(strategy)
        self._numbers = count(1)
        self._open: dict[int, tuple[Prompt, Candidate, Booking]] = {}

    def book(
        self, text: str, worker: int, now: float, *, stream: bool = True, resumed: bool = False
    ) -> Booked:
        """Send a request."""
        asked, number = prompt(text, stream=stream), next(self._numbers)
        asked = replace(asked, resumed=resumed)
        chosen = choice(self.fleet, worker)
        pool = self.fleet.pools[0]
        self._open[number] = asked, chosen, pool.book(asked, chosen, now)
        sizes = asked.tokens, asked.answer_tokens, stream, 1.0, 0, 0, 0, asked.unit_tokens
        return Booked(number, now, "p", f"w{worker}", *sizes, asked.keys, resumed)

    def begin(self, number: int, now: float) -> Began:
        """Note the first byte of the answer: the prompt is computed."""
        _, chosen, booking = self._open[number]
        chosen.worker.load.first_byte(booking, now)
        return Began(number, now)

    def end(self, number: int, now: float, *, began: bool = True, cached: int = 0) -> Ended:
        """End a request."""
        asked, chosen, booking = self._open.pop(number)
        outcome = Outcome(ok=began, began=began, cached_tokens=cached, answer_tokens=50)
        self.fleet.pools[0].strategy.settled(asked, chosen, outcome, now)
        if not began:
            chosen.worker.load.take_back(booking, now)
        chosen.worker.load.release(booking, now)
        return Ended(number, now, began, began, cached, 50)

    def drop(self, number: int, now: float) -> Ended:
        """Let a request give way to another one, if it may; end it otherwise."""
        asked, chosen, booking = self._open[number]
        if booking not in chosen.worker.load.pending:
            return self.end(number, now)
        del self._open[number]
        kept = drop(booking, chosen, asked.tokens, now)
        outcome = Outcome(ok=False, kept_tokens=kept)
        self.fleet.pools[0].strategy.settled(asked, chosen, outcome, now)
        return Ended(number, now, False, True, None, None, kept)

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the requests under way."""
        return list(self._open)


def sent(place: int, news: News) -> News:
    """Return the news as it arrives, encoded and decoded."""
    letter = decode(encode(Batch(place, 7, [news])))
    assert letter.place == place
    return letter.news[0]


def late(load: Load, now: float) -> float:
    """Return how late its oldest booking is, which only the process knows that sent it."""
    head = next(iter(load.pending), None)
    return 0.0 if head is None else late_s(head, now - load.head_since)


def picture(of: Fleet, now: float) -> list[dict[str, Any]]:
    """Return everything that a decision could depend on, except how late prefill is."""
    strategy = of.pools[0].strategy
    tree = strategy.tree if isinstance(strategy, PrefixAware) else None
    held = tree.held(prompt(TEXT).keys) if tree else {}
    return [
        {
            "in_flight": worker.load.in_flight,
            "decoding": worker.load.decoding,
            "kv_tokens": worker.load.kv_tokens,
            "shared": worker.load.shared_tokens,
            "uncached": worker.load.uncached,
            "wait": pytest.approx(worker.load.wait(now) - late(worker.load, now)),
            "given": worker.load.given_s,
            "surplus": worker.load.kv_surplus(now),
            "stay": worker.load.stay_s,
            "held": held.get(worker.name),
        }
        for worker in of.workers
    ]


steps = st.lists(
    st.tuples(
        st.sampled_from(["book", "resume", "begin", "end", "refused", "drop"]),
        st.integers(0, 1),
        st.integers(0, 20_000),
        st.integers(0, 7),
        st.booleans(),
    ),
    max_size=40,
)


@given(steps)
def test_all_is_as_it_is_there(done: list[tuple[str, int, int, int, bool]]) -> None:
    """Both sides agree after every step, and at the end nothing stays booked."""
    there, here = There(), fleet()
    mirror, now = Mirror(here), 0.0
    for what, worker, length, which, stream in done:
        now += 0.25
        if what in {"book", "resume"}:
            resumed = what == "resume"
            news: News = there.book(TEXT[:length], worker, now, stream=stream, resumed=resumed)
        elif not there.numbers:
            continue
        else:
            number = there.numbers[which % len(there.numbers)]
            if what == "begin":
                news = there.begin(number, now)
            elif what == "drop":
                news = there.drop(number, now)
            else:
                news = there.end(number, now, began=what == "end", cached=length // 8)
        mirror.take(1, sent(1, news), now + 0.001)
        assert len(mirror) == len(there.numbers)
        assert picture(here, now) == picture(there.fleet, now)
        for one in here.workers:
            assert (one.load.here, one.load.tokens_here) == (0, 0)
    for number in there.numbers:
        mirror.take(1, there.end(number, now), now)
    loads = [worker.load for worker in here.workers]
    assert [load.in_flight + load.kv_tokens for load in loads] == [0, 0]


def test_a_process_that_is_gone() -> None:
    """Its requests end; those of other processes stay."""
    one, two, here = There(), There(), fleet()
    mirror = Mirror(here)
    mirror.take(1, one.book(TEXT, 0, 0.0), 0.0)
    mirror.take(2, two.book(TEXT, 0, 0.0), 0.0)
    mirror.take(2, two.book(TEXT, 1, 0.0), 0.0)
    mirror.gone(2, 1.0)
    assert [worker.load.in_flight - worker.load.here for worker in here.workers] == [1, 0]
    mirror.take(2, two.end(1, 2.0), 2.0)  # unknown here by now
    mirror.take(1, Resync(asks=False), 2.0)
    assert [worker.load.in_flight for worker in here.workers] == [0, 0]
    assert len(mirror) == 0


def test_what_is_told_anew() -> None:
    """Requests reported again count once; those whose end nobody saw teach nothing."""
    there, here = There(), fleet()
    mirror, load = Mirror(here), next(here.workers).load
    stay_s = load.stay_s
    for _ in range(3):
        for news in (Resync(asks=False), there.book(TEXT, 0, 1.0), there.book(TEXT, 0, 1.0)):
            mirror.take(1, news, 20.0)
        there = There()
    assert (load.in_flight, len(mirror)) == (2, 2)
    assert 1.0 < load.given_s < 2.0
    mirror.take(1, there.book(TEXT, 0, 2.0), 20.0)  # a number in use already, which is ignored
    assert (load.in_flight, len(mirror)) == (2, 2)
    mirror.gone(1, 21.0)
    assert (load.in_flight, load.stay_s) == (0, stay_s)
    assert load.given_s == pytest.approx(0.0)


def test_what_is_not_known_here() -> None:
    """News of a worker or pool that does not exist here is ignored: settings may differ briefly."""
    there, here = There(), fleet(workers=1)
    mirror = Mirror(here)
    mirror.take(1, there.book(TEXT, 1, 0.0), 0.0)
    here.replace([Pool("q", ["*"], here.pools[0].workers, here.pools[0].strategy)])
    mirror.take(1, there.book(TEXT, 0, 0.0), 0.0)
    assert len(mirror) == 0
    for news in (there.begin(1, 1.0), there.end(1, 1.0), there.end(2, 1.0)):
        mirror.take(1, news, 1.0)
    assert next(here.workers).load.in_flight == 0


def test_a_pool_that_has_another_strategy_by_then() -> None:
    """A request booked with one strategy is settled with the same one, not with its successor."""
    there, here = There(), fleet()
    before = here.pools[0]
    mirror = Mirror(here)
    mirror.take(1, there.book(TEXT, 0, 0.0), 0.0)
    after = fleet().pools[0]
    here.replace([after])
    mirror.take(1, there.end(1, 1.0, began=False), 1.0)
    assert before.workers[0].load.in_flight == 0
    assert isinstance(before.strategy, PrefixAware)
    assert before.strategy.tree.held(prompt(TEXT).keys) == {}  # taken back


class Failing(LeastLoad):
    """A strategy that may raise in `placed` or `settled`, and counts both calls."""

    capabilities = Capabilities(hears_others=True)

    def __init__(self) -> None:
        super().__init__(NoOptions())
        self.fails, self.placements, self.ends = "", 0, 0

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        super().placed(prompt, worker, now)
        self.placements += 1
        if self.fails == "placed":
            raise LookupError

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        super().settled(prompt, candidate, outcome, now)
        self.ends += 1
        if self.fails == "settled":
            raise LookupError


class Deaf(Failing):
    """One that hears of requests of this process only."""

    capabilities = Capabilities()


@pytest.mark.parametrize("fails", ["", "placed", "settled"])
@pytest.mark.parametrize("hears", [True, False])
def test_a_strategy_of_others(caplog: pytest.LogCaptureFixture, fails: str, *, hears: bool) -> None:
    """It hears of others' requests only if it wants to, and its errors leave nothing booked."""
    strategy, there = Failing() if hears else Deaf(), There()
    strategy.fails = fails
    here = fleet()
    pool = Pool("p", ["*"], here.pools[0].workers, strategy)
    mirror = Mirror(Fleet([pool]))
    mirror.take(1, there.book(TEXT, 0, 0.0), 0.0)
    refused = hears and fails == "placed"
    assert pool.workers[0].load.in_flight == (0 if refused else 1)
    mirror.take(1, there.end(1, 1.0), 1.0)
    assert pool.workers[0].load.in_flight == 0
    assert (strategy.placements, strategy.ends) == ((1, 0 if refused else 1) if hears else (0, 0))
    assert ("its strategy raised an error" in caplog.text) == (hears and bool(fails))


_MOST = (1 << 63) - 1
_count = st.integers(0, _MOST)
_when = st.floats(0.0, 1e12)
_tokens = st.none() | _count
_name = st.text(max_size=60)
_keys = st.lists(st.integers(0, (1 << 64) - 1), max_size=20)


@given(
    st.builds(
        Ended, *(_count, _when, st.booleans(), st.booleans()), *(_tokens, _tokens, _tokens, _tokens)
    )
    | st.builds(Began, _count, _when)
    | st.builds(Resync, st.booleans())
    | st.builds(
        Booked,
        *(_count, _when, _name, _name, _count, _count, st.booleans()),
        *(_when, _count, _count, _count, _when, _keys, st.booleans()),
        st.none() | _when,
    )
)
@example(Ended(_MOST, 1e12, True, True, _MOST, _MOST, _MOST, _MOST))
@example(
    Booked(
        *(_MOST, 1e12, "", "", _MOST, _MOST, True, 1e12, _MOST, _MOST, _MOST, 0.1, ()),
        *(True, 1e12),
    )
)
def test_no_news_is_larger_than_it_says(news: News) -> None:
    """Letters are closed by these sizes, so that none is larger than a datagram may be."""
    assert len(msgpack.encode(news)) <= size(news)
