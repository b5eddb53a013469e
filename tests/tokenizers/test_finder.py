"""Searches for tokenizers, and requests for a new search while one is running."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from router.tokenizers.loader import TokenizerCache
from router.tokenizers.sources import SourceKind, TokenizerFinder, TokenizerSearch
from router.tokenizers.tokenizer import LoadedTokenizer
from tests.tokenizers.models import OTHER, make_model


class Held(TokenizerCache):
    """Blocks each call to `open`, after reading the folder, until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def open(self, *args: Any, **options: Any) -> LoadedTokenizer:
        """Read the folder, then block."""
        volume = super().open(*args, **options)
        self.begun.release()
        assert self.go_on.acquire(timeout=20)
        return volume


@pytest.mark.parametrize("fresh", [False, True])
def test_a_change_during_a_search(tmp_path: Path, *, fresh: bool) -> None:
    """What it has read may be out of date, so it is repeated exactly once."""
    folder = make_model(tmp_path / "m")
    wanted = TokenizerSearch(SourceKind.FOLDER, str(folder))
    shelf, ended = Held(), asyncio.Event()

    async def scene() -> None:
        finding = TokenizerFinder(ended.set, shelf)
        finding.look(wanted)
        await asyncio.to_thread(shelf.begun.acquire)
        make_model(folder, OTHER)
        for _ in range(3):
            finding.again(wanted, fresh=fresh)
        for _ in range(2):
            assert finding.busy
            ended.clear()
            shelf.go_on.release()
            await ended.wait()
        assert not finding.busy
        found = finding.look(wanted)
        assert isinstance(found, LoadedTokenizer)
        assert found is TokenizerCache.open(shelf, folder)

    asyncio.run(scene())


def test_no_search_after_its_end(tmp_path: Path) -> None:
    """A search that is no longer wanted is not repeated."""
    wanted = TokenizerSearch(SourceKind.FOLDER, str(make_model(tmp_path / "m")))
    shelf = Held()

    async def scene() -> None:
        finding = TokenizerFinder(lambda: None, shelf)
        finding.look(wanted)
        await asyncio.to_thread(shelf.begun.acquire)
        finding.again(wanted)
        shelf.go_on.release()
        await finding.close()
        assert not finding.busy
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scene())
