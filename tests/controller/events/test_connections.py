"""Connections to engines that die, sockets that cannot be had, and turns on the event loop."""

import asyncio
import errno
from pathlib import Path
from socket import AF_INET, AF_INET6, gaierror
from typing import Any

import pytest
import zmq

from controller.events.sockets import create_context, needs_ipv6
from controller.events.source import EventSource
from tests.controller.events.test_subscriber import Wire, run, say, until, wire


def published(made: Wire) -> tuple[Any, str]:
    """Return a publisher that sees its subscribers, and its address."""
    socket = made.socket(zmq.XPUB)
    return socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


async def followed(made: Wire) -> tuple[Any, str, EventSource]:
    """Return a publisher, its address, and its source, which has heard one block."""
    engine, address = published(made)
    source = made.source("a")
    made.subscriber.follow(source, address, None)
    await engine.recv()
    await say(engine, b"", 0, source)
    return engine, address, source


def timers(port: int) -> set[str]:
    """Return the timers of established connections to a port (Linux, proc_net_tcp: 02 is
    keep-alive)."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {
        row[5].split(":")[0]
        for row in rows
        if int(row[2].split(":")[1], 16) == port and row[3] == "01"
    }


def test_the_system_asks_whether_an_engine_is_still_there() -> None:
    """Keep-alive is on: a mere listener would never notice that a node lost its power."""

    async def play() -> None:
        async with wire() as made:
            _, address, _ = await followed(made)
            assert timers(int(address.rpartition(":")[2])) == {"02"}

    run(play())


def test_a_message_that_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged, and the next message is heard: ZeroMQ on its own would not
    reconnect."""

    async def play() -> None:
        async with wire() as made:
            engine, _, source = await followed(made)
            await engine.send_multipart([b"", (1).to_bytes(8, "big"), bytes(40 << 20)])
            await until(lambda: source.refused["ended the connection"])
            assert source.doubt == "not connected"
            while await engine.recv() != b"\x01":
                pass
            await say(engine, b"", 2, source)
            assert source.connected

    run(play())
    assert "ended the connection" in caplog.text


def test_there_are_sockets_for_thousands_of_engines() -> None:
    """Each engine takes three; ZeroMQ's own default would be reached with 341 engines."""
    context = create_context()
    try:
        assert context.get(zmq.MAX_SOCKETS) >= 3 * 4096
    finally:
        context.destroy()


def lacking(monkeypatch: pytest.MonkeyPatch, kind: int, times: int) -> None:
    """Let opening a socket of this kind fail this many times."""
    real, left = zmq.asyncio.Context.socket, [times]

    def socket(context: Any, wanted: int, **options: Any) -> Any:
        if wanted == kind and left[0]:
            left[0] -= 1
            raise zmq.ZMQError(errno.EMFILE)
        return real(context, wanted, **options)

    monkeypatch.setattr(zmq.asyncio.Context, "socket", socket)


def test_for_want_of_sockets_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again, and the failure is logged only once."""
    lacking(monkeypatch, zmq.SUB, 3)

    async def play() -> None:
        async with wire() as made:
            await followed(made)

    run(play())
    assert caplog.text.count("it is tried again") == 1


@pytest.mark.parametrize(
    ("endpoint", "addresses", "wanted"),
    [
        ("tcp://[::1]:1", None, True),
        ("tcp://*:1", None, False),
        ("tcp://nowhere.example:1", [], False),
        ("tcp://four.example:1", [AF_INET], False),
        ("tcp://six.example:1", [AF_INET6], True),
        ("tcp://both.example:1", [AF_INET6, AF_INET], False),
    ],
)
def test_a_name_may_lead_to_ipv6_alone(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, addresses: list[int] | None, wanted: bool
) -> None:
    """ZeroMQ resolves names for a single address family."""

    async def play() -> None:
        async def looked_up(host: str, *_: object, **__: object) -> list[tuple[int, str]]:
            assert addresses is not None
            if not addresses:
                raise gaierror(host)
            return [(family, host) for family in addresses]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", looked_up)
        assert await needs_ipv6(endpoint) is wanted

    run(play())
