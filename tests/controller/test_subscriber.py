"""Real sockets: engines that dial in or are dialled, addresses that are taken, and leaving."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from controller.index import Index
from controller.line import binds
from controller.source import Source
from controller.subscriber import Subscriber

SIZE = 16


def stored(number: int) -> bytes:
    """A batch with one block."""
    event = {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": [number] * SIZE,
        "block_size": SIZE,
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


class Wire:
    """One end of the wires: publishers by hand, and the subscriber under test."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.subscriber = Subscriber()
        self.index = Index(1 << 20)

    def source(self, worker: str, *, replays: bool = False) -> Source:
        """Somebody to listen to."""
        return Source(self.index, worker, replays=replays)

    def socket(self, kind: int) -> Any:
        """One that lingers nowhere."""
        made = self.context.socket(kind)
        made.linger = 0
        return made

    def blocks(self) -> dict[str, int]:
        """Held, by worker."""
        return {place.worker: place.blocks for place in self.index.places() if place.blocks}


async def until(condition: Callable[[], object]) -> None:
    """Wait for something to become true; fail if it does not."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of others, without events
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def wire() -> AsyncIterator[Wire]:
    """All of it, closed at the end."""
    made = Wire()
    try:
        yield made
    finally:
        await made.subscriber.close()
        made.context.destroy(linger=0)


def run(play: Coroutine[Any, Any, None]) -> None:
    """To its end."""
    asyncio.run(play)


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """At addresses that are taken."""
    monkeypatch.setattr("controller.subscriber.TICK_S", 0.02)
    monkeypatch.setattr("controller.sockets.TAKEN_S", 0.02)


async def say(socket: Any, topic: bytes, sequence: int, source: Source) -> None:
    """Publish one block, and wait until it is heard."""
    await socket.send_multipart([topic, sequence.to_bytes(8, "big"), stored(sequence + 1)])
    await until(lambda: source.stream.live == sequence)


async def dialled(made: Wire, port: int) -> Any:
    """An engine that dials in, once it knows that somebody listens."""
    engine = made.socket(zmq.XPUB)
    engine.connect(f"tcp://127.0.0.1:{port}")
    async with asyncio.timeout(10):
        assert await engine.recv() == b"\x01"
    return engine


@pytest.mark.parametrize(
    ("endpoint", "wanted"),
    [
        ("tcp://*:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://10.0.0.1:5557", False),
        ("tcp://[2001:db8::5]:5557", False),
        ("tcp://[::1]:5557", False),
        ("ipc:///run/engine", False),
    ],
)
def test_only_an_address_of_ours_is_bound(endpoint: str, wanted: bool) -> None:
    """An engine's address may have two colons too."""
    assert binds(endpoint) is wanted


def test_a_fleet_dials_in_at_one_address() -> None:
    """Each is known by its topic; strangers are counted; one that leaves is heard no more."""

    async def play() -> None:
        async with wire() as made:
            a, b = made.source("a:1"), made.source("b:1")
            port = _free()
            for source in (a, b):
                made.subscriber.follow(source, f"tcp://*:{port}", None)
            engines = [await dialled(made, port) for _ in range(3)]
            await say(engines[0], b"kv@a:1@m", 0, a)
            assert (a.connected, b.connected) == (True, False)
            await say(engines[1], b"kv@b:1@m", 0, b)
            assert made.blocks() == {"a:1": 1, "b:1": 1}
            await engines[2].send_multipart([b"kv@c:1@m", bytes(8), stored(9)])
            await until(lambda: a.refused["topic of nobody"] == 1)
            assert made.blocks() == {"a:1": 1, "b:1": 1}
            await made.subscriber.leave([a])
            made.index.forget(a.name)
            await engines[0].send_multipart([b"kv@a:1@m", (1).to_bytes(8, "big"), stored(2)])
            await say(engines[1], b"kv@b:1@m", 1, b)
            assert made.blocks() == {"b:1": 2}

    run(play())


def test_one_that_breaks_off_puts_all_of_them_to_the_test() -> None:
    """Nobody knows whose connection it was: who goes on where it was is who it was."""

    async def play() -> None:
        async with wire() as made:
            a, b = made.source("a:1"), made.source("b:1")
            port = _free()
            for source in (a, b):
                made.subscriber.follow(source, f"tcp://*:{port}", None)
            engines = [await dialled(made, port) for _ in range(2)]
            for engine, source in zip(engines, (a, b), strict=True):
                for sequence in range(3):
                    await say(engine, f"kv@{source.worker}@m".encode(), sequence, source)
            engines[0].close()
            await until(lambda: a.stream._doubted)
            await say(engines[1], b"kv@b:1@m", 3, b)
            await say(await dialled(made, port), b"kv@a:1@m", 0, a)
            assert a.stream.epoch == 1
            assert made.blocks() == {"a:1": 1, "b:1": 4}
            assert b.stream.epoch == 0

    run(play())


def test_an_address_that_is_taken_is_bound_when_it_is_free() -> None:
    """As after a reload: the socket before it takes a moment to go."""

    async def play() -> None:
        async with wire() as made:
            source, port = made.source("a"), _free()
            other = made.socket(zmq.SUB)
            other.bind(f"tcp://*:{port}")
            made.subscriber.follow(source, f"tcp://*:{port}", None)
            await asyncio.sleep(0.05)
            other.close()
            await say(await dialled(made, port), b"", 0, source)
            assert made.blocks() == {"a": 1}

    run(play())


def test_a_fault_of_ours_is_counted_and_all_that_follow_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an event, or in a message, of a line that others share."""

    async def play() -> None:
        async with wire() as made:
            a, b = made.source("a:1"), made.source("b:1")
            port = _free()
            for source in (a, b):
                made.subscriber.follow(source, f"tcp://*:{port}", None)
            engine = await dialled(made, port)
            with monkeypatch.context() as broken:
                broken.setattr(made.index, "store", _fail)
                await say(engine, b"kv@a:1@m", 0, a)
                broken.setattr(a, "heard", _fail)
                await engine.send_multipart([b"kv@a:1@m", (1).to_bytes(8, "big"), stored(2)])
                await until(lambda: a.refused["unexpected"] == 2)
            await say(engine, b"kv@a:1@m", 2, a)
            await say(engine, b"kv@b:1@m", 0, b)
            assert made.blocks() == {"a:1": 1, "b:1": 1}

    run(play())


def test_a_fault_of_ours_in_a_replay_is_a_replay_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for again, later."""

    async def play() -> None:
        async with wire() as made:
            publisher, router = made.socket(zmq.PUB), made.socket(zmq.ROUTER)
            ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (publisher, router)]
            source = made.source("a", replays=True)
            monkeypatch.setattr(source, "replayed", _fail)
            made.subscriber.follow(source, *(f"tcp://127.0.0.1:{port}" for port in ports))
            client, _, _ = await router.recv_multipart()
            await router.send_multipart([client, b"", b"", bytes(8), stored(1)])
            await until(lambda: source.stream.counts["failed replay"])
            assert source.refused["unexpected"] == 1

    run(play())


def _fail(*_: object) -> None:
    raise ZeroDivisionError


def test_who_leaves_in_the_middle_of_a_replay_leaves_nothing() -> None:
    """What comes after it is not applied."""

    async def play() -> None:
        async with wire() as made:
            publisher, router = made.socket(zmq.PUB), made.socket(zmq.ROUTER)
            ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (publisher, router)]
            source = made.source("a", replays=True)
            made.subscriber.follow(source, *(f"tcp://127.0.0.1:{port}" for port in ports))
            client, _, _ = await router.recv_multipart()
            await router.send_multipart([client, b"", b"", bytes(8), stored(1)])
            await until(lambda: made.blocks() == {"a": 1})
            await made.subscriber.leave([source])
            made.index.forget(source.name)
            with contextlib.suppress(zmq.ZMQError):
                await router.send_multipart([client, b"", b"", (1).to_bytes(8, "big"), stored(2)])
            await asyncio.sleep(0.05)
            assert made.blocks() == {}

    run(play())


def test_an_engine_at_an_ipv6_address_is_listened_to() -> None:
    """In brackets, as in a URL."""

    async def play() -> None:
        async with wire() as made:
            engine = made.socket(zmq.XPUB)
            engine.ipv6 = True
            try:
                engine.bind("tcp://[::1]:*")
            except zmq.ZMQError:
                pytest.skip("no IPv6 here")
            source = made.source("a")
            endpoint = engine.getsockopt_string(zmq.LAST_ENDPOINT)
            made.subscriber.follow(source, endpoint, None)
            await engine.recv()
            await say(engine, b"", 0, source)
            assert made.blocks() == {"a": 1}

    run(play())


def _free() -> int:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        return int(socket.bind_to_random_port("tcp://*"))
