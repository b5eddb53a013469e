"""Messages between two processes, here between both ends of a socket pair in one event loop."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from router.replicas.channel import Channel, Lost, Refusal, first

Script = Callable[[Channel, Channel], Awaitable[None]]


async def obedient(what: str, body: bytes) -> bytes:
    """Answer what is asked, unless it is `refuse`, `fail` or `wait`."""
    if what == "refuse":
        raise Refusal("it is not my day")
    if what == "fail":
        raise ValueError("broken")
    if what == "wait":
        await asyncio.Event().wait()
    return what.encode() + body


def between(script: Script) -> None:
    """Run a script with both ends of a channel, each of which answers with `obedient`."""

    async def run() -> None:
        one, other = [await Channel.open(end, obedient) for end in socket.socketpair()]
        tasks = [asyncio.create_task(channel.run()) for channel in (one, other)]
        async with asyncio.timeout(20):
            await script(one, other)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_questions_and_answers() -> None:
    """Both ends ask at once, at any length; a slow answer delays no other."""

    async def script(one: Channel, other: Channel) -> None:
        waiting = asyncio.create_task(one.ask("wait"))
        large = b"x" * 3_000_000
        asked = [one.ask("a", large), other.ask("b"), one.ask("c"), other.ask("d", large)]
        assert await asyncio.gather(*asked) == [b"a" + large, b"b", b"c", b"d" + large]
        assert not waiting.done()
        waiting.cancel()
        assert await one.ask("e") == b"e"

    between(script)


def test_what_is_not_done() -> None:
    """The caller gets the reason, an exception becomes a refusal, and the channel stays usable."""

    async def script(one: Channel, _: Channel) -> None:
        with pytest.raises(Refusal, match="it is not my day"):
            await one.ask("refuse")
        with pytest.raises(Refusal, match="ValueError: broken"):
            await one.ask("fail")
        one.tell("fail")
        assert await one.ask("again") == b"again"

    between(script)


def test_the_other_end_is_gone() -> None:
    """Pending and later questions raise Lost, and `tell` does nothing."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        channel = await Channel.open(ours, obedient)
        running = asyncio.create_task(channel.run())
        asked = asyncio.create_task(channel.ask("anything"))
        await asyncio.sleep(0)
        theirs.close()
        await running
        with pytest.raises(Lost):
            await asked
        with pytest.raises(Lost):
            await channel.ask("anything")
        channel.tell("anything")

    asyncio.run(run())


def test_the_first_word() -> None:
    """`first` blocks until one message without an event loop, and reads nothing of the next."""

    async def say() -> None:
        channel = await Channel.open(ours, obedient)
        channel.tell("begin", b"order")
        channel.tell("stop", b"x" * 10)
        running = asyncio.create_task(channel.run())
        assert await asyncio.to_thread(first, theirs) == b"order"
        assert await asyncio.to_thread(first, theirs) == b"x" * 10
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    ours, theirs = socket.socketpair()
    with theirs:
        asyncio.run(say())
        with pytest.raises(Lost):
            first(theirs)


def test_what_is_sent_to_one_that_has_just_gone() -> None:
    """It is dropped, although `run` has not yet heard that; a question fails."""

    async def run() -> None:
        here, there = socket.socketpair()
        channel = await Channel.open(here, obedient)
        there.close()
        for _ in range(10):  # the first of these finds out
            channel.tell("a")
            await asyncio.sleep(0.01)
        asked = asyncio.create_task(channel.ask("b"))
        await asyncio.sleep(0)
        await channel.run()
        with pytest.raises(Lost):
            await asked

    uvloop.run(run())
