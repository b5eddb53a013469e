"""Router processes that cannot start, do not end or do not answer."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.http.server import bind
from router.observe.merge import Family, merged
from router.processes import supervisor as place
from router.processes import supervisor as processes
from router.processes.child import Order, opened, seal
from router.processes.supervisor import Place, Processes
from router.settings.model import Settings
from router.settings.types import Address
from tests.pems import write_pems
from tests.reload.changing import CHAT, chat
from tests.support import MakeStub, post, until

LOCAL = Address("127.0.0.1", 0)


def serving(
    script: Callable[[Processes], Awaitable[None]], listen: Address, **settings: Any
) -> int:
    """Run two processes, and `script` once both serve; return the exit code."""
    parsed = Settings.model_validate({"workers": ["http://127.0.0.1:1"], **settings})

    async def run() -> int:
        running = Processes(parsed, 2, listen, None)
        scripts: list[asyncio.Task[None]] = []

        async def play() -> None:
            await script(running)

        async with asyncio.timeout(50):
            code = await running.run(lambda: scripts.append(asyncio.create_task(play())))
        await asyncio.gather(*scripts)
        return code

    return asyncio.run(run())


def frozen(running: Processes) -> Place:
    """Stop one process with SIGSTOP and return its place."""
    found = running._places[0]
    assert found._process is not None
    os.kill(found._process.pid, signal.SIGSTOP)
    return found


def test_one_that_will_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed some time after its own deadlines, and the exit code is 1."""
    monkeypatch.setattr(processes, "GRACE_S", 0.5)

    async def script(running: Processes) -> None:
        frozen(running)
        running.stop()

    with bind(LOCAL, shared=True, listen=False) as kept:
        listen = Address("127.0.0.1", kept.getsockname()[1])
        shutdown = {"delay": "0s", "drain": "0s"}
        assert serving(script, listen, shutdown=shutdown) == 1


def test_one_that_has_ended_has_nothing_under_way(
    stub: MakeStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others drop its requests at once, however long its successor takes to start."""
    monkeypatch.setattr(place, "RESTART_DELAY_S", 30.0)
    worker, clients = stub(["stall"]), ExitStack()
    texts = (f"{number} of " * 12_000 for number in count())

    async def seen(running: Processes) -> tuple[int, float]:
        """Return the worker's requests in flight in the first process, and its wait there."""
        said = await running._places[0].workers()
        assert said is not None
        (found,) = msgspec.json.decode(said)
        return found["in_flight"], found["wait_seconds"]

    def arrived(number: int) -> bool:
        return len(worker.requests) == number

    async def script(running: Processes) -> None:
        here = sent = 0
        while not 2 <= here <= sent - 2:  # the kernel decides which process gets a connection
            body = json.dumps(chat(next(texts), stream=True)).encode()
            clients.enter_context(post(listen.port, CHAT, body))
            sent += 1
            await asyncio.to_thread(until, partial(arrived, sent))
            here, _ = await seen(running)
        here, before = await seen(running)
        while (now := await seen(running))[1] > before:  # it has not heard of all yet
            here, before = now
            await asyncio.sleep(0.05)
        running._places[1].kill()
        async with asyncio.timeout(1):  # much less than the prompts are believed to take
            while (await seen(running))[1] > before * (here + 1) / sent:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        clients.close()
        running.stop()

    with bind(LOCAL, shared=True, listen=False) as kept, clients:
        listen = Address("127.0.0.1", kept.getsockname()[1])
        ending = {"delay": "0s", "drain": "0s"}
        at_once = {"queue": 0}
        code = serving(script, listen, shutdown=ending, limits=at_once, workers=[worker.url])
        assert code == 0


def test_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last known counters still count, and the others' answer does not wait for it."""
    monkeypatch.setattr(place, "ANSWER_TIMEOUT_S", 0.2)
    answers: list[bytes] = []

    async def script(running: Processes) -> None:
        answers.append(await running._answer("metrics", b""))
        answers.append(await running._answer("workers", b""))
        stopped = frozen(running)
        stopped._counted = [Family("lost", "Requests.", "counter", [("lost_total", (), 7.0)])]
        answers.append(await running._answer("metrics", b""))
        answers.append(await running._answer("workers", b""))
        stopped.kill()
        running.stop()

    with bind(LOCAL, shared=True, listen=False) as kept:
        listen = Address("127.0.0.1", kept.getsockname()[1])
        assert serving(script, listen, shutdown={"delay": "0s"}) == 1
    assert b"\nlost_total" not in answers[0]
    assert b"\nlost_total 7.0\n" in answers[2]
    assert b"\nwarmroute_processes 2.0\n" in answers[0]
    assert b"\nwarmroute_processes 1.0\n" in answers[2]
    for text in answers[::2]:
        assert b'warmroute_worker_up{pool="default",worker="127.0.0.1:1"} 0.0\n' in text
    for workers in answers[1::2]:
        (worker,) = msgspec.json.decode(workers)
        assert worker["name"] == "127.0.0.1:1"


def test_what_cannot_start() -> None:
    """If the port is taken, all processes end and the exit code is 1."""

    async def script(_: Processes) -> None:
        raise AssertionError("they cannot all serve")

    with bind(LOCAL) as taken:
        assert serving(script, Address("127.0.0.1", taken.getsockname()[1])) == 1


def test_what_was_counted_stays_when_a_process_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over all processes never fall, however a process ends."""
    counted = [Family("n", "How many.", "counter", [("n_total", (), 3.0)])]

    async def run() -> None:
        async def answer(_: str, __: bytes) -> bytes:
            return b""

        here = Place(lambda: Order(1, b"", LOCAL, None), answer)
        await here._hear("counted", msgspec.msgpack.encode(counted))
        assert await here.metrics() == merged([counted])
        monkeypatch.setattr(place, "_RUN", "raise SystemExit(3)")
        assert await here._one() == 3
        assert await here.metrics() == merged([counted])
        await here._hear("counted", msgspec.msgpack.encode(counted))
        assert (await here.metrics())[0].samples == [("n_total", (), 6.0)]

    asyncio.run(run())


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
    settings = Settings.model_validate(given, context={"folder": tmp_path})
    monkeypatch.delenv("SOME_KEY")
    assert opened(seal(settings)) == settings
    assert "0123456789abcdef" not in settings.model_dump_json()
    order = Order(2, seal(settings), Address("0.0.0.0", 1), Address("::1", 2))  # noqa: S104
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order) == order
