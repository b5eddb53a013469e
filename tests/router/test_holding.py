"""What holding does with pools whose workers change."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from router.admission import Wait
from router.holding import SOON_S, Holding
from router.pool import Pool
from router.worker import State, Worker
from strategies.base import Decision, Prompt
from strategies.load import AGING
from strategies.registry import make
from tests.router.test_fleet import worker

FOR_EVER = 1e12
LONG_S = 1000.0


def _rank(pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision:
    return pool.strategy.rank(prompt, workers, 0.0)


def _busy(*models: str) -> Worker:
    made = worker(*models)
    made.load.book(asyncio.get_running_loop().time(), LONG_S, 100_000)
    return made


def _pool(*workers: Worker) -> Pool:
    return Pool("p", ["*"], workers, make("prefixaware", {}))


def _hold(holding: Holding, pool: Pool, model: str = "m") -> asyncio.Task[bool]:
    prompt = Prompt(model, 4_000)
    decision = _rank(pool, prompt, pool.workers)
    return asyncio.create_task(holding.turn(pool, prompt, decision, "", Wait(0.0, FOR_EVER)))


async def _end(*tasks: asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_what_a_new_pool_promises_stays() -> None:
    """Requests that are let go leave the old pool one by one, and its workers are the new one's by
    then."""

    async def main() -> None:
        holding = Holding(_rank)
        one = _busy("m")
        before, after = _pool(one), _pool(one)
        old = [_hold(holding, before) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(holding) == len(one.load.promises) == 3
        after.follow(before)
        assert after.crowd is before.crowd
        holding.let_go()
        assert (len(holding), one.load.promises) == (0, [])
        new = _hold(holding, after)
        assert await asyncio.gather(*old) == [False] * 3
        assert holding.count(before, "m") == 0
        assert (before, "m") not in holding._models
        assert (len(holding), len(one.load.promises)) == (1, 1)
        await _end(new)
        assert (one.load.promises, one.load.promised_s) == ([], 0.0)

    asyncio.run(main())


def test_the_next_one_follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the one before it has been booked, whenever the next regular check is. No timer is left
    of any."""
    monkeypatch.setattr("router.holding.TICK_S", 3600.0)
    timers: list[asyncio.TimerHandle] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        later = loop.call_at

        def call_at(when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            timer = later(when, *args, **kwargs)
            if when == FOR_EVER:
                timers.append(timer)
            return timer

        monkeypatch.setattr(loop, "call_at", call_at)
        holding = Holding(_rank)
        one = _busy("m")
        pool = _pool(one)
        tasks = [_hold(holding, pool) for _ in range(3)]
        await asyncio.sleep(0)
        (booking,) = one.load.pending
        one.load.release(booking, loop.time())
        holding.freed()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 20.0) == [True] * 3

    asyncio.run(main())
    assert len(timers) == 3
    assert all(timer.cancelled() for timer in timers)


def test_news_of_other_processes_does_not_put_a_check_off() -> None:
    """However often it comes; each check is soon after the first news since the last one."""

    async def main() -> None:
        loop, holding = asyncio.get_running_loop(), Holding(_rank)
        task = _hold(holding, _pool(_busy("m")))
        await asyncio.sleep(0)
        for _ in range(2):
            holding.freed_elsewhere()
            soon = holding._looking
            assert isinstance(soon, asyncio.TimerHandle)
            assert soon.when() <= loop.time() + SOON_S
            holding.freed_elsewhere()
            assert holding._looking is soon
            holding._look()
        await _end(task)

    asyncio.run(main())


def test_models_of_workers_are_not_gone_through() -> None:
    """A check is frequent, and workers may have thousands of adapters each."""

    class Counted(dict[str, dict[str, object]]):
        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError

    async def main() -> None:
        holding = Holding(_rank)
        one = _busy("m", "n")
        one.models = Counted(one.models)
        pool = _pool(one)
        stays, goes = _hold(holding, pool, "m"), _hold(holding, pool, "n")
        await asyncio.sleep(0)
        holding._look()
        await asyncio.sleep(0)
        assert not stays.done()
        assert not goes.done()
        del one.models["n"]
        for _ in range(2):  # woken once, whoever looks again before it has left
            holding._look()
        assert await goes
        assert not stays.done()
        await _end(stays)

    asyncio.run(main())


def test_nobody_waits_for_a_strategy_that_fails() -> None:
    """All are sent, as nobody can tell when they should be; what they were promised ends."""

    def rank(pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision:
        raise ZeroDivisionError

    async def main() -> None:
        holding = Holding(rank)
        one = _busy("m")
        one.load.uncached = 4_000  # so that it is ready for more
        pool = _pool(one)
        tasks = [_hold(holding, pool) for _ in range(3)]
        await asyncio.sleep(0)
        holding._look()
        assert await asyncio.gather(*tasks) == [True] * 3
        assert (len(holding), one.load.promises, one.load.promised_s) == (0, [], 0.0)

    asyncio.run(main())


def test_what_is_held_for_another_pool_is_not_woken() -> None:
    """If no worker of this one has its model."""

    async def main() -> None:
        holding = Holding(_rank)
        here, there = _pool(_busy("m")), _pool(_busy("n"))
        first, second = _hold(holding, here, "m"), _hold(holding, there, "n")
        await asyncio.sleep(0)
        there.workers[0].become(State.DOWN, "as the test has it")
        holding._look()
        assert await second
        assert not first.done()
        await _end(first)

    asyncio.run(main())


def test_workers_that_drain_count_as_gone() -> None:
    """Of how many workers requests are held for, those that get nothing new are none."""

    async def main() -> None:
        holding = Holding(_rank)
        one, other = _busy("m"), _busy("m")
        one.load.uncached = 4_000  # so that it is ready for more
        pool = _pool(one, other)
        task = _hold(holding, pool)
        await asyncio.sleep(0)
        other.draining = True
        pool.change(["*"], [one, other])
        pool.crowd.held = 4.0
        holding._look()
        assert one.load.aging == pytest.approx(AGING / 4.0, rel=0.1)
        assert not task.done()
        one.draining = True
        pool.change(["*"], [one, other])
        holding._look()
        assert await task

    asyncio.run(main())
