"""A store that is asked before decisions: in time, or it does not count; loud when useless."""

import asyncio
import logging

import pytest

from router.stores import shared
from router.stores.lookup import StoreDown
from router.stores.shared import SUSPECT, SharedStore
from strategies.base import Prompt

PROMPT = Prompt("toy", 400, ids=bytes(1600))


class Told:
    """A store by hand."""

    def __init__(self, tokens: int = 256) -> None:
        self.tokens = tokens
        self.slow = self.down = False
        self.wrong = ""
        self.asked = self.looked = 0

    @property
    def chunk(self) -> int:
        """As is usual."""
        return 256

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """As it was told."""
        del ids, model, salt
        self.asked += 1
        if self.slow:
            await asyncio.Event().wait()
        if self.down:
            raise StoreDown("it is away")
        return self.tokens

    async def check(self) -> str:
        """As it was told."""
        self.looked += 1
        return self.wrong

    async def close(self) -> None:
        """Nothing."""


class Clock:
    """Seconds, by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_computed_and_did_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else lies there; where some of it came, or it had no time to, all is well."""
    monkeypatch.setattr(shared, "SUSPECT", 8)

    async def run(*, came: bool, waited: float) -> str:
        clock, told = Clock(), Told(0)
        store = SharedStore(told, 5.0, clock)
        for number in range(7):
            await store.ask(Prompt("toy", 400, ids=bytes([number]) * 1600))
            await store.ask(Prompt("toy", 10, ids=bytes(40)))  # too short to be there
            assert store.wrong == ""
        clock.now += waited
        told.tokens = 256 if came else 0
        await store.look()
        return store.wrong

    for came, waited, said in ((False, 6.0, "another chunk size"), (True, 6.0, ""), (False, 1, "")):
        wrong = asyncio.run(run(came=came, waited=waited))
        assert bool(wrong) == bool(said)
        assert said in wrong


def test_an_answer_is_kept_for_its_prompt() -> None:
    """And for no other, be it equal."""

    async def run() -> None:
        store = SharedStore(Told(), 5.0)
        await store.ask(PROMPT)
        assert store.held(PROMPT) == 256
        assert store.held(Prompt("toy", 400, ids=bytes(1600))) == 0
        assert (store.found, store.missed) == (1, 0)

    asyncio.run(run())


@pytest.mark.parametrize(("what", "bound"), [("KEPT", 2), ("KEPT_BYTES", 8)])
def test_answers_that_are_kept_are_few(
    monkeypatch: pytest.MonkeyPatch, what: str, bound: int
) -> None:
    """And short, all together; the oldest go first, however often one is asked about."""
    monkeypatch.setattr(shared, what, bound)

    async def run() -> None:
        store = SharedStore(Told(), 5.0)
        prompts = [Prompt("toy", number, ids=bytes(4)) for number in range(3)]
        for prompt in (*prompts, prompts[2], prompts[2]):
            await store.ask(prompt)
        assert [store.held(prompt) for prompt in prompts] == [0, 256, 256]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["slow", "down"])
def test_a_store_in_trouble_is_left_alone_for_a_while(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised; it is said once, and it counts again when it answers."""
    told, clock = Told(), Clock()

    async def run() -> None:
        store = SharedStore(told, 0.001, clock)
        setattr(told, how, True)
        await store.ask(PROMPT)
        await store.ask(PROMPT)
        assert (told.asked, store.slow + store.failed, store.held(PROMPT)) == (1, 1, 0)
        assert store.down
        setattr(told, how, False)
        clock.now += 1.5
        await store.ask(PROMPT)
        assert (store.held(PROMPT), store.down) == (256, "")

    with caplog.at_level(logging.WARNING, "warmroute.tiers"):
        asyncio.run(run())
    assert ["does not count" in caplog.messages[0], caplog.messages[1:]] == [
        True,
        ["L2 answers again"],
    ]


def test_a_store_without_a_hit_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """After a number of questions in vain; what is wrong is said once, until something is found."""
    told = Told(0)
    told.wrong = "it holds chunks of another size"

    async def run() -> None:
        store = SharedStore(told, 5.0)
        for _ in range(2 * SUSPECT):
            await store.ask(PROMPT)
            await asyncio.sleep(0)
        assert told.looked == 2
        assert store.wrong == told.wrong
        told.tokens = 64
        await store.ask(PROMPT)
        assert store.wrong == ""
        await store.close()

    with caplog.at_level(logging.WARNING, "warmroute.tiers"):
        asyncio.run(run())
    assert caplog.messages == [f"nothing will be found on L2: {told.wrong}"]


def test_prompts_without_ids_are_not_asked_about() -> None:
    """There is nothing to ask."""
    told = Told()
    asyncio.run(SharedStore(told, 5.0).ask(Prompt("toy", 400)))
    assert told.asked == 0
