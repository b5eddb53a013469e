"""Several processes: those that hang, cannot start, do not end, or are gone."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.fleet.build import CannotBuild
from router.http.server import bind
from router.processes.child import Order, opened, seal
from router.processes.supervisor import Place, Processes
from router.replicas.channel import ChannelTimeouts
from router.settings.model import Settings
from router.settings.types import Address
from tests.pems import write_pems
from tests.reload.changing import CHAT, chat
from tests.support import MakeStub, post, read_all, send, until

LAST = b"GET /health/live HTTP/1.1\r\nconnection: close\r\nhost: x\r\n\r\n"
BEAT_S = 0.25
FOR_EVER = 1_000_000
#: A healthy process answers many times as fast, even on a busy machine.
PATIENT = ChannelTimeouts(BEAT_S, silent=12, dead=FOR_EVER, start=FOR_EVER)

Script = Callable[[Processes, int], Awaitable[None]]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture the log lines about processes."""
    with caplog.at_level(logging.WARNING, "warmroute.processes"):
        yield caplog


def settings(worker: str = "http://127.0.0.1:1", **more: Any) -> Settings:
    """Return settings with one worker, and a quick end."""
    given = {"workers": [worker], "shutdown": {"delay": "0s", "drain": "0s"}, **more}
    return Settings.model_validate(given)


def serving(
    script: Script, given: Settings, timeouts: ChannelTimeouts = PATIENT, **delays: float
) -> int:
    """Run two processes, and `script` once both serve; then stop, and return the exit code."""

    async def run(listen: Address) -> int:
        running = Processes(given, 2, listen, None, timeouts, **delays)
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


async def becomes(condition: Callable[[], object]) -> None:
    """Wait for a condition to hold; fail after 20 seconds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.01)


async def has(place: Place, worker: str) -> None:
    """Wait until the process in this place uses that worker; fail after 20 seconds."""
    async with asyncio.timeout(20):
        while True:
            said = await place.ask("workers")
            if said is not None and msgspec.json.decode(said)[0]["url"] == worker:
                return
            await asyncio.sleep(0.01)


def said_of(pid: int, log: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about one process, oldest first."""
    return [message for message in log.messages if message.startswith(f"process {pid} ")]


NEW, NEXT = "http://127.0.0.1:2", "http://127.0.0.1:3"


def test_one_that_hangs_for_a_while(log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Others get new settings meanwhile, and judge them; once it answers again it gets them too,
    and serves what the kernel gave it."""
    write_pems(tmp_path)
    roots = tmp_path / "both.pem"
    unusable = Settings.model_validate(
        {"workers": [{"url": "https://127.0.0.1:4", "tls": {"ca": str(roots)}}]}
    )
    roots.unlink()

    async def script(running: Processes, port: int) -> None:
        first, second = running.places
        hung = first.pid
        with ExitStack() as stack:
            os.kill(hung, signal.SIGSTOP)
            await becomes(first.hangs.is_set)
            clients = [stack.enter_context(send(port, LAST)) for _ in range(20)]
            with pytest.raises(CannotBuild, match=r"both\.pem"):
                await running.change(unusable)
            await running.change(settings(NEW))
            await has(second, NEW)
            said = f"process {hung} does not answer: it takes the new settings when it does"
            assert said_of(hung, log).count(said) == 2
            os.kill(hung, signal.SIGCONT)
            await becomes(lambda: not first.hangs.is_set())
            for client in clients:
                response = await asyncio.to_thread(read_all, client)
                assert response.startswith(b"HTTP/1.1 200 OK")
        await has(first, NEW)
        assert first.pid == hung
        silent, *_, back = said_of(hung, log)
        assert f"has not answered for {PATIENT.silent_s:g}s" in silent
        assert back == f"process {hung} answers again"

    assert serving(script, settings()) == 0


def counted(text: bytes, name: str) -> float:
    """Return the sum of a metric in a scrape."""
    families = text_string_to_metric_families(text.decode())
    return sum(one.value for family in families for one in family.samples if one.name == name)


def test_one_that_hangs_is_replaced(log: pytest.LogCaptureFixture, stub: MakeStub) -> None:
    """What it has counted still counts, others' answers do not wait for it, and its successor takes
    connections."""

    async def script(running: Processes, port: int) -> None:
        place, url = running.places[0], f"http://127.0.0.1:{port}"
        hung = place.pid
        async with httpx.AsyncClient(headers={"connection": "close"}) as client:
            for _ in range(20):
                assert (await client.post(url + CHAT, json=chat())).status_code == 200
            seen = [await running.answer("metrics", b"")]
            os.kill(hung, signal.SIGSTOP)
            await becomes(place.hangs.is_set)
            seen.append(await running.answer("metrics", b""))
            (worker,) = msgspec.json.decode(await running.answer("workers", b""))
            assert worker["name"] == stubbed.url[7:]
            await becomes(lambda: place.pid != hung and place.serves)
            for _ in range(30):
                assert (await client.get(url + "/health/live")).status_code == 200
        seen.append(await running.answer("metrics", b""))
        assert [counted(text, "warmroute_requests_total") for text in seen] == [20.0] * 3
        assert [counted(text, "warmroute_processes") for text in seen] == [2.0, 1.0, 2.0]
        assert [counted(text, "warmroute_processes_lost_total") for text in seen] == [0, 0, 1]
        *_, silent, dead = said_of(hung, log)
        assert f"has not answered for {timeouts.silent_s:g}s" in silent
        assert dead == f"process {hung} has not answered for {timeouts.dead_s:g}s: killed"
        assert log.text.count("a process ended unexpectedly (signal SIGKILL)") == 1

    stubbed = stub()
    timeouts = ChannelTimeouts(BEAT_S / 2, silent=8, dead=20)
    assert serving(script, settings(stubbed.url), timeouts) == 0


@pytest.mark.long
def test_one_that_hangs_as_it_starts_keeps_no_settings_from_others() -> None:
    """Neither these nor the next ones; it takes them once it serves."""

    async def script(running: Processes, _: int) -> None:
        first, second = running.places
        before = first.pid
        os.kill(before, signal.SIGKILL)
        await becomes(lambda: first.pid != before)
        starts = first.pid
        os.kill(starts, signal.SIGSTOP)
        for worker in (NEXT, NEW):
            async with asyncio.timeout(20):
                await running.change(settings(worker))
            await has(second, worker)
        os.kill(starts, signal.SIGCONT)
        await has(first, NEW)
        assert first.pid == starts

    assert serving(script, settings()) == 0


def test_one_that_hangs_as_it_starts_is_given_up(log: pytest.LogCaptureFixture) -> None:
    """Otherwise its place would stay empty for ever."""

    async def answer(_: str, __: bytes) -> bytes:
        return b""

    async def run() -> bool:
        timeouts = ChannelTimeouts(0.001, silent=1, dead=2, start=5)  # none starts as fast
        order = Order(1, seal(settings()), Address("127.0.0.1", 0), None)
        here = Place(lambda: order, answer, timeouts=timeouts, restart_delay_s=30.0)
        running = asyncio.create_task(here.run())
        async with asyncio.timeout(20):
            await here.tried.wait()
            here.stop()
            return await running

    asyncio.run(run())
    assert "has not answered for 0.005s: killed" in log.text
    assert "a process ended before it served (signal SIGKILL)" in log.text


def test_one_that_will_not_end(log: pytest.LogCaptureFixture) -> None:
    """It is killed some time after its own deadlines, not for its silence; the exit code is 1."""

    async def script(running: Processes, _: int) -> None:
        os.kill(running.places[0].pid, signal.SIGSTOP)
        await becomes(running.places[0].hangs.is_set)

    timeouts = ChannelTimeouts(BEAT_S, silent=10, dead=12)
    assert serving(script, settings(), timeouts, grace_s=1.0) == 1
    assert f"has not answered for {timeouts.silent_s:g}s" in log.text
    assert "s: killed" not in log.text


@pytest.mark.long
def test_one_that_has_ended_has_nothing_under_way(stub: MakeStub) -> None:
    """The others drop its requests at once, however long its successor takes to start."""
    worker, clients = stub(["stall"]), ExitStack()
    texts = (f"{number} of " * 36_000 for number in count())

    async def seen(running: Processes) -> tuple[int, float]:
        """Return the worker's requests in flight in the first process, and its wait there."""
        said = await running.places[0].ask("workers")
        assert said is not None
        (found,) = msgspec.json.decode(said)
        return found["in_flight"], found["wait_seconds"]

    def arrived(number: int) -> bool:
        return len(worker.requests) == number

    async def script(running: Processes, port: int) -> None:
        here = sent = 0
        while not 2 <= here <= sent - 2:  # the kernel decides which process gets a connection
            assert sent < 64
            body = json.dumps(chat(next(texts), stream=True)).encode()
            clients.enter_context(post(port, CHAT, body))
            sent += 1
            await asyncio.to_thread(until, partial(arrived, sent))
            here, _ = await seen(running)
        here, before = await seen(running)
        while (now := await seen(running))[1] > before:  # it has not heard of all yet
            here, before = now
            await asyncio.sleep(0.05)
        running.places[1].kill()
        async with asyncio.timeout(5):  # much less than the prompts are believed to take
            while (await seen(running))[1] > before * (here + 1) / sent:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        clients.close()

    with clients:
        given = settings(worker.url, limits={"queue": 0})
        assert serving(script, given, restart_delay_s=30.0) == 0


def test_what_cannot_start() -> None:
    """If the port is taken, all processes end and the exit code is 1."""

    async def run(listen: Address) -> int:
        running = Processes(settings(), 2, listen, None)
        async with asyncio.timeout(50):
            return await running.run(lambda: pytest.fail("they cannot all serve"))

    with bind(Address("127.0.0.1", 0)) as taken:
        assert asyncio.run(run(Address("127.0.0.1", taken.getsockname()[1]))) == 1


def test_an_order_can_be_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of every kind arrive unchanged in the child process, secrets included."""
    monkeypatch.setenv("SOME_KEY", "0123456789abcdef")
    write_pems(tmp_path)
    given = {
        "listen": "0.0.0.0:1",
        "auth": {"keys": ["${SOME_KEY}"]},
        "tls": {"certificate": "one.pem", "key": "one.key", "client_ca": "both.pem"},
        "admin": {"listen": "[::1]:2"},
        "cors": ["https://app.example"],
        "timeouts": {"total": "off"},
        "pools": [
            {
                "name": "p",
                "models": ["m*"],
                "strategy": {"name": "prefixaware", "memory": "1MiB"},
                "workers": [
                    {
                        "url": "https://10.0.0.1:8000",
                        "api_key": "${SOME_KEY}",
                        "tls": {"ca": "both.pem"},
                    }
                ],
            }
        ],
    }
    parsed = Settings.model_validate(given, context={"folder": tmp_path})
    monkeypatch.delenv("SOME_KEY")
    assert opened(seal(parsed)) == parsed
    assert "0123456789abcdef" not in parsed.model_dump_json()
    order = Order(2, seal(parsed), Address("0.0.0.0", 1), Address("::1", 2))  # noqa: S104
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order) == order
