"""How many requests are held, for how long, and how many are sent at once afterwards."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from strategies.cost.booking import Booking
from strategies.cost.load import Load
from tests.overload.busy import ANSWER, QUIET, Gate, ask, busied, waits
from tests.support import MakeRouter, MakeStub, until


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The in-flight count of the worker concerned, recorded at every booking."""
    counts: list[int] = []
    book = Load.book

    def booked(self: Load, *args: float, **kwargs: bool) -> Booking:
        booking = book(self, *args, **kwargs)  # type: ignore[arg-type]
        counts.append(self.in_flight)
        return booking

    monkeypatch.setattr(Load, "book", booked)
    return counts


def test_nobody_is_held_beyond_the_time_a_queue_may_take(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """After `timeouts.queue` a held request is sent and waits at the worker."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, timeouts={"queue": "300ms"})
    answers = [busied(router, crowd, worker)]
    answers.append(ask(router, crowd, "other", 2000))
    until(lambda: len(worker.requests) == 2)
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2


def test_no_more_are_held_than_may_queue(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Requests beyond `limits.queue` are not held but sent, as the worker has places for them."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, limits={"queue": 1})
    answers = [busied(router, crowd, worker)]
    answers += [ask(router, crowd, f"other{number}", 2000) for number in range(3)]
    until(lambda: len(worker.requests) == 3)
    assert waits(router, 1)()
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 4


def test_no_worker_gets_more_than_its_cap_from_those_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, most: list[int]
) -> None:
    """The others wait on, and the cap is never exceeded."""
    gate = Gate()
    worker = stub([gate.opened.is_set, ANSWER[:-1], 0.02, ANSWER[-1:]])
    router = route(worker.url, health=QUIET, limits={"in_flight": 2})
    answers = [busied(router, crowd, worker)]
    answers += [ask(router, crowd, f"other{number}", 2000) for number in range(6)]
    until(waits(router, 6))
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 7
    assert max(most) <= 2
    until(router.idle)


def test_holding_and_queueing_take_no_longer_than_one_of_them_may(
    stub: MakeStub,
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    most: list[int],
) -> None:
    """A held request without a place at its deadline gets 503 and is not sent beyond the cap."""
    begun, ended = Gate(), Gate()
    worker = stub([begun.opened.is_set, ANSWER[:-1], ended.opened.is_set, ANSWER[-1:]])
    router = route(
        {"url": worker.url, "models": ["m", "n"]},
        health=QUIET,
        limits={"in_flight": 2},
        timeouts={"queue": "1s"},
    )
    answers = [busied(router, crowd, worker)]
    answers.append(ask(router, crowd, "other", 2000))
    until(waits(router, 1))
    late = ask(router, crowd, "late", 2000, "n")
    until(waits(router, 2))
    begun.opened.set()
    assert late.result().status_code == 503
    ended.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2
    assert max(most) == 2
    until(router.idle)
