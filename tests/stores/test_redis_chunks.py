"""LMCache's chunks in a real Redis: lookups, their bounds, and reports of what does not match."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis

from router.kv.lmcache.names import naming
from router.kv.lmcache.redis import RedisChunks
from router.kv.lmcache.shared_store import LookupFailed
from router.settings.fleet import LmcacheSettings
from tests.sessions.redis_server import RedisServer
from tests.stores.conftest import Write, ids

CHUNK = 64
PROMPT = list(range(1000, 1800))


def asked(
    redis: RedisServer,
    work: Callable[[RedisChunks], Coroutine[Any, Any, Any]],
    bytes_per_token: int | None = None,
    **more: Any,
) -> Any:
    """Run something with the adapter, then close it."""
    settings = LmcacheSettings(redis=redis.url, **{"chunk": CHUNK, **more})

    async def run() -> Any:
        store = RedisChunks(settings, naming(settings), bytes_per_token)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def held(redis: RedisServer, tokens: list[int], salt: str = "", **more: Any) -> int:
    """Return how many tokens are found."""
    return int(asked(redis, lambda store: store.held(ids(*tokens), "toy", salt), **more))


def check(redis: RedisServer, asked_for: str = "", **more: Any) -> str:
    """Return what is wrong, after a lookup for a model."""

    async def checked(store: RedisChunks) -> str:
        if asked_for:
            await store.held(ids(*PROMPT), asked_for, "")
        return await store.check()

    return str(asked(redis, checked, **more))


def test_what_lmcache_wrote_is_found(redis: RedisServer, write: Write) -> None:
    """Whole chunks are found from the first on; chunks with a salt only with that salt."""
    keys = write(PROMPT, CHUNK)
    assert held(redis, PROMPT) == 768
    assert held(redis, PROMPT[:200]) == 192
    assert held(redis, [1, *PROMPT]) == 0
    assert held(redis, PROMPT, salt="tenant") == 0
    write(PROMPT[:130], CHUNK, salt="tenant")
    assert held(redis, PROMPT, salt="tenant") == 128
    assert held(redis, PROMPT, salt="other") == 0
    for odd in ("a@b", "a/b", "a\\b", "a\0b", "\ud800", "s" * 129):
        assert held(redis, PROMPT, salt=odd) == 0
    with Redis(port=redis.port) as client:
        client.delete(keys[3])
    assert held(redis, PROMPT) == 192


def test_long_prompts_are_asked_about_in_batches(redis: RedisServer, write: Write) -> None:
    """Lookups stop at the first batch with a gap, and are no larger than needed."""
    prompt = list(range(16 * 522))
    keys = write(prompt, 16)
    assert held(redis, prompt, chunk=16) == len(prompt)
    for place, asked in ((255, 31 * 16), (0, 16)):
        with Redis(port=redis.port) as client:
            client.delete(keys[place])
            client.config_resetstat()
            assert held(redis, prompt, chunk=16) == 16 * place
            assert client.info("commandstats")["cmdstat_exists"]["calls"] == asked


@pytest.mark.parametrize("gpus", [2, pytest.param(255, marks=pytest.mark.long)])
def test_a_chunk_is_there_when_all_gpus_parts_are(
    redis: RedisServer, write: Write, gpus: int
) -> None:
    """LMCache does not load a chunk that lacks a part; each GPU's part has its own key."""
    keys = [
        write(PROMPT, CHUNK, rank=f"{gpus:02x}{gpu:02x}{gpus:02x}{gpu:02x}") for gpu in range(gpus)
    ]
    assert held(redis, PROMPT, gpus=gpus) == 768
    with Redis(port=redis.port) as client:
        client.delete(keys[-1][5])
        assert held(redis, PROMPT, gpus=gpus) == 5 * CHUNK
        client.delete(*keys[1])
    assert held(redis, PROMPT, gpus=gpus) == 0


def test_what_was_written_is_found_whatever_lies_before_it(
    redis: RedisServer, write: Write
) -> None:
    """Only the last full chunk is looked up; without a name the result is None."""
    keys = write(PROMPT, CHUNK)
    with Redis(port=redis.port) as client:
        client.delete(keys[0], keys[3])

    def wrote(tokens: int, **more: str) -> bool | None:
        salt = more.get("salt", "")
        found: bool | None = asked(
            redis, lambda store: store.wrote(ids(*PROMPT[:tokens]), "toy", salt)
        )
        return found

    assert [wrote(CHUNK * number) for number in range(1, 6)] == [False, True, True, False, True]
    assert wrote(CHUNK - 1) is None
    assert wrote(CHUNK, salt="a@b") is None


def test_other_gpus_of_our_model_are_said(redis: RedisServer, write: Write) -> None:
    """If the fleet has other numbers of GPUs than settings say, nothing would be found."""
    write(PROMPT, CHUNK, rank="08000800")
    for more in ({"model": "toy"}, {}):
        said = check(redis, asked_for="toy", **more)
        assert "holds chunks of toy with 8 GPUs, named by the server, and settings say toy" in said
        assert "with 1 GPUs, named by the server" in said
    assert held(redis, PROMPT, gpus=8) == 0
    assert check(redis, model="toy", gpus=8) == ""


@pytest.mark.parametrize("ours", [False, True])
def test_what_others_keep_there_says_nothing_of_ours(
    redis: RedisServer, write: Write, ours: bool
) -> None:
    """Another model in the same Redis, and keys that are no chunks, are not reported."""
    assert check(redis) == "", "it is empty"
    write(PROMPT, CHUNK, model="other", rank="08000800")
    write(PROMPT, CHUNK, model="large", size=CHUNK * 4096)
    with Redis(port=redis.port) as client:
        client.set("old@1@0@1f9ab@bfloat16", b"kv")
        client.set("warmroute:{pool}:used", b"1")
        if ours:
            write(PROMPT, CHUNK, size=CHUNK * 512)
    for more in ({"model": "toy"}, {}):
        assert check(redis, bytes_per_token=512, asked_for="toy", **more) == ""

    async def compared(store: RedisChunks) -> str:
        await store.check()
        return store.compare("toy")

    said = asked(redis, compared)
    assert f"see that they write to {redis.url}, which holds chunks of " in said
    assert "(chunk 64, model toy, gpus 1): compare them with the engines' own" in said


def test_chunks_of_another_size_are_said(redis: RedisServer, write: Write) -> None:
    """This needs the bytes per token."""
    write(PROMPT, 128, size=128 * 512)
    assert held(redis, PROMPT) == 0
    said = check(redis, bytes_per_token=512, model="toy")
    assert "which are 128 tokens at 512 bytes; tiers.l2.lmcache.chunk is 64" in said
    assert check(redis, bytes_per_token=512, chunk=128, model="toy") == ""
    assert check(redis, model="toy") == ""


def why(url: str, secret: str | None = None) -> str:
    """Return why Redis cannot be asked, with `secret` as the password setting."""
    settings = LmcacheSettings.model_validate({"redis": url, "password": secret})

    async def run() -> None:
        store = RedisChunks(settings, naming(settings), None)
        try:
            await store.check()
        finally:
            await store.close()

    with pytest.raises(LookupFailed) as raised:
        asyncio.run(run())
    return str(raised.value)


def test_a_redis_that_is_gone_is_down(redis: RedisServer) -> None:
    """It raises LookupFailed with the reason."""
    redis.kill()
    for work in (lambda s: s.check(), lambda s: s.held(ids(*PROMPT), "toy", "")):
        with pytest.raises(
            LookupFailed, match=f"no Redis answers at {redis.url}: Connection refused"
        ):
            asked(redis, work)
    assert why("redis://nobody.invalid") == (
        "no Redis answers at redis://nobody.invalid: Error -2 connecting to nobody.invalid:6379."
        " Name or service not known."
    )


def test_a_redis_that_does_not_let_us_in(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the setting to look at."""
    with Redis(port=redis.port) as client:
        client.config_set("requirepass", "right")
        assert why(redis.url) == (
            f"the Redis at {redis.url} wants a password: give tiers.l2.lmcache.password"
        )
        monkeypatch.setenv("STORE_PASSWORD", "wrong")
        said = why(redis.url, "${STORE_PASSWORD}")
        assert said == (
            f"the Redis at {redis.url} does not take the password of tiers.l2.lmcache.password"
        )
        monkeypatch.setenv("STORE_PASSWORD", "right")
        said = why(f"{redis.url}/99", "${STORE_PASSWORD}")
        assert said == f"the Redis at {redis.url}/99 refuses to answer: DB index is out of range"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no Redis, or breaks off: Protocol Error"),
        (b"", "is no Redis, or breaks off: Connection closed by server."),
    ],
)
def test_what_is_no_redis(answer: bytes, said: str) -> None:
    """Something else listens there."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

        def speak() -> None:
            client, _ = server.accept()
            opened.callback(client.close)
            client.recv(1000)
            client.sendall(answer)
            client.close()

        thread = threading.Thread(target=speak)
        thread.start()
        assert said in why(f"redis://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
