"""What a router keeps of a controller's answers."""

import asyncio

import pytest

from router import remote_memory
from router.remote_memory import RemoteMemory
from strategies.base import Prompt


def test_what_is_kept_of_long_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their keys, not by their number alone; the last one is always there."""
    monkeypatch.setattr(remote_memory, "KEPT_WORDS", 1000)
    monkeypatch.setattr(remote_memory, "KEPT", 20)
    remote = RemoteMemory("http://127.0.0.1:9", "", 0.5)
    keys = list(range(300))
    prompts = [Prompt("m", 4800, blocks={16: keys}) for _ in range(10)]
    prompts += [Prompt("m", 48000, blocks={16: keys * 10})]
    small = [Prompt("m", 16, blocks={16: [1]}) for _ in range(30)]

    async def play() -> None:
        for prompt in prompts[:-1]:
            await remote.ask(prompt, ["a"])
        await remote.ask(prompts[9], ["a"])
        assert [id(prompt) for prompt in prompts[7:10]] == list(remote._said)
        await remote.ask(prompts[-1], ["a"])
        assert list(remote._said) == [id(prompts[-1])]
        for prompt in small:
            await remote.ask(prompt, ["a"])
        assert [id(prompt) for prompt in small[-20:]] == list(remote._said)
        assert remote._words == 20
        await remote.close()

    asyncio.run(play())
