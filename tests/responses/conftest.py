"""Workers that keep responses, and a Redis."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.responses.engine import Engine
from tests.sessions.redis_server import RedisServer

MakeEngines = Callable[[int], list[Engine]]


@pytest.fixture
def engines(stack: ExitStack) -> MakeEngines:
    """Start so many workers."""

    def make(count: int) -> list[Engine]:
        made = [Engine() for _ in range(count)]
        for one in made:
            one.start()
            stack.callback(one.stop)
        return made

    return make


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """One server for all tests of a module, whose responses have different ids."""
    with RedisServer() as server:
        yield server
