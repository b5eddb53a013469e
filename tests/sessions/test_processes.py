"""Several processes on one port, which share their sessions in Redis."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.commands import run, started
from tests.sessions.redis_server import RedisServer
from tests.support import MakeStub

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


def settings(folder: Path, **more: Any) -> Path:
    """Write a settings file."""
    file = folder / "settings.yaml"
    told = {"listen": "127.0.0.1:0", "strategy": "session", **more}
    file.write_text(json.dumps(told))
    return file


def test_in_memory_they_are_refused(tmp_path: Path) -> None:
    """Sessions in memory would be known to one process only."""
    file = settings(tmp_path, workers=["http://127.0.0.1:9"])
    done = run("serve", "--config", file, "--processes", 2)
    assert done.returncode == 1
    assert "session.redis" in done.stderr


def test_through_redis_any_of_them_knows(
    tmp_path: Path, stub: MakeStub, redis: RedisServer
) -> None:
    """A session keeps its worker, whichever process takes the connection."""
    workers = [stub().url for _ in range(3)]
    session = {"redis": {"url": redis.url, "timeout": "5s"}}
    file = settings(tmp_path, workers=workers, session=session)
    with started(tmp_path, "serve", "--config", file, "--processes", 2) as running:
        url = running.url()
        where: dict[str, set[str]] = {}
        for turn in range(6):
            for key in "abcdef":
                named = {"x-session-id": key}
                reply = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=named)
                assert reply.status_code == 200
                assert reply.headers["x-warmroute-session"].startswith("kept;") or turn == 0
                where.setdefault(key, set()).add(reply.headers["x-warmroute-worker"])
        assert all(len(workers) == 1 for workers in where.values())
        assert {one["id"] for one in httpx.get(f"{url}/sessions").json()} == set(where)
        gone = httpx.delete(f"{url}/sessions/a")
        assert gone.status_code == 204
