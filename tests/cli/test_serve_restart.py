"""Restarting a router: what it knew of caches is restored, or it says that it starts cold."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.commands import Running, Serve
from tests.sessions.redis_server import RedisServer
from tests.sessions.test_two_routers import invoke, opened

SOON = {"delay": "0s", "drain": "5s"}
#: Prompts that share no prefix.
PROMPTS = [f"{number} secret " * 300 for number in range(24)]


@pytest.fixture(scope="module")
def simulated() -> Iterator[FleetThread]:
    """Workers that outlive the routers."""
    with FleetThread(FleetSettings(workers=3, profile="toy", models=("toy",))) as fleet:
        yield fleet


def asked(running: Running) -> dict[str, tuple[str, str]]:
    """Send every prompt once; return the worker and the reason of each."""
    found = {}
    for prompt in PROMPTS:
        chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
        answer = httpx.post(f"{running.url()}/v1/chat/completions", json=chat, timeout=20)
        assert answer.status_code == 200, answer.text
        reason = answer.headers["x-warmroute-decision"].partition(";")[0]
        found[prompt] = answer.headers["x-warmroute-worker"], reason
    return found


def test_prefixes_keep_their_workers(serve: Serve, simulated: FleetThread, tmp_path: Path) -> None:
    """Prefixes survive in a file that is private, has no text, and is removed once it is read."""
    folder = tmp_path / "state"
    folder.mkdir()
    settings = {**SOON, "state": str(folder)}
    before = serve(*simulated.urls, shutdown=settings)
    first = asked(before)
    assert "starts cold: nothing was left" in before.err.read_text()
    assert before.end(signal.SIGTERM) == 0
    (file,) = folder.iterdir()
    assert file.name == "default.1.prefixes"
    assert file.stat().st_mode & 0o777 == 0o600
    left = file.read_bytes()
    assert all(httpx.URL(url).netloc in left for url in simulated.urls), "it is not compressed"
    assert b"secret" not in left
    after = serve(*simulated.urls, shutdown=settings)
    again = asked(after)
    assert "blocks of prefixes that were left for it" in after.err.read_text()
    assert not list(folder.iterdir())
    stayed = sum(again[prompt][0] == first[prompt][0] for prompt in PROMPTS)
    assert stayed >= 0.95 * len(PROMPTS)
    assert {reason for _, reason in again.values()} == {"prefix"}


def test_each_process_has_a_file(serve: Serve, simulated: FleetThread, tmp_path: Path) -> None:
    """The file's name has the number of the process."""
    (tmp_path / "state").mkdir()
    settings = {**SOON, "state": str(tmp_path / "state")}
    running = serve(*simulated.urls, args=("--processes", 2), shutdown=settings)
    asked(running)
    assert running.end(signal.SIGTERM) == 0
    names = {path.name for path in (tmp_path / "state").iterdir()}
    assert names == {"default.1.prefixes", "default.2.prefixes"}


def test_sessions_are_where_they_were(serve: Serve, simulated: FleetThread) -> None:
    """Sessions are in Redis, so they survive even if the router was killed."""
    with RedisServer() as redis:
        settings: dict[str, Any] = {
            "strategy": "session",
            "session": {"redis": {"url": redis.url, "timeout": "5s"}},
            "shutdown": SOON,
        }
        before = serve(*simulated.urls, **settings)
        sessions = dict.fromkeys((opened(before.url()) for _ in range(6)), "")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        for name in sessions:
            sessions[name] = invoke(before.url(), body, name).headers["x-warmroute-worker"]
        before.process.kill()
        before.process.wait(20)
        after = serve(*simulated.urls, **settings)
        for name, worker in sessions.items():
            answer = invoke(after.url(), body, name)
            assert (answer.status_code, answer.headers["x-warmroute-worker"]) == (200, worker)
