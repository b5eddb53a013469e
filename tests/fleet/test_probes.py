"""Which failed probes count against a worker, and TCP keep-alive on connections to workers."""

import asyncio
import json
import logging
import socket

import pytest

from router.fleet.inquiries import Inquiries, InquiryAnswer, NoAnswer, NotAsked
from router.fleet.probes import Health
from router.fleet.worker import ProbeState, Worker
from router.settings.fleet import HealthSettings
from router.settings.server import TimeoutSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused
from router.upstream.pool import Upstream
from tests.fleet.fleets import fleet

MODELS = b'{"data":[{"id":"m"}]}'


class Asks(Inquiries):
    """Gives the listed answers to health probes in order, and then repeats the last."""

    def __init__(self, *says: NoAnswer | None, models: bytes = MODELS) -> None:
        self._says = list(says)
        self._models = models
        self.seen: list[ProbeState] = []
        """The worker's state at each probe."""

    async def ask(self, worker: Worker, path: str, **_: object) -> InquiryAnswer:
        """Answer a probe of the worker."""
        if path == "/health":
            self.seen.append(worker.state)
            says = self._says.pop(0) if len(self._says) > 1 else self._says[0]
            if says is not None:
                raise says
        return InquiryAnswer(200, self._models)


def probed(asks: Asks, **more: object) -> list[ProbeState]:
    """Probe a worker seven times; return its state after each but the last."""

    async def play() -> list[ProbeState]:
        settings = {"interval": "1ms", "timeout": "1s", **more}
        parsed = HealthSettings.model_validate(settings)
        health = Health(fleet(workers=1, models=()), parsed, asks, lambda *_: None)
        await health.start()
        while len(asks.seen) < 7:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0.001)
        await health.stop()
        return asks.seen[1:7]

    return asyncio.run(play())


def test_the_log_names_a_few_models(caplog: pytest.LogCaptureFixture) -> None:
    """A worker may have any number of adapters, with names of any length."""
    caplog.set_level(logging.INFO, "warmroute")
    names = ["x" * 1000, *(f"a{n}" for n in range(99))]
    models = json.dumps({"data": [{"id": name} for name in names]}).encode()
    probed(Asks(None, models=models))
    (line,) = [one for one in caplog.messages if "is ready" in one]
    assert line.endswith("is ready: a0, a1, a10, a11, a12, a13, a14, a15 and 92 more")
    caplog.clear()
    probed(Asks(None, models=b'{"data":[{"id":"%b"}]}' % (b"x" * 1000)))
    assert f"is ready: {200 * 'x'}" in caplog.text
    assert 201 * "x" not in caplog.text


def test_our_own_lack_says_nothing_of_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """If the router lacks descriptors, the worker's state stays, and one line is logged."""
    caplog.set_level(logging.WARNING, "warmroute")
    lacking = NotAsked("/health: could not be reached: [Errno 24] Too many open files")
    assert set(probed(Asks(None, lacking))) == {ProbeState.READY}
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cannot be probed: /health: could not be reached" in caplog.text


@pytest.mark.parametrize("fall", [1, 2, 4])
def test_anything_else_does(fall: int) -> None:
    """Other failures take the worker down, after as many in a row as the settings say."""
    bad = NoAnswer("/health answered 500")
    states = probed(Asks(None, bad), fall=fall)
    assert states == [ProbeState.READY] * fall + [ProbeState.DOWN] * (6 - fall)
    if fall > 1:
        few = [bad] * (fall - 1)
        assert set(probed(Asks(None, *few, None, *few, None), fall=fall)) == {ProbeState.READY}


class Lacking(Upstream):
    """Connections that cannot be made."""

    def __init__(self, *, ours: bool) -> None:
        super().__init__("127.0.0.1", 1, tls=None, timeouts=TimeoutSettings())
        self._ours = ours

    def control_connections(self) -> Upstream:
        return self

    async def ask(self, head: bytes, body: bytes, *_: object) -> UpstreamConnection:
        del head, body
        raise Refused("could not be reached", ours=self._ours)


@pytest.mark.parametrize(("ours", "kind"), [(True, NotAsked), (False, NoAnswer)])
def test_whose_lack_it_is(ours: bool, kind: type[NoAnswer]) -> None:
    """Missing descriptors are the router's fault, a refused connection is the worker's."""
    worker = Worker("w", "http://w", Lacking(ours=ours))
    with pytest.raises(NoAnswer, match="/health: could not be reached") as raised:
        asyncio.run(Inquiries().ask(worker, "/health", patience=5))
    assert type(raised.value) is kind


def test_the_system_watches_connections_to_workers() -> None:
    """A node that lost power sends nothing: the kernel probes the connection and gives it up."""

    async def play() -> tuple[int, ...]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            lambda: UpstreamConnection(loop, TimeoutSettings()), *listener.getsockname()
        )
        end: socket.socket = transport.get_extra_info("socket")
        found = (
            end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )
        transport.abort()
        await asyncio.sleep(0)
        return found

    with socket.create_server(("127.0.0.1", 0)) as listener:
        alive, idle, unacknowledged = asyncio.run(play())
    assert alive
    assert 0 < idle < 60 < unacknowledged < 60_000
