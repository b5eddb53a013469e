"""Router processes that lost contact, or could not read, catch up without further news."""

import asyncio
import os
import socket
from contextlib import suppress

import msgspec
import pytest

from router.fleet.worker import Worker
from router.replicas import replication as sharing
from router.replicas.sockets import Outbox, Wiring
from router.upstream.pool import Upstream
from tests.replicas.wired import Process, play, until
from tests.router.fleets import _PATIENCE

LONG = "long " * 12_000


@pytest.fixture
def wiring() -> Wiring:
    """The sockets of three processes."""
    return Wiring(3)


@pytest.fixture(autouse=True)
def closed(wiring: Wiring) -> object:
    """Close the sockets at the end of the test."""
    yield
    wiring.close()


def test_more_is_under_way_than_one_inbox_takes(wiring: Wiring) -> None:
    """A process that starts later hears of all requests, although nothing else happens."""

    async def script(one: Process, two: Process) -> None:
        for _ in range(400):
            one.send(LONG)
        await until(lambda: two.flying == [400, 0])
        late = Process(wiring, 2)
        late.sharing.begin()
        await until(lambda: late.flying == [400, 0])
        late.sharing.close()

    play(wiring, 2, script)


def test_a_sign_of_life_that_could_not_be_written(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written as soon as the other process reads, and later ones follow."""

    async def script(one: Process, two: Process) -> None:
        one.send()
        await until(lambda: two.flying == [1, 0])
        inbox, loop = two.sharing._inbox._end.fileno(), asyncio.get_running_loop()
        loop.remove_reader(inbox)
        two.sharing._timers["beat"].cancel()
        sign = one.sharing._outboxes[1]
        with socket.socket(fileno=os.dup(wiring.wires(0).outboxes[1])) as other:
            other.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    other.send(msgspec.msgpack.encode((0, one.pid + 1, [])))
        monkeypatch.setattr(sharing, "BEAT_S", 0.02)
        one.sharing._timers["beat"].cancel()
        one.sharing._beat()
        assert sign.behind
        loop.add_reader(inbox, two.sharing._hear)
        await until(lambda: not sign.behind)
        for _ in range(2):
            two.sharing._heard[0] = (0, 0.0)
            await until(lambda: two.sharing._heard[0][0] == one.pid)
        one.sharing._timers["beat"].cancel()

    play(wiring, 2, script)


def test_what_cannot_be_read_stops_nothing(
    wiring: Wiring, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable letter, perhaps of another release, is logged and skipped."""

    async def script(one: Process, two: Process) -> None:
        one.send()
        await until(lambda: two.flying == [1, 0])
        stray = Outbox(socket.socket(fileno=os.dup(wiring.wires(0).outboxes[1])))
        stray.write(b"\xc1 is no message")
        stray.close()
        two.sharing.gone(0, one.pid)
        assert two.flying == [0, 0]
        assert "cannot be read" in caplog.text
        two.sharing._beat()
        assert "beat" in two.sharing._timers

    play(wiring, 2, script)


def join(process: Process) -> None:
    """Give the process a third worker."""
    pool = process.fleet.pools[0]
    upstream = Upstream("127.0.0.1", 1, tls=None, patience=_PATIENCE)
    pool.change(pool.models, [*pool.workers, Worker("w2", "http://w2", upstream, models=["m"])])
    process.fleet.replace([pool])


def test_a_reload_that_one_process_has_before_another(wiring: Wiring) -> None:
    """Requests to a worker that the other did not know yet are reported again after its reload."""

    async def script(one: Process, two: Process) -> None:
        join(one)
        for _ in range(3):
            one.send(worker=2)
        one.send(worker=1)
        await until(lambda: two.flying == [0, 1])
        join(two)
        two.sharing.anew()
        await until(lambda: two.flying == [0, 1, 3])
        two.send(worker=2)
        await until(lambda: one.flying == [0, 0, 1])

    play(wiring, 2, script)
