"""The router's memory with a thousand slow readers, measured in a process of its own."""

import json
import re
import selectors
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.backpressure.fountain import PATH, Fountain, Reader
from tests.commands import Running, started
from tests.support import MakeStub, until

READERS = 1000
#: Bytes that each reader takes per round, rounds until all buffers have been used, rounds after.
SIP, WARM_UP, ROUNDS = 64 << 10, 5, 4
#: Most bytes that one reader may cost, and most by which memory may grow in the rounds after the
#: warm-up, far less than the bytes that pass in them.
EACH, NOISE = 1 << 20, 96 << 20


def resident(running: Running) -> int:
    """The process's resident memory in bytes."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def take(readers: list[Reader], each: int) -> None:
    """Have every reader read `each` bytes, waiting for those that have nothing to read yet."""
    left = dict.fromkeys(readers, each)
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        while left:
            ready = selector.select(20)
            assert ready, "nobody gets any more"
            for key, _ in ready:
                reader = key.data
                data = reader.socket.recv(left[reader])
                assert data, "one was cut off"
                left[reader] -= len(data)
                if not left[reader]:
                    del left[reader]
                    selector.unregister(reader.socket)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_thousand_slow_readers(stub: MakeStub, tmp_path: Path, stack: ExitStack) -> None:
    """Memory grows with the number of readers, not with bytes relayed; nothing stays in flight."""
    worker, quick = Fountain(1 << 30), stub(model="quick")
    stack.callback(worker.stop)
    config = tmp_path / "config.yaml"
    config.write_text(
        json.dumps(
            {
                "listen": "127.0.0.1:0",
                "workers": [worker.url, quick.url],
                "clients": {"write": "10m"},
                "shutdown": {"delay": "0s"},
                "health": {"interval": "1h", "timeout": "10s"},
            }
        )
    )
    running = stack.enter_context(started(tmp_path, "serve", "--config", config))
    http = stack.enter_context(httpx.Client(base_url=running.url(), timeout=30))

    def serves() -> None:
        reply = http.post(PATH, json={"model": "quick", "messages": []})
        assert reply.status_code == 200

    serves()
    alone = resident(running)
    with ExitStack() as readers_open:
        readers = []
        for count in range(READERS):
            readers.append(readers_open.enter_context(Reader(running.port())))
            until(lambda: len(worker.pours) > count - 50)  # noqa: B023 - no more at once
        for _ in range(WARM_UP):
            take(readers, SIP)
        warm = resident(running)
        assert warm < alone + READERS * EACH
        for _ in range(ROUNDS):
            take(readers, SIP)
            serves()
        assert resident(running) < warm + NOISE
        assert worker.open == READERS
    until(lambda: worker.open == 0, 30)
    until(lambda: series(http, "in_flight") == {"0.0"})
    assert series(http, "requests_total", 'status="499"') == {"0.0", f"{READERS}.0"}
    assert series(http, "worker_errors_total") == set()
    serves()
    assert running.end(signal.SIGTERM) == 0


def series(http: httpx.Client, name: str, label: str = "") -> set[str]:
    """The values of all series with that name and label."""
    text = http.get("/metrics").text
    return set(re.findall(rf"\nwarmroute_{name}\{{.*{label}.*\}} (.*)", text))
