"""A Redis for tests of sessions."""

from collections.abc import Iterator

import pytest

from tests.sessions.redis_server import RedisServer


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """One server for all tests of a module, which use different names."""
    with RedisServer() as server:
        yield server
