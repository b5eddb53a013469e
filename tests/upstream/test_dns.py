"""DNS lookups run beside the requests and delay neither their own worker for long nor others."""

import asyncio
import functools
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import ParamSpec

import pytest

from router.settings.server import TimeoutSettings
from router.upstream.errors import Refused
from router.upstream.pool import Addresses, Upstream
from tests.support import accepting_nobody

P = ParamSpec("P")

ASK = (b"GET / HTTP/1.1\r\n\r\n", b"")
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
AGAIN = socket.gaierror(socket.EAI_AGAIN, "try again")
NO_NAME = socket.gaierror(socket.EAI_NONAME, "no such name")


def looped(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run an async test in an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Resolver:
    """A resolver that returns or raises `says`, as soon as `lets` is set."""

    def __init__(self, *found: str) -> None:
        self.says: tuple[str, ...] | OSError = found
        self.asked = 0
        self.lets = threading.Event()
        self.lets.set()

    def __call__(self, host: str) -> tuple[str, ...]:
        """Look a name up."""
        assert host == "worker"
        self.asked += 1
        assert self.lets.wait(30)
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


def of(resolver: Resolver, host: str = "worker") -> Addresses:
    """Return the addresses of a name, each answer old enough to be looked up again at once."""
    return Addresses(host, resolver, fresh_s=0.0, refresh_interval_s=0.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo"])
@looped
async def test_an_address_is_its_own(host: str) -> None:
    """A literal IP address is never looked up."""
    resolver = Resolver()
    known = of(resolver, host)
    known.look()
    assert await known.current() == (host,)
    assert known.leads_to(host)
    assert resolver.asked == 0


@looped
async def test_a_resolver_that_hangs_is_waited_for_a_moment_and_once() -> None:
    """While the resolver hangs, the last good answer is used, and only one thread waits for it."""
    resolver = Resolver("10.0.0.1")
    known = of(resolver)
    assert await known.current() == ("10.0.0.1",)
    resolver.lets.clear()
    resolver.says = ("10.0.0.2",)
    async with asyncio.timeout(10):
        for _ in range(100):  # only the first of these calls waits
            assert await known.current() == ("10.0.0.1",)
    assert resolver.asked == 2
    resolver.lets.set()
    await until(lambda: known.leads_to("10.0.0.2"))
    assert not known.leads_to("10.0.0.1")


@looped
async def test_a_first_answer_is_waited_for() -> None:
    """Every caller waits for the first lookup, and each has its own timeout."""
    resolver = Resolver("10.0.0.1")
    resolver.lets.clear()
    known = of(resolver)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await known.current()
    several = [asyncio.create_task(known.current()) for _ in range(3)]
    await asyncio.sleep(0)
    resolver.lets.set()
    assert await asyncio.gather(*several) == [("10.0.0.1",)] * 3
    assert resolver.asked == 1


@pytest.mark.parametrize("failure", [AGAIN, NO_NAME])
@looped
async def test_who_knows_nothing_says_why(failure: OSError) -> None:
    """With no known address the resolver's error is raised, and the next call looks up again."""
    resolver = Resolver()
    resolver.says = failure
    known = of(resolver)
    for _ in range(2):
        with pytest.raises(socket.gaierror, match=str(failure.args[1])):
            await known.current()
    assert resolver.asked == 2
    resolver.says = ("10.0.0.1",)
    assert await known.current() == ("10.0.0.1",)
    resolver.says = failure  # what may pass changes nothing; a name that is no more is not used
    if failure is AGAIN:
        assert await known.current() == ("10.0.0.1",)
    else:
        with pytest.raises(socket.gaierror):
            await known.current()
    assert known.leads_to("10.0.0.1")  # open connections may still be used


@looped
async def test_a_name_that_cannot_be_one() -> None:
    """A label of 64 letters, one too many, fails like an unknown name."""
    with pytest.raises(socket.gaierror, match="name"):
        await Addresses("x" * 64 + ".test").current()


@looped
async def test_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot be started is our own fault and does not discard the known addresses."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    resolver = Resolver("10.0.0.1")
    known = of(resolver)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="no thread"):
            await known.current()
    assert await known.current() == ("10.0.0.1",)


@pytest.mark.parametrize("hangs", [False, True])
@looped
async def test_the_second_address_answers(hangs: bool) -> None:
    """Where the first refuses; and where it hangs, as each gets its share of the time."""
    async with worker("127.0.0.1") as (port, seen):
        upstream, _ = named(Resolver("127.0.0.9", "127.0.0.1"), port, connect=0.5 if hangs else 5)
        with accepting_nobody("127.0.0.9", port) if hangs else nullcontext():
            await ask(upstream)
        assert seen == ["127.0.0.1"]
        upstream.close()


@looped
async def test_a_name_that_moves_takes_its_requests_along() -> None:
    """Requests follow a name to its new address, although connections to the old one are open."""
    async with worker("127.0.0.1") as (port, seen), worker("127.0.0.2", port):
        resolver = Resolver("127.0.0.1")
        upstream, known = named(resolver, port)
        for _ in range(2):
            await ask(upstream)
        assert seen == ["127.0.0.1"]  # over one connection
        resolver.says = ("127.0.0.2",)
        upstream.expire()  # as after every probe
        await until(lambda: resolver.asked == 2 and not known.leads_to("127.0.0.1"))
        connection = await upstream.ask(*ASK)
        assert connection.address == "127.0.0.2"
        upstream.release(connection)
        upstream.close()


@looped
async def test_a_name_that_hangs_keeps_no_other_waiting() -> None:
    """A hundred requests that wait for a lookup delay no request to another worker."""
    hangs = Resolver("127.0.0.1")
    hangs.lets.clear()
    async with worker("127.0.0.1") as (port, seen):
        stuck, _ = named(hangs, port, connect=0.5)
        waiting = [asyncio.create_task(stuck.ask(*ASK)) for _ in range(100)]
        await until(lambda: hangs.asked > 0)
        well, _ = named(Resolver("127.0.0.1"), port)
        async with asyncio.timeout(10):
            for _ in range(20):
                await ask(well)
                well.part()  # so that the next request opens a new connection
        assert len(seen) == 20
        for one in waiting:
            with pytest.raises(Refused, match="could not be reached in time"):
                await one
        assert hangs.asked == 1
        well.close()
    hangs.lets.set()


class worker:  # noqa: N801 - used as a context manager
    """A worker at an address, which records the local address of every connection it gets."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._host, self._port = host, port
        self._seen: list[str] = []
        self._open = 0

    async def __aenter__(self) -> tuple[int, list[str]]:
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        return self._server.sockets[0].getsockname()[1], self._seen

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await until(lambda: not self._open)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._seen.append(writer.get_extra_info("sockname")[0])
        self._open += 1
        with suppress(ConnectionError):
            while await reader.read(65536):
                writer.write(ANSWER)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._open -= 1


def named(resolver: Resolver, port: int, connect: float = 5) -> tuple[Upstream, Addresses]:
    """Return an upstream for the addresses that the name resolves to, and these."""
    known = of(resolver)
    timeouts = TimeoutSettings.model_construct(connect=connect)
    return Upstream("worker", port, tls=None, timeouts=timeouts, addresses=known), known


async def ask(upstream: Upstream) -> None:
    """Send one request, then release the connection."""
    connection = await upstream.ask(*ASK)
    assert await connection.chunk() == b"ok"
    upstream.release(connection)


async def until(true: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after 10 seconds."""
    late = time.monotonic() + 10
    while not true():
        assert time.monotonic() < late
        await asyncio.sleep(0.01)
