"""The router's own memory under a thousand slow readers: a process of its own, measured."""

import json
import re
import selectors
import signal
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.backpressure.fountain import PATH, Fountain, Reader
from tests.commands import Running, started
from tests.support import MakeStub, until

READERS = 1000
#: Bytes that each reader takes in one go, and how often it does so.
SIP, SIPS = 16 << 10, 12
#: Most that one reader may cost, and what the memory of a process may vary by.
EACH, NOISE = 512 << 10, 24 << 20


def resident(running: Running) -> int:
    """Bytes of memory that the process holds."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def take(readers: list[Reader], each: int) -> None:
    """Everyone reads so much; whoever has nothing to read is waited for."""
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


def test_a_thousand_slow_readers(stub: MakeStub, tmp_path: Path, stack: ExitStack) -> None:
    """It grows with their number and not with what passes; cut off, they leave nothing behind."""
    worker, quick = Fountain(1 << 30), stub(model="quick")
    stack.callback(worker.stop)
    config = tmp_path / "config.yaml"
    settings = {
        "listen": "127.0.0.1:0",
        "workers": [worker.url, quick.url],
        "clients": {"write": "5s"},
        "health": {"interval": "1h"},
    }
    config.write_text(json.dumps(settings))
    running = stack.enter_context(started(tmp_path, "serve", "--config", config))
    http = stack.enter_context(httpx.Client(base_url=running.url(), timeout=30))

    def serves() -> None:
        reply = http.post(PATH, json={"model": "quick", "messages": []})
        assert reply.status_code == 200

    serves()
    alone = resident(running)
    readers = []
    for count in range(READERS):
        readers.append(stack.enter_context(Reader(running.port())))
        until(lambda: len(worker.pours) > count - 50)  # noqa: B023 - no more knock at a time
    for _ in range(3):
        take(readers, SIP)
    warm = resident(running)
    assert warm < alone + READERS * EACH
    for _ in range(SIPS):
        take(readers, SIP)
        serves()
    assert resident(running) < warm + NOISE
    assert worker.open == READERS
    until(lambda: worker.open == 0, 30)  # for longer than `clients.write` nothing was read
    text = http.get("/metrics").text
    assert set(re.findall(r"\nwarmroute_in_flight\{.*\} (.*)", text)) == {"0.0"}
    assert f'status="499"}} {READERS}.0' in text
    assert "warmroute_worker_errors_total{" not in text
    assert resident(running) < warm + NOISE
    serves()
    assert running.end(signal.SIGTERM) == 0
