"""Workers that refuse requests rest for a moment."""

from math import inf
from time import monotonic

from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.dispatcher import Ranker
from router.dispatch.retry import RetryBudget
from router.dispatch.scheduler import Scheduler
from router.fleet.breaker import MAX_BACKOFF_S, MIN_BACKOFF_S, Backoffs
from router.settings.model import Settings
from strategies.api import Decision
from tests.fleet.fleets import fleet, prompt


def test_it_rests_and_comes_back() -> None:
    """Others are asked until the rest is over; if all rest, one of them is asked all the same."""
    rests = Backoffs()
    assert not rests
    rests.refused("a", 10.0)
    assert rests
    assert rests.awake(["a", "b"], 10.0) == ["b"]
    assert rests.awake(["a", "b"], 10.0 + MIN_BACKOFF_S) == ["a", "b"]
    rests.refused("b", 10.0)
    assert rests.awake(["a", "b"], 10.0) == ["a", "b"]


def test_each_rest_is_longer() -> None:
    """Rests double up to a limit; refusals of requests sent before the rest do not extend it."""
    rests, now, spans = Backoffs(), 10.0, []
    for _ in range(10):
        began = now
        for _ in range(5):
            rests.refused("a", now)
        while "a" not in rests.awake(["a", "b"], now):
            now += MIN_BACKOFF_S / 8
        spans.append(now - began)
    assert spans == sorted(spans)
    assert spans[3] > 5 * spans[0]
    assert spans[-1] <= MAX_BACKOFF_S + MIN_BACKOFF_S


def test_an_answer_ends_it() -> None:
    """An answer ends the series of rests, so the next rest is short again."""
    rests = Backoffs()
    for now in (10.0, 20.0, 30.0):
        rests.refused("a", now)
    rests.answered("a", 29.0)  # this request was sent before the last refusal
    assert rests.awake(["a", "b"], 30.0) == ["b"]
    rests.answered("a", 31.0)
    assert not rests
    rests.refused("a", 40.0)
    assert rests.awake(["a", "b"], 40.0 + MIN_BACKOFF_S) == ["a", "b"]


def test_silence_lets_more_in() -> None:
    """A full worker gets fewer than it had, then one more, and others as long as none is refused:
    the answer of the first may take minutes."""
    rests = Backoffs()
    rest = rests.refused("a", 10.0)
    rest.full, rest.here = True, 3
    began = [rests.most("a", 10.0 + MIN_BACKOFF_S * spans) for spans in (0.5, 1.5, 2.5, 8.5)]
    assert began == [3, 4, 5, 11]
    assert rests.refused("a", 11.0) is rest
    assert rests.most("a", 11.0 + MIN_BACKOFF_S) == 3


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 100))))
def test_nobody_is_forgotten_or_kept(refusals: list[tuple[str, float]]) -> None:
    """`keep` drops exactly the workers that left the fleet, and every rest ends in time."""
    rests = Backoffs()
    for worker, now in refusals:
        rests.refused(worker, now)
    rests.keep(["a", "b"])
    resting = {worker for worker, _ in refusals} & {"a", "b"}
    assert bool(rests) is bool(resting)
    assert set(rests.awake([*"abcd", "free"], -inf)) == {*"abcd", "free"} - resting
    assert set(rests.awake(list("abcd"), 1e9)) == set("abcd")


def test_those_that_rest_are_ranked_last() -> None:
    """They are told apart from the others: they may cost less."""
    (pool,) = fleet("leastload", workers=3).pools
    settings = Settings.model_validate({"workers": ["http://127.0.0.1:1"]})
    scheduler = Scheduler(settings, RetryBudget(0.2), lambda *_: Decision([], ""))
    deciding, asked = Ranker(scheduler), prompt("text")
    for worker in pool.workers[1:]:
        worker.load.book(monotonic(), 60.0)
    assert deciding.among(pool, asked, pool.workers).aside == 0
    scheduler.rests.refused(pool.workers[0], inf)
    decision = deciding.among(pool, asked, pool.workers)
    assert [one.worker.name for one in decision.candidates] == ["w1", "w2", "w0"]
    assert decision.aside == 1
