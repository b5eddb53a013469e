"""Requests that a hanging worker never answers are moved to another one, over real sockets."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.dispatch import preemption as rescue
from router.fleet.pool import Pool
from strategies.api import Candidate, Outcome, Prompt
from strategies.cost.booking import Booking
from tests.overload.busy import QUIET, ask, asked
from tests.overload.giving_way import answer
from tests.overload.hanging import NEVER, Hurry, both, moved, routed, worker_of
from tests.overload.totals import total
from tests.reload.changing import answered_by, change
from tests.support import JSON, MakeRouter, MakeStub, until


def test_another_worker_answers_it(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """Its client gets one clean answer. It is counted, and the next request does not go to the
    worker that hangs, though nothing is booked there."""
    router, first, hung, other = both(route, crowd, stub)
    probes = len(hung.probes)
    hurry()
    assert answered_by(first.result()) == other.url[7:]
    assert first.result().content == JSON
    assert first.result().headers["x-warmroute-preempted"] == "1"
    assert (moved(router, hung), moved(router, other)) == (1, 0)
    assert router.metric("warmroute_preempted_requests_total") == 0
    until(lambda: hung.closed_by_peer == 1)
    until(router.idle)
    for words in ("second", "third", "fourth"):
        assert answered_by(ask(router, crowd, words, 100).result()) == other.url[7:]
    assert len(hung.requests) == 1
    until(lambda: len(hung.probes) > probes)
    until(router.idle)


def test_it_does_not_go_back(
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stub: MakeStub,
    hurry: Hurry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the worker that hangs would be the cheapest by now."""
    router, first, hung, other = both(route, crowd, stub)
    worker_of(router, other).pace.slower = 1e5
    monkeypatch.setattr(rescue, "better", lambda _, decision, __: decision.candidates[0])
    hurry()
    until(lambda: moved(router, hung) == 1)
    assert answered_by(first.result()) == other.url[7:]
    assert len(hung.requests) == 1
    until(router.idle)


def test_it_is_counted_as_one_request(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """It has one decision and one answer, and what its worker reports counts as of any other:
    nothing of it was computed before."""
    router, first, _, other = both(route, crowd, stub)
    other.script = answer(cached=50, prompt=100)
    hurry()
    first.result()
    until(router.idle)
    assert [total(router, family) for family in ("decisions", "requests")] == [1] * 2
    assert router.metric("warmroute_prompt_tokens_total", pool="default") == 100
    assert router.metric("warmroute_cached_tokens_total", pool="default") == 50
    assert len(other.requests) == 1


def test_what_a_stuck_worker_has_computed_does_not_count(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """It is believed to hold no more than before."""
    router, first, hung, other = both(route, crowd, stub)

    def held() -> dict[str, bool]:
        found = router.http.post("/explain", json=asked("first", 100)).json()["workers"]
        return {one["worker"]: one["held_tokens"] > 0 for one in found}

    assert held() == {hung.url[7:]: True, other.url[7:]: False}
    hurry()
    first.result()
    assert held() == {hung.url[7:]: False, other.url[7:]: True}


class Told:
    """What the router's other processes would hear."""

    def __init__(self) -> None:
        self.booked_s: list[float] = []
        self.ended_with: list[tuple[int, int | None]] = []
        """The number of each request that ended, and what its worker kept of it."""

    def booked(
        self, _: Pool, __: Prompt, ___: Candidate, now: float, ____: Booking | None = None
    ) -> int:
        """Count it."""
        self.booked_s.append(now)
        return len(self.booked_s)

    def give_way(self, bookings: Sequence[Booking], _: int) -> None:
        """No other process sends anything."""
        assert not bookings

    def began(self, number: int, now: float) -> None:
        """Do nothing."""

    def ended(self, number: int, outcome: Outcome, _: float) -> None:
        """Note it."""
        self.ended_with.append((number, outcome.kept_tokens))


def test_other_processes_hear_of_it(
    route: MakeRouter, crowd: ThreadPoolExecutor, stub: MakeStub, hurry: Hurry
) -> None:
    """It is told to have ended there, once: else it would stay booked there for ever."""
    hung, told = stub(NEVER), Told()
    router = routed(route, hung)
    router.door.fleet.pools[0].tells = told
    reply = ask(router, crowd, "first", 100)
    until(lambda: hung.requests)
    change(router, hung.url, stub().url, health=QUIET)
    hurry()
    assert reply.result().status_code == 200
    until(router.idle)
    assert told.ended_with == [(1, 0)]  # (new settings: nobody else hears of the second)
