"""Where to look for a tokenizer, what identifies a model in keys, and the search."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from router.rendering.tokens import LoadedTokenizer
from router.tokenizers.loader import TokenizerCache
from router.tokenizers.sources import (
    MAX_CONCURRENT_SEARCHES,
    SourceKind,
    TokenizerFinder,
    TokenizerSearch,
    fingerprint,
    identity,
    is_adapter,
    origin,
)
from tests.tokenizers.engine import card
from tests.tokenizers.models import OTHER, make_model

LLAMA = {one["id"]: one for one in (card("llama", "/m/llama"), card("alias", "/m/llama"))}
TUNED = card("tuned", "/lora/a", "llama")


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [
        ("bytes", SourceKind.TEXT, ""),
        ("worker", SourceKind.WORKER, "/m/llama"),
        ("/m/other", SourceKind.FOLDER, "/m/other"),
        ("org/name", SourceKind.HUB, "org/name"),
        ("auto", SourceKind.FOLDER, "/m/llama"),
        ("nothing", SourceKind.TEXT, ""),
    ],
)
def test_what_settings_say(source: str, kind: SourceKind, name: str) -> None:
    """The settings take precedence over what a worker reports."""
    found = origin(source, "llama", LLAMA)
    assert (found.kind, found.name, found.told) == (kind, name, source not in {"auto", "bytes"})


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        ("/m/llama", SourceKind.FOLDER),
        ("org/name", SourceKind.HUB),
        ("llama", SourceKind.TEXT),
        ("../../etc/x", SourceKind.TEXT),
        ("s3://bucket/llama", SourceKind.TEXT),
        (None, SourceKind.TEXT),
        (5, SourceKind.TEXT),
    ],
)
def test_what_a_worker_tells(root: Any, kind: SourceKind) -> None:
    """Absolute paths and hub ids are used; anything else is ignored."""
    assert origin("auto", "m", {"m": {"id": "m", "root": root}}).kind is kind


@pytest.mark.parametrize(
    ("parent", "more", "name"),
    [
        ("llama", {}, "/m/llama"),
        ("meta/any-name", {}, "/m/llama"),  # the only base there is
        ("meta/any-name", {"other": card("other", "/m/other")}, ""),
        ("tuned", {}, "/m/llama"),  # its own
    ],
)
def test_adapters_have_their_base_models(parent: str, more: dict[str, Any], name: str) -> None:
    """Never a tokenizer from the adapter's own folder."""
    models = {**LLAMA, **more, "tuned": {**TUNED, "parent": parent}}
    assert origin("auto", "tuned", models).name == name


def test_identities() -> None:
    """One identity for all names of a base model, and one for each name of an adapter."""
    models = {**LLAMA, "tuned": TUNED, "again": card("again", "/lora/a", "llama")}
    models |= {"moved": card("tuned", "/lora/b", "llama"), "plain": {"id": "plain"}}
    assert identity("llama", models) == identity("alias", models) == "/m/llama"
    others = ("tuned", "again", "plain", "llama")
    assert len({identity(name, models) for name in others}) == len(others)
    assert identity("plain", models) == identity("plain", {}) == "plain"
    assert identity("tuned", models) != identity("tuned", {"tuned": models["moved"]})
    assert [is_adapter(name, models) for name in ("llama", "tuned")] == [False, True]


def test_fingerprints() -> None:
    """The time in an engine's answer does not count as a change of model."""
    now, later = ({"llama": {**LLAMA["llama"], "created": time}} for time in (1, 2))
    assert fingerprint(now) == fingerprint(later)
    assert fingerprint(now) != fingerprint({"llama": card("llama", "/m/llama-2")})


class Held(TokenizerCache):
    """Blocks each call to `open`, after reading the folder, until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def open(self, *args: Any, **options: Any) -> LoadedTokenizer:
        """Read the folder, then block."""
        tokenizer = super().open(*args, **options)
        self.begun.release()
        assert self.go_on.acquire(timeout=20)
        return tokenizer


@pytest.mark.parametrize("fresh", [False, True])
def test_a_change_during_a_search(tmp_path: Path, *, fresh: bool) -> None:
    """What it has read may be out of date, so it is repeated exactly once."""
    folder = make_model(tmp_path / "m")
    wanted = TokenizerSearch(SourceKind.FOLDER, str(folder))
    cache, ended = Held(), asyncio.Event()

    async def scene() -> None:
        finder = TokenizerFinder(ended.set, cache)
        finder.look(wanted)
        await asyncio.to_thread(cache.begun.acquire)
        make_model(folder, OTHER)
        for _ in range(3):
            finder.again(wanted, fresh=fresh)
        for _ in range(2):
            assert finder.busy
            ended.clear()
            cache.go_on.release()
            await ended.wait()
        assert not finder.busy
        found = finder.look(wanted)
        assert isinstance(found, LoadedTokenizer)
        assert found is TokenizerCache.open(cache, folder)

    asyncio.run(scene())


def test_no_more_searches_at_once(tmp_path: Path) -> None:
    """Further ones wait for their turn. One that is no longer wanted is not repeated."""
    count = MAX_CONCURRENT_SEARCHES + 1
    folders = [make_model(tmp_path / str(place)) for place in range(count)]
    wanted = [TokenizerSearch(SourceKind.FOLDER, str(folder)) for folder in folders]
    cache = Held()

    async def scene() -> None:
        finder = TokenizerFinder(lambda: None, cache)
        for one in wanted:
            finder.look(one)
        for _ in range(MAX_CONCURRENT_SEARCHES):
            assert await asyncio.to_thread(cache.begun.acquire, timeout=20)
        assert not await asyncio.to_thread(cache.begun.acquire, timeout=0.1)
        cache.go_on.release()
        assert await asyncio.to_thread(cache.begun.acquire, timeout=20)
        finder.again(wanted[-1])
        cache.go_on.release(count)
        await finder.close()
        assert not finder.busy
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scene())
