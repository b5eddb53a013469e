"""Heartbeats between processes: those that are answered, and those that are missed."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from router.replicas.channel import Beats, Channel, ChannelTimeouts, Sign, watch

PATIENCE = ChannelTimeouts(beat_s=0.2, silent=2, dead=5)


def signs(answered: str) -> str:
    """Return the first letter of the sign at each beat, answered (`+`) or missed (`-`)."""
    beats = Beats(PATIENCE)
    noticed = [beats.count(answered=one == "+") for one in answered]
    return "".join(sign.value[0] if sign else "." for sign in noticed)


@pytest.mark.parametrize(
    ("answered", "noticed"),
    [
        ("++++++", "......"),
        ("-+-+-+", "......"),
        ("--+", ".sb"),
        ("---++--+", ".s.b..sb"),
        ("--------", ".s..d..."),
        ("-----+--", ".s..db.s"),
        ("----+-----", ".s..b.s..d"),
    ],
)
def test_what_is_missed_in_a_row_counts(answered: str, noticed: str) -> None:
    """One answer resets the count of missed beats, and every change is reported once."""
    assert signs(answered) == noticed


Hear = Callable[[str, bytes], Awaitable[bytes]]
Script = Callable[[asyncio.Queue[Sign], Callable[[], object]], Awaitable[None]]


def watching(hear: Hear, script: Script) -> None:
    """Run a script while one end watches the other, and check that nothing is left running.

    The script is given the signs, and a function that closes the other end.
    """

    async def run() -> None:
        found: asyncio.Queue[Sign] = asyncio.Queue()
        ours, theirs = [await Channel.open(end, hear) for end in socket.socketpair()]
        running = [asyncio.create_task(channel.run()) for channel in (ours, theirs)]
        watching = asyncio.create_task(watch(ours, PATIENCE, found.put_nowait))
        async with asyncio.timeout(20):
            await script(found, running[1].cancel)
        for tasks in ([watching], running):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_one_question_at_a_time() -> None:
    """The question is repeated only when answered, however late: a slow process is not dead."""
    asked: list[str] = []
    answers = asyncio.Event()

    async def hear(what: str, _: bytes) -> bytes:
        asked.append(what)
        await answers.wait()
        return b""

    async def script(found: asyncio.Queue[Sign], _: Callable[[], object]) -> None:
        assert [await found.get(), await found.get()] == [Sign.SILENT, Sign.DEAD]
        assert asked == ["alive"]
        answers.set()
        assert await found.get() is Sign.BACK
        while len(asked) < 3:  # noqa: ASYNC110 - the other end counts
            await asyncio.sleep(0.01)
        assert found.empty()

    watching(hear, script)


def test_one_pause_is_one_beat() -> None:
    """A pause of the asking process counts as one missed beat, however long it lasted."""

    async def hear(_: str, __: bytes) -> bytes:
        return b""

    async def script(found: asyncio.Queue[Sign], close: Callable[[], object]) -> None:
        for _pause in range(2):
            await asyncio.sleep(PATIENCE.beat_s)
            time.sleep(PATIENCE.dead_s + PATIENCE.beat_s)  # noqa: ASYNC251 - both ends stand still
        await asyncio.sleep(2 * PATIENCE.beat_s)
        assert found.empty()
        close()
        assert await found.get() is Sign.SILENT

    watching(hear, script)


def test_a_channel_that_is_gone_answers_no_more() -> None:
    """After the channel is closed every beat is missed, as the process may hang while it ends."""

    async def hear(_: str, __: bytes) -> bytes:
        return b""

    async def script(found: asyncio.Queue[Sign], close: Callable[[], object]) -> None:
        await asyncio.sleep(PATIENCE.beat_s)
        close()
        assert [await found.get(), await found.get()] == [Sign.SILENT, Sign.DEAD]

    watching(hear, script)
