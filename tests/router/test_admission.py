"""Admission where one moment of the clock decides: who waits is answered, whatever the moment."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.admission import Admission, _able
from router.errors import Overrun
from router.pool import Pool
from router.rebuild import build
from router.settings import Settings
from router.tls import Contexts
from router.worker import State


def run(scene: Callable[[Admission, Pool], Awaitable[None]]) -> None:
    """Play a scene at a router whose one worker has one place, which is taken."""

    async def main() -> None:
        settings = Settings.model_validate(
            {
                "workers": [{"url": "http://127.0.0.1:9", "models": ["m"]}],
                "limits": {"in_flight": 1, "queue": 2},
            }
        )
        fleet = build(settings, Contexts())
        (worker,) = fleet.workers
        worker.become(State.READY, "")
        worker.load.book(0.0, 1.0)
        await scene(Admission(settings, lambda _pool, _model: 0), fleet.pools[0])

    asyncio.run(main())


async def begin(admission: Admission, pool: Pool, tenant: str = "") -> asyncio.Task[None]:
    """Let a request wait."""
    task = asyncio.create_task(admission.turn(pool, "m", tenant, admission.wait()))
    await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("early", range(3))
def test_a_deadline_that_passes_during_a_look(monkeypatch: pytest.MonkeyPatch, early: int) -> None:
    """The last that waits is served or refused, at whichever glance at the clock it is late."""

    async def scene(admission: Admission, pool: Pool) -> None:
        waits = await begin(admission, pool)
        (late,) = [each.deadline for line in admission.queue._lines() for each in line]
        pool.workers[0].load.in_flight = 0
        times = iter([late - 1e-6] * early)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.get_running_loop(), "time", lambda: next(times, late))
            admission._tick()
        await asyncio.sleep(0)
        assert waits.done()
        await asyncio.gather(waits, return_exceptions=True)

    run(scene)


def test_who_comes_too_late_displaces_nobody() -> None:
    """A request that was held until its deadline is late, and takes nobody's place in the queue."""

    async def scene(admission: Admission, pool: Pool) -> None:
        others = [await begin(admission, pool, "other") for _ in range(2)]
        wait = admission.wait()
        wait.late = wait.since
        with pytest.raises(Overrun):
            await admission.turn(pool, "m", "late", wait)
        await asyncio.sleep(0)
        assert not any(other.done() for other in others)
        assert admission.queue.refused == 0
        for other in others:
            other.cancel()

    run(scene)


def test_whom_a_line_may_wait_for() -> None:
    """A session's line waits for its own worker only, as long as that can serve it; also if it gets
    no new requests."""
    listed = [{"name": name, "url": f"http://127.0.0.1:{n}", "models": ["m"]} for n, name in
              enumerate("abc", 9)]  # fmt: skip
    fleet = build(Settings.model_validate({"workers": listed}), Contexts())
    pool = fleet.pools[0]
    for worker in pool.workers:
        worker.become(State.READY, "")
    everyone, b = list(pool.workers), pool.named["b"]
    assert _able(pool, (pool.name, "m", "")) == everyone
    assert _able(pool, (pool.name, "m", "b")) == [b]
    assert _able(pool, (pool.name, "other", "b")) == []
    assert _able(pool, (pool.name, "m", "gone")) == []
    pool.taking = tuple(one for one in pool.workers if one is not b)
    assert _able(pool, (pool.name, "m", "b")) == [b]
    assert b not in _able(pool, (pool.name, "m", ""))
    b.become(State.DOWN, "")
    assert _able(pool, (pool.name, "m", "b")) == []
