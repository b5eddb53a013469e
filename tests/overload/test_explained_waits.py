"""An explanation says what its request would wait for."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from strategies.booking import Booking
from strategies.load import LONG_S
from strategies.pause import FEW
from tests.overload.busy import QUIET, Gate, ask, asked, busied, held
from tests.support import MakeRouter, MakeStub, until


def test_an_explanation_says_what_would_be_waited_for(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """`/explain` says whether the request would be held, would wait for a place, or neither."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, limits={"in_flight": 2})

    def waits() -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", 2000)).json()
        return found["waits"], "Before that it would" in found["words"]

    assert waits() == ("", False)
    answers = [busied(router, crowd, worker)]
    assert waits() == ("held", True)
    answers.append(ask(router, crowd, "other", 2000))
    until(held(router, 1))
    assert waits() == ("place", True)
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2


def test_an_explanation_tells_a_pause_from_a_queue(stub: MakeStub, route: MakeRouter) -> None:
    """`/explain` says so if a long prompt would be held for the sake of answers that have begun."""
    router = route(stub().url, health=QUIET)
    load = router.worker().load

    def waits(tokens: int) -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", tokens)).json()
        return found["waits"], "answers there nearly stand still" in found["words"]

    def begin() -> list[Booking]:
        now = monotonic()
        begun = [load.book(now, LONG_S) for _ in range(FEW)]
        for booking in begun:
            load.first_byte(booking, now + 3600.0)  # which makes a long pause
        return begun

    def end(begun: list[Booking]) -> None:
        for booking in begun:
            load.release(booking, monotonic())

    begun: list[Booking] = []
    router.call(lambda: begun.extend(begin()))
    assert waits(60_000) == ("pause", True)
    assert waits(2_000) == ("", False)
    router.call(lambda: end(begun))
    assert waits(60_000) == ("", False)


def test_an_explanation_says_that_room_is_left_to_others(stub: MakeStub, route: MakeRouter) -> None:
    """`/explain` says so if a prompt would be held though there is still room for it."""
    router = route(stub().url, health=QUIET)
    worker = router.worker()

    def waits(tokens: int) -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", tokens)).json()
        return found["waits"], "is for prompts that take little time" in found["words"]

    def fill() -> None:
        worker.gpu_tokens = 100_000
        then = monotonic() - 100.0
        for _ in range(10):
            worker.load.first_byte(worker.load.book(then, 0.1, 7_000), then)

    assert waits(30_000) == ("", False)
    router.call(fill)
    assert waits(25_000) == ("reserve", True)
    assert waits(100) == ("", False)
