"""A Redis for tests of sessions, and the stores that are tested alike."""

from collections.abc import Iterator

import pytest

from tests.sessions.playing import Play, playing
from tests.sessions.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """One server for all tests of a module, which use different names."""
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def play(request: pytest.FixtureRequest) -> Play:
    """Run a test in an event loop; it gets a function that makes stores with shared sessions."""
    return playing(request.getfixturevalue("redis") if request.param == "redis" else None)
