"""Real sockets: engines that connect or are connected to, taken addresses, and leaving."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from controller.events.sockets import Intervals
from controller.events.source import EventSource
from controller.events.stream import StreamPhase
from controller.events.subscriber import Subscriber
from controller.index.index import Index

SIZE = 16
OFTEN = Intervals(tick=0.02, retry=0.01, bind_retry=0.02, reconnect=0.5)
#: Other tasks run after each message.
ONE_BY_ONE = OFTEN._replace(time_slice=0.0)


def stored(number: int) -> bytes:
    """Return a batch with one block."""
    event = {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": [number] * SIZE,
        "block_size": SIZE,
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


class Wire:
    """Both ends of the connections: publishers operated by hand, and the subscriber under test."""

    def __init__(self, intervals: Intervals) -> None:
        self.context = zmq.asyncio.Context()
        self.subscriber = Subscriber(intervals)
        self.index = Index(1 << 20)

    def source(self, worker: str, *, replays: bool = False) -> EventSource:
        """Create a source to follow."""
        return EventSource(self.index, worker, replays=replays)

    def socket(self, kind: int) -> Any:
        """Create a socket without linger."""
        made = self.context.socket(kind)
        made.linger = 0
        return made

    def blocks(self) -> dict[str, int]:
        """Return the number of blocks held, by worker."""
        return {place.worker: place.blocks for place in self.index.caches() if place.blocks}


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail after 10 seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def wire(intervals: Intervals = OFTEN) -> AsyncIterator[Wire]:
    """Create a wire that is closed at the end."""
    made = Wire(intervals)
    try:
        yield made
    finally:
        await made.subscriber.close()
        made.context.destroy(linger=0)


def run(play: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end."""
    asyncio.run(play)


async def say(socket: Any, topic: bytes, sequence: int, source: EventSource) -> None:
    """Publish one block, and wait until it is heard."""
    await socket.send_multipart([topic, sequence.to_bytes(8, "big"), stored(sequence + 1)])
    await until(lambda: source.stream.live == sequence)


async def dialled(made: Wire, port: int) -> Any:
    """Return an engine that has connected, once it knows that there is a subscriber."""
    engine = made.socket(zmq.XPUB)
    engine.connect(f"tcp://127.0.0.1:{port}")
    async with asyncio.timeout(10):
        assert await engine.recv() == b"\x01"
    return engine


def test_a_fleet_dials_in_at_one_address() -> None:
    """Each engine is known by its topic; unknown ones are counted; one that leaves is no longer
    heard."""

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
            await say(engines[0], b"kv@b:1@m", 1, b)  # in order, as over the same connection
            assert made.blocks() == {"b:1": 2}

    run(play())


def test_one_that_breaks_off_puts_all_of_them_to_the_test() -> None:
    """It is unknown whose connection broke, so all are doubted; an engine that continues with its
    next number is the same process."""

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
            await until(lambda: a.stream.doubted)
            assert b.stream.doubted
            await say(engines[1], b"kv@b:1@m", 3, b)
            await say(await dialled(made, port), b"kv@a:1@m", 0, a)
            assert a.stream.epoch == 1
            assert made.blocks() == {"a:1": 1, "b:1": 4}
            assert b.stream.epoch == 0

    run(play())


def test_an_address_that_is_taken_is_bound_when_it_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after a reload, when the previous socket takes a moment to close."""

    async def play() -> None:
        async with wire() as made:
            source, port = made.source("a"), _free()
            other = made.socket(zmq.SUB)
            other.bind(f"tcp://*:{port}")
            made.subscriber.follow(source, f"tcp://*:{port}", None)
            await until(lambda: f"{port}: Address already in use" in caplog.text)
            other.close()
            await say(await dialled(made, port), b"", 0, source)
            assert made.blocks() == {"a": 1}

    run(play())


def test_a_fault_of_ours_is_counted_and_all_that_follow_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception while handling an event or a message does not stop a shared socket."""

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


def _fail(*_: object) -> None:
    raise ZeroDivisionError


async def hung_up(router: Any, frames: list[bytes]) -> None:
    """Send this again and again, until there is no connection to send it over."""
    async with asyncio.timeout(10):
        with contextlib.suppress(zmq.ZMQError):
            while True:
                await router.send_multipart(frames)
                await asyncio.sleep(0.01)


def test_who_leaves_in_the_middle_of_a_replay_leaves_nothing() -> None:
    """What the replay brings afterwards is not applied."""

    async def play() -> None:
        async with wire() as made:
            publisher, router = made.socket(zmq.PUB), made.socket(zmq.ROUTER)
            router.router_mandatory = True
            ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (publisher, router)]
            source = made.source("a", replays=True)
            made.subscriber.follow(source, *(f"tcp://127.0.0.1:{port}" for port in ports))
            client, _, _ = await router.recv_multipart()
            await router.send_multipart([client, b"", b"", bytes(8), stored(1)])
            await until(lambda: made.blocks() == {"a": 1})
            await made.subscriber.leave([source])
            made.index.forget(source.name)
            rest = [client, b"", b"", (1).to_bytes(8, "big"), stored(2)]
            await hung_up(router, rest)
            assert made.blocks() == {}

    run(play())


def test_a_fault_of_ours_in_a_replay_is_a_replay_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is counted, and the replay counts as failed."""

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


async def behind(engine: Any, router: Any, source: EventSource, waiting: int) -> None:
    """Have messages wait for a replay, and end that; return while the steps that it releases are
    being taken."""
    client = (await router.recv_multipart())[0]
    for number in range(waiting):
        frames = [b"kv@a@m", number.to_bytes(8, "big"), stored(number + 1)]
        await engine.send_multipart(frames)
    await until(lambda: source.stream.live == waiting - 1)
    await router.send_multipart([client, b"", b"", b"\xff" * 8, b""])
    async with asyncio.timeout(10):
        while not source.late:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


@pytest.mark.parametrize("ends", [False, True])
def test_late_steps_when_nobody_listens_any_more(ends: bool) -> None:
    """Of a worker that leaves they are not taken, although others are heard at the same address. If
    all ends, a snapshot that says how far the stream is has them all."""
    waiting = 300

    async def play() -> None:
        async with wire(ONE_BY_ONE) as made:
            a, b, router = made.source("a", replays=True), made.source("b"), made.socket(zmq.ROUTER)
            port, replay = _free(), router.bind_to_random_port("tcp://127.0.0.1")
            made.subscriber.follow(a, f"tcp://*:{port}", f"tcp://127.0.0.1:{replay}")
            made.subscriber.follow(b, f"tcp://*:{port}", None)
            engine = await dialled(made, port)
            await behind(engine, router, a, waiting)
            if ends:
                await made.subscriber.close()
                assert a.mark()[0] == waiting - 1
                assert made.blocks() == {"a": waiting}
                return
            closing = made.subscriber.leave([a])
            made.index.forget(a.name)
            await closing
            await engine.send_multipart([b"kv@b@m", bytes(8), stored(1)])
            await until(lambda: b.events)
            assert made.blocks() == {"b": 1}

    run(play())


@pytest.mark.parametrize("failed", [False, True])
def test_what_waited_for_a_replay_lets_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """Thousands of live messages may wait for its end; requests do not wait for all of them."""
    waiting = 300

    async def play() -> None:
        async with wire(ONE_BY_ONE) as made:
            source = made.source("a", replays=True)
            pub, router = made.socket(zmq.PUB), made.socket(zmq.ROUTER)
            ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (pub, router)]
            made.subscriber.follow(source, *(f"tcp://127.0.0.1:{port}" for port in ports))
            client = (await router.recv_multipart())[0]
            await say(pub, b"", 0, source)
            for number in range(1, waiting):
                await pub.send_multipart([b"", number.to_bytes(8, "big"), stored(number + 1)])
            await until(lambda: source.stream.live == waiting - 1)
            assert source.stream.state is StreamPhase.REPLAY
            assert not source.events
            if failed:
                monkeypatch.setattr(source, "replay_ended", _fail)
            await router.send_multipart([client, b"", b"", b"\xff" * 8, b""])
            turns = 0
            while source.events < waiting:
                turns += source.events > 0
                assert source.doubt == "gap"
                await asyncio.sleep(0)
            assert made.blocks() == {"a": waiting}
            assert turns > waiting / 2
            await say(pub, b"", waiting, source)
            await until(lambda: made.blocks() == {"a": waiting + 1})

    run(play())


def test_an_engine_at_an_ipv6_address_is_listened_to() -> None:
    """The address is in brackets, as in a URL."""

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
