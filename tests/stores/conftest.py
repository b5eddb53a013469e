"""A real Redis, and chunks in it as LMCache's server writes them."""

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from blake3 import blake3
from redis import Redis

from tests.sessions.redis_server import RedisServer

Write = Callable[..., list[str]]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """One server for each test, since some kill it."""
    with RedisServer() as server:
        yield server


def ids(*tokens: int) -> bytes:
    """Return token ids as prompts have them."""
    return array("I", tokens).tobytes()


def named(tokens: Sequence[int], chunk: int) -> list[str]:
    """Name chunks by LMCache's rule, implemented independently."""
    last = blake3(struct.pack(">QI", 0, 0)).digest()
    found = []
    for start in range(0, len(tokens) - chunk + 1, chunk):
        some = tokens[start : start + chunk]
        last = blake3(last + struct.pack(f">{chunk}I", *some)).digest()
        found.append(last.hex())
    return found


@pytest.fixture
def write(redis: RedisServer) -> Write:
    """A function that writes the chunks of a prompt and returns their keys."""

    def written(tokens: Sequence[int], chunk: int, **more: Any) -> list[str]:
        model, rank = more.get("model", "toy"), more.get("rank", "01000100")
        salt = f"@{more['salt']}" if "salt" in more else ""
        keys = [f"{model}@{rank}@0@{name}{salt}" for name in named(tokens, chunk)]
        with Redis(port=redis.port) as client:
            for key in keys:
                client.set(key, bytes(more.get("size", 16)))
        return keys

    return written
