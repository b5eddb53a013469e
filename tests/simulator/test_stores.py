"""Stores that workers share: all kinds fulfil the same contract."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256

import pytest

from simulator.kv.stores import BlockStore, MemoryBlockStore, RedisBlockStore
from tests.sessions.redis_server import RedisServer
from tests.support import until

Make = Callable[[int], BlockStore[bytes]]
KEYS = [sha256(bytes([number])).digest() for number in range(8)]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """One Redis server for all tests of this module."""
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["in process", "redis"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Create empty stores of a given number of blocks."""
    with ExitStack() as stack:

        def made(blocks: int) -> BlockStore[bytes]:
            if request.param == "in process":
                return MemoryBlockStore(blocks)
            server = request.getfixturevalue("redis")
            store = RedisBlockStore(server.url, blocks, stem=f"{request.node.name} {blocks}:")
            stack.callback(store.close)
            return store

        yield made


def test_what_was_written_is_found(make: Make) -> None:
    """A lookup counts blocks from the first on, up to the first gap."""
    store = make(10)
    assert store.held(KEYS) == 0
    assert store.write(KEYS[:3]) == [True, True, True]
    assert store.write(KEYS[4:6]) == [True, True]
    assert store.held(KEYS) == 3
    assert store.held(KEYS[4:]) == 2
    assert store.held([]) == 0


def test_what_was_used_last_stays(make: Make) -> None:
    """Looking a block up counts as use, and so does writing it again."""
    store = make(3)
    store.write(KEYS[:3])
    assert store.held(KEYS[:1]) == 1
    store.write(KEYS[1:2])
    store.write(KEYS[3:4])
    assert [store.held([key]) for key in KEYS[:4]] == [1, 1, 0, 1]


def test_two_workers_share_what_is_in_redis(redis: RedisServer) -> None:
    """Stores with the same key stem share their blocks; others do not see them."""
    one, other, else_ = (RedisBlockStore(redis.url, 10, stem=stem) for stem in ("s:", "s:", "t:"))
    one.write(KEYS)
    assert (other.held(KEYS), else_.held(KEYS)) == (8, 0)
    for store in (one, other, else_):
        store.close()


def test_without_redis_nothing_is_found_and_nothing_fails() -> None:
    """Until Redis is back, lookups find nothing; `check` raises ConnectionError."""
    with RedisServer() as server:
        store = RedisBlockStore(server.url, 10)
        store.write(KEYS)
        server.kill()
        assert (store.held(KEYS), store.write(KEYS[:2]), store.failures) == (0, [False, False], 1)
        with pytest.raises(ConnectionError, match="no Redis answers"):
            store.check()
        server.start()
        until(lambda: store.write(KEYS[:2]) == [True, True])
        store.close()


def test_no_room_is_no_store(make: Make) -> None:
    """A store of zero blocks raises ValueError."""
    with pytest.raises(ValueError, match="at least one block"):
        make(0)
