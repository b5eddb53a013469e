"""The end of a process that serves."""

import asyncio

import pytest

from router import app as serving
from router.app import RouterServer
from router.settings.model import Settings


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_learned_while_it_is_left(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """`at_rest` stops all changes before a thread saves the learned state."""
    happened: list[str] = []

    async def serve(*_: object) -> None:
        happened.append("served")
        if fails:
            raise LookupError

    async def run() -> None:
        one = RouterServer(Settings.model_validate({"workers": ["http://127.0.0.1:1"]}))
        one.at_rest = lambda: happened.append("at rest")
        monkeypatch.setattr(one.server, "serve", serve)
        await one.run([])

    monkeypatch.setattr(serving, "leave", lambda *_: happened.append("left"))
    if fails:
        with pytest.raises(LookupError):
            asyncio.run(run())
    else:
        asyncio.run(run())
    assert happened == ["served", "at rest", "left"]
