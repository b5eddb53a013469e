"""A process that hangs is replaced after a while; it may come back before that."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack

import httpx
import msgspec
import pytest

from router.fleet.build import CannotBuild
from router.http.server import bind
from router.processes import supervisor as processes
from router.processes.child import Order, seal
from router.processes.supervisor import Place, Processes
from router.replicas.channel import ChannelTimeouts, Refusal
from router.settings.model import Settings
from router.settings.types import Address
from tests.support import read_all, send

LAST = b"GET /health/live HTTP/1.1\r\nconnection: close\r\nhost: x\r\n\r\n"
#: A healthy process answers several times as fast, even on a busy machine.
BEAT_S = 0.25
FOR_EVER = 1_000_000

Script = Callable[[Processes, int], Awaitable[None]]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture the log lines about processes."""
    with caplog.at_level(logging.WARNING, "warmroute.processes"):
        yield caplog


def serving(patience: ChannelTimeouts, script: Script) -> int:
    """Run two processes, and `script` once both serve; return the exit code."""
    given = {"workers": ["http://127.0.0.1:1"], "shutdown": {"delay": "0s", "drain": "0s"}}

    async def run(listen: Address) -> int:
        running = Processes(Settings.model_validate(given), 2, listen, None, patience)
        scripts: list[asyncio.Task[None]] = []

        async def play() -> None:
            try:
                await script(running, listen.port)
            finally:
                running.stop()

        async with asyncio.timeout(50):
            code = await running.run(lambda: scripts.append(asyncio.create_task(play())))
        await asyncio.gather(*scripts)
        return code

    with bind(Address("127.0.0.1", 0), shared=True, listen=False) as kept:
        return asyncio.run(run(Address("127.0.0.1", kept.getsockname()[1])))


def pid(place: Place) -> int:
    """Return the pid of the process that is in this place now."""
    assert place._process is not None
    return place._process.pid


async def becomes(condition: Callable[[], object]) -> None:
    """Wait for a condition to hold; fail after 20 seconds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.01)


def said_of(pid: int, log: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about one process, oldest first."""
    return [message for message in log.messages if message.startswith(f"process {pid} ")]


def watched() -> int:
    """Return how many processes are being watched."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return sum(getattr(one, "__name__", "") == "watch" for one in coroutines)


def hangs(running: Processes) -> bool:
    """Return whether the first process is known not to answer."""
    return running._places[0]._hangs.is_set()


def test_one_that_hangs_may_come_back(log: pytest.LogCaptureFixture) -> None:
    """Once it answers again, it serves what the kernel gave it meanwhile."""

    async def script(running: Processes, port: int) -> None:
        hung = pid(running._places[0])
        with ExitStack() as stack:
            os.kill(hung, signal.SIGSTOP)
            await becomes(lambda: hangs(running))
            clients = [stack.enter_context(send(port, LAST)) for _ in range(20)]
            os.kill(hung, signal.SIGCONT)
            await becomes(lambda: not hangs(running))
            for client in clients:
                response = await asyncio.to_thread(read_all, client)
                assert response.startswith(b"HTTP/1.1 200 OK")
        assert pid(running._places[0]) == hung
        silent, back = said_of(hung, log)
        assert "has not answered for 0.75s" in silent
        assert back == f"process {hung} answers again"

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=FOR_EVER), script) == 0


def test_one_that_hangs_is_replaced(log: pytest.LogCaptureFixture) -> None:
    """Its successor takes connections, and nothing remains of the questions to the old process."""

    async def script(running: Processes, port: int) -> None:
        place = running._places[0]
        hung, channel = pid(place), place._channel
        assert channel is not None
        os.kill(hung, signal.SIGSTOP)
        await becomes(lambda: hangs(running))
        await becomes(lambda: pid(place) != hung and not hangs(running))
        async with httpx.AsyncClient() as client:
            for _ in range(30):
                headers = {"connection": "close"}
                answer = await client.get(f"http://127.0.0.1:{port}/health/live", headers=headers)
                assert answer.status_code == 200
        assert channel._questions == {}
        await becomes(lambda: watched() == 2)
        silent, dead = said_of(hung, log)
        assert "has not answered for 0.75s" in silent
        assert dead == f"process {hung} has not answered for 2s: killed"
        assert log.text.count("a process ended unexpectedly (signal SIGKILL)") == 1

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=8), script) == 0


OTHER, NEXT = (Settings.model_validate({"workers": [f"http://127.0.0.1:{n}"]}) for n in (2, 3))


async def has(place: Place) -> str:
    """Return the address of the worker that the process in this place uses."""
    said = await place.workers()
    return "" if said is None else httpx.URL(msgspec.json.decode(said)[0]["url"]).netloc.decode()


def test_one_that_hangs_keeps_no_settings_from_others(log: pytest.LogCaptureFixture) -> None:
    """Others get new settings while it hangs; it gets them as soon as it answers again."""

    async def script(running: Processes, _: int) -> None:
        first, second = running._places
        hung = pid(first)
        os.kill(hung, signal.SIGSTOP)
        await running.change(OTHER)
        assert await has(second) == "127.0.0.1:2"
        said = f"process {hung} does not answer: it takes the new settings when it does"
        assert said_of(hung, log).count(said) == 1
        os.kill(hung, signal.SIGCONT)
        async with asyncio.timeout(20):
            while await has(first) != "127.0.0.1:2":  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        assert pid(first) == hung

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=FOR_EVER), script) == 0


def test_one_that_hangs_as_it_starts_keeps_no_settings_from_others() -> None:
    """Neither these nor the next ones; it takes them once it serves."""

    async def script(running: Processes, _: int) -> None:
        first, second = running._places
        before = pid(first)
        os.kill(before, signal.SIGKILL)
        await becomes(lambda: pid(first) != before and first._channel is not None)
        starts = pid(first)
        os.kill(starts, signal.SIGSTOP)
        for settings, worker in ((NEXT, "127.0.0.1:3"), (OTHER, "127.0.0.1:2")):
            async with asyncio.timeout(20):
                await running.change(settings)
            assert await has(second) == worker
        os.kill(starts, signal.SIGCONT)
        async with asyncio.timeout(20):
            while await has(first) != "127.0.0.1:2":  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)
        assert pid(first) == starts

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=FOR_EVER, start=FOR_EVER), script) == 0


def test_settings_while_none_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start are waited for, so that somebody judges the settings."""

    async def refuses(_: bytes) -> bool:
        raise Refusal("no")

    async def script(running: Processes, _: int) -> None:
        before = running._settings
        for place in running._places:
            monkeypatch.setattr(place, "serves", False)
            monkeypatch.setattr(place, "change", refuses)
        with pytest.raises(CannotBuild, match="no"):
            await running.change(OTHER)
        assert running._settings is before

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=FOR_EVER), script) == 0


def test_one_that_hangs_as_it_starts_is_given_up(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its place would stay empty for ever."""
    monkeypatch.setattr("router.processes.supervisor._RUN", "import time; time.sleep(1000)")

    async def answer(_: str, __: bytes) -> bytes:
        return b""

    async def run() -> int:
        here = Place(
            lambda: Order(1, b"", Address("127.0.0.1", 0), None),
            answer,
            patience=ChannelTimeouts(0.02, silent=1, dead=2, start=5),
        )
        async with asyncio.timeout(20):
            return await here._one()

    assert asyncio.run(run()) == -signal.SIGKILL
    assert "has not answered for 0.1s: killed" in log.text


def test_settings_that_others_refuse_while_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process refuses the new settings, the hanging one is sent the old ones again."""
    told = list[tuple[str, bytes]]()

    async def refuses(_: bytes) -> bool:
        raise Refusal("no")

    async def script(running: Processes, _: int) -> None:
        first, second = running._places
        before = running._settings
        os.kill(pid(first), signal.SIGSTOP)
        monkeypatch.setattr(second, "change", refuses)
        monkeypatch.setattr(first, "tell", lambda *said: told.append(said))
        with pytest.raises(CannotBuild, match="no"):
            await running.change(OTHER)
        assert ("settings", seal(before)) in told
        assert running._settings is before
        os.kill(pid(first), signal.SIGCONT)

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=FOR_EVER), script) == 0


def test_one_that_hangs_at_the_end(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the order to stop it has the full grace period: it is not killed for its silence."""
    monkeypatch.setattr(processes, "GRACE_S", 2.0)

    async def script(running: Processes, _: int) -> None:
        os.kill(pid(running._places[0]), signal.SIGSTOP)
        await becomes(lambda: hangs(running))

    assert serving(ChannelTimeouts(BEAT_S, silent=3, dead=5), script) == 1
    assert "has not answered for 0.75s" in log.text
    assert "s: killed" not in log.text
