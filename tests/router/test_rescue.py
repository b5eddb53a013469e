"""What is moved at one look: where to, how many, and what is logged. (Sockets: tests/overload.)"""

import asyncio
import logging
from time import monotonic
from typing import cast

import pytest
from msgspec.structs import replace

from router.dispatch import preemption as rescue_module
from router.dispatch.dispatcher import Ranker
from router.dispatch.preemption import MAX_COMPARED, Preemptions, Rescue, Running
from router.dispatch.request import InferenceRequest
from router.dispatch.retry import RetryBudget
from router.dispatch.scheduler import Scheduler
from router.fleet.pool import Pool
from router.fleet.worker import ProbeState
from router.settings.model import Settings
from strategies.api import Candidate, Cost, Decision
from strategies.cost.booking import Booking
from tests.router.fleets import fleet, prompt
from tests.router.test_preempting import Asked

LATE_S = 60.0


class Sent:
    """A request that waits for the first byte of its answer."""

    def __init__(self, asked: Asked, there: Candidate) -> None:
        self.request, self.choice = cast("InferenceRequest", asked), there
        self.moved: list[bool] = []
        """Each time that it was moved, whether it was suspected."""

    def rescue(self, *, suspected: bool) -> None:
        """Note it."""
        self.moved.append(suspected)


class Scene:
    """A pool of workers, and the requests that wait there."""

    def __init__(self, workers: int) -> None:
        self.fleet = fleet(workers=workers)
        self.pool: Pool = self.fleet.pools[0]
        self.pool.curve.seen = 1
        for worker in self.pool.workers:
            worker.become(ProbeState.READY, "")
        self.preempting = Preemptions()
        self.preempting.change(2)
        settings = Settings.model_validate({"workers": ["http://w"]})
        deciding = Ranker(Scheduler(settings, RetryBudget(0.2), lambda *_: Decision([], "")))
        self.rescue = Rescue(self.preempting, deciding.with_room)
        self.preempting.begun = lambda: None  # no loop runs

    def send(
        self,
        worker: int,
        words: str,
        *,
        may: bool = True,
        suspected: bool = False,
        model: str = "m",
    ) -> Sent:
        """Book a request that should have been answered `LATE_S` ago."""
        own = replace(prompt(words), model=model)
        asked = Asked(self.pool, own, resumable=may, suspected=suspected)
        there = Candidate(self.pool.workers[worker], Cost(prefill=0.1))
        booking: Booking = self.pool.book(asked.prompt, there, monotonic() - LATE_S - 0.1)
        sent = Sent(asked, there)
        self.preempting.begin(booking, cast("Running", sent))
        return sent

    def look(self) -> int:
        """Look once; return how many were moved."""
        before, given = len(self.preempting), set[object]()
        for worker in self.preempting.workers():
            self.rescue._relieve(worker, monotonic(), given)  # type: ignore[arg-type]
        return before - len(self.preempting)


def test_each_other_worker_is_given_one_per_look() -> None:
    """The oldest first; each is to be booked before the next is compared with it. Only the oldest
    is suspected, since nothing tells how late those behind it are."""
    scene = Scene(3)
    sent = [scene.send(0, f"words {number}") for number in range(4)]
    assert scene.look() == 2
    assert [one.moved for one in sent] == [[True], [False], [], []]
    assert scene.look() == 2
    assert [one.moved for one in sent] == [[True], [False], [False], [False]]
    load = scene.pool.workers[0].load
    assert load.in_flight == 0
    assert load.wait(monotonic()) == pytest.approx(LATE_S, abs=30.0)


def test_none_goes_to_a_worker_that_is_late_itself() -> None:
    """However little: the fleet may be slower than thought."""
    scene = Scene(2)
    sent = scene.send(0, "first")
    other = scene.send(1, "second", may=False)
    assert scene.look() == 0
    scene.pool.workers[1].load.head_since = monotonic()
    assert scene.look() == 1
    assert (sent.moved, other.moved) == ([True], [])


def test_those_that_may_not_be_moved_are_passed_over() -> None:
    """However many come first; and one that was suspected before, if it is the oldest again."""
    scene = Scene(2)
    stay = [scene.send(0, "again", suspected=True)]
    stay += [scene.send(0, f"words {number}", may=False) for number in range(MAX_COMPARED + 1)]
    last = scene.send(0, "last", suspected=True)
    assert scene.look() == 1
    assert last.moved == [False]
    assert [one.moved for one in stay] == [[]] * len(stay)


def test_those_that_no_other_worker_serves_hide_none() -> None:
    """However many come first."""
    scene = Scene(2)
    scene.pool.workers[0].models = {"m": {}, "only": {}}
    stay = [scene.send(0, f"words {number}", model="only") for number in range(MAX_COMPARED + 1)]
    last = scene.send(0, "last")
    assert scene.look() == 1
    assert last.moved == [False]
    assert [one.moved for one in stay] == [[]] * len(stay)


def test_one_timer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests begin; it is short if some were moved, as others may follow."""
    monkeypatch.setattr(rescue_module, "NEXT_TICK_S", 1_000.0)
    monkeypatch.setattr(rescue_module, "TICK_S", 3_000.0)
    scene = Scene(2)
    watching = scene.rescue

    async def times() -> list[bool]:
        soon = asyncio.get_running_loop().time() + 2_000.0
        watching._watch()
        first = watching._looking
        watching._watch()
        assert first is not None
        assert watching._looking is first
        found = []
        for _ in range(2):
            watching._look()
            found.append(watching._looking.when() < soon)
            scene.pool.workers[1].become(ProbeState.DOWN, "")
        return found

    scene.send(0, "first")
    scene.send(0, "second")
    assert asyncio.run(times()) == [True, False]


def test_no_worker_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing happens, and nothing is logged."""
    scene = Scene(2)
    scene.send(0, "first")
    for worker in scene.pool.workers:
        worker.become(ProbeState.DOWN, "")
    assert scene.look() == 0
    assert caplog.text == ""


def test_a_worker_is_said_to_be_stuck_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until an answer begins there; without a word of the prompts."""
    caplog.set_level(logging.WARNING, "warmroute.fleet")
    scene = Scene(2)
    for number in range(3):
        scene.send(0, f"secret {number}")
    assert [scene.look(), scene.look()] == [1, 1]
    assert caplog.text.count("worker w0 is stuck: its oldest request is ") == 1
    assert "1 of 3 that wait there sent elsewhere" in caplog.text
    assert "secret" not in caplog.text
    scene.pool.workers[0].load.answers()
    scene.pool.workers[0].load.head_since -= LATE_S
    assert scene.look() == 1
    assert caplog.text.count("is stuck") == 2


def test_a_restarted_worker_is_not_late() -> None:
    """Whatever hung there is gone."""
    scene = Scene(2)
    scene.send(0, "first")
    assert scene.look() == 1
    (worker, _) = scene.pool.workers
    assert worker.wait() > 0.0
    scene.fleet.restarted(worker)
    assert worker.wait() == 0.0
