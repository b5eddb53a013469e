"""The clock that drives an engine."""

from __future__ import annotations

import asyncio
from array import array

from simulator.engine.clock import EngineClock
from simulator.engine.core import Engine
from simulator.engine.profiles import PROFILES
from simulator.engine.request import EngineRequest
from simulator.kv.blocks import Change


def request(name: str, answer: int = 50) -> EngineRequest:
    """A short prompt with an answer of some tokens."""
    return EngineRequest(name, array("I", range(20)), array("I", range(answer)))


def pump(speed: float = 100.0) -> EngineClock:
    """Create the clock of a toy engine."""

    def publish(changes: object) -> None:
        published.append(changes)

    published: list[object] = []
    return EngineClock("sim-1", Engine(PROFILES["toy"]), speed, publish)


def test_every_token_is_handed_out_once_and_the_last_is_marked() -> None:
    """However many steps end at once, the counts add up and only the final call is marked last."""

    async def run() -> None:
        clock, done = pump(speed=10_000), asyncio.Event()
        got: list[tuple[int, bool]] = []

        def sink(count: int, last: bool) -> None:
            got.append((count, last))
            if last:
                done.set()

        clock.submit(request("a", 500), sink)
        await done.wait()
        assert sum(count for count, _ in got) == 500
        assert [last for _, last in got].count(True) == 1
        assert got[-1][1]
        assert not clock.engine.busy
        assert clock.behind_s == 0.0

    asyncio.run(run())


def test_an_aborted_request_hears_nothing_more() -> None:
    """Not even tokens of the step that is running."""

    async def run() -> None:
        clock, first = pump(speed=1.0), asyncio.Event()
        got: list[int] = []

        def sink(count: int, last: bool) -> None:
            got.append(count)
            first.set()

        clock.submit(request("a", 10_000), sink)
        await first.wait()
        clock.abort("a")
        clock.abort("a")
        heard = len(got)
        other = asyncio.Event()
        clock.submit(request("b", 5), lambda _, last: other.set() if last else None)
        await other.wait()
        assert len(got) == heard
        assert clock.engine.cache.used == 0

    asyncio.run(run())


def test_changes_of_the_cache_are_published_when_their_step_ends() -> None:
    """Blocks are announced when they are computed, not when their step is planned."""

    async def run() -> None:
        published: list[Change] = []
        clock = EngineClock("sim-1", Engine(PROFILES["toy"]), 1.0, published.extend)
        first = asyncio.Event()
        clock.submit(request("a", 2), lambda _, __: first.set())
        await asyncio.sleep(0)
        assert clock.engine.running == 1
        assert not published
        await first.wait()
        assert len(published) == 1

    asyncio.run(run())
