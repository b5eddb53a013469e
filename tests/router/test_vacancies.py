"""Who is woken among those that wait for a worker to have room by its own count."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from router import vacancies
from router.vacancies import Vacancies
from router.worker import Worker
from tests.router.fleets import fleet


def run(scene: Callable[[Vacancies, Worker], Awaitable[None]]) -> None:
    """Play a scene with a worker that serves `m`."""

    async def main() -> None:
        (worker,) = fleet(workers=1).workers
        await scene(Vacancies(), worker)

    asyncio.run(main())


async def begin(found: Vacancies, *requests: tuple[str, float]) -> list[asyncio.Task[None]]:
    """Let requests wait for long, each with its model and when it came."""
    late = asyncio.get_running_loop().time() + 3600.0
    tasks = [asyncio.create_task(found.turn(model, since, late)) for model, since in requests]
    await asyncio.sleep(0)
    assert len(found) == len(tasks)
    return tasks


async def woken(tasks: Sequence[asyncio.Task[None]]) -> list[bool]:
    """Return which of them have had their turn."""
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def test_each_end_wakes_the_one_that_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among those whose model that worker has; two ends before anyone has run wake two."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 3600.0)

    async def scene(found: Vacancies, worker: Worker) -> None:
        tasks = await begin(found, ("other", 1.0), ("m", 3.0), ("m", 2.0), ("m", 4.0))
        found.freed(worker)
        assert await woken(tasks) == [False, False, True, False]
        found.freed(worker)
        found.freed(worker)
        assert await woken(tasks) == [False, True, True, True]
        found.freed(worker)
        assert await woken(tasks) == [False, True, True, True]
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(found) == 0

    run(scene)


def test_who_gave_way_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the one that goes first is refused, no end wakes it; then it is woken."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 3600.0)

    async def scene(found: Vacancies, worker: Worker) -> None:
        late = asyncio.get_running_loop().time() + 3600.0
        found.refused(b"short")
        assert found.goes_first(b"short")
        behind = asyncio.create_task(found.turn("m", 1.0, late, b"short"))
        first = asyncio.create_task(found.turn("m", 2.0, late))
        await asyncio.sleep(0)
        found.freed(worker)
        found.freed(worker)
        assert await woken([behind, first]) == [False, True]
        found.settled(b"other")
        assert await woken([behind]) == [False]
        found.settled(b"short")
        assert not found.goes_first(b"short")
        assert await woken([behind]) == [True]
        behind = asyncio.create_task(found.turn("m", 1.0, late, b"short"))
        await asyncio.sleep(0)
        found.freed(worker)
        assert await woken([behind]) == [True]

    run(scene)


def test_none_waits_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if that is over before it should be tried again anyway."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 3600.0)

    async def scene(found: Vacancies, _: Worker) -> None:
        now = asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            await found.turn("m", now, now + 0.01)
        assert len(found) == 0

    run(scene)


def test_who_gave_way_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other may have been accepted, of which only the end of its answer may tell."""

    async def scene(found: Vacancies, _: Worker) -> None:
        found.refused(b"first")
        assert found.goes_first(b"first")
        monkeypatch.setattr(vacancies, "FIRST_S", 0.0)
        found.refused(b"first")
        assert not found.goes_first(b"first")

    run(scene)


def test_who_goes_first_does_not_stay_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that another process serves, nothing more may be heard."""

    async def scene(found: Vacancies, _: Worker) -> None:
        monkeypatch.setattr(vacancies, "FIRST_S", 0.0)
        for number in range(9):
            found.refused(b"%d" % number)
            assert not found.goes_first(b"%d" % number)
        monkeypatch.setattr(vacancies, "FIRST_S", 3600.0)
        found.refused(b"last")
        found.refused(b"one more")
        assert list(found._first) == [b"last", b"one more"]

    run(scene)


def test_those_behind_another_wait_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is accepted wakes only those that gave way to it."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 3600.0)

    async def scene(found: Vacancies, _: Worker) -> None:
        late = asyncio.get_running_loop().time() + 3600.0
        for first in (b"a", b"b"):
            found.refused(first)
        tasks = [
            asyncio.create_task(found.turn("m", 1.0, late, behind)) for behind in (b"a", b"b", b"")
        ]
        await asyncio.sleep(0)
        found.settled(b"b")
        assert await woken(tasks) == [False, True, False]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(scene)


def test_a_turn_of_who_leaves_in_that_moment_goes_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client has gone just when it was woken; otherwise nobody takes its turn."""
    monkeypatch.setattr(vacancies, "AGAIN_S", 3600.0)

    async def scene(found: Vacancies, worker: Worker) -> None:
        tasks = await begin(found, ("other", 0.0), ("m", 1.0), ("m", 2.0), ("m", 3.0))
        found.freed(worker)
        tasks[1].cancel()
        assert await woken(tasks) == [False, True, True, False]
        tasks[3].cancel()
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in results] == [
            *(True, True, False, True)
        ]
        assert len(found) == 0

    run(scene)
