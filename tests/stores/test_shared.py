"""A shared store, asked before decisions: within a deadline, and with warnings if useless."""

import asyncio
import logging
from collections import deque

import pytest

from router.kv.lmcache.shared_store import LookupFailed, SharedStore
from strategies.api import Prompt

PROMPT = Prompt("toy", 400, ids=bytes(1600))
#: Seconds after which what was computed must be stored, and for which it certainly stays.
STORED_S, STAYS_S = 5.0, 60.0


class Told:
    """A store that answers as the test sets it."""

    def __init__(self, tokens: int = 256) -> None:
        self.tokens = tokens
        self.slow = self.down = False
        self.wrong = ""
        self.asked = self.looked = 0
        self.writes: bool | None = True
        """Whether what is computed gets stored; None if that cannot be looked up."""
        self.wrote_ids: list[bytes] = []

    @property
    def chunk(self) -> int:
        """Return the usual chunk size."""
        return 256

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """Return `tokens`, raise LookupFailed, or never answer."""
        del ids, model, salt
        self.asked += 1
        if self.slow:
            await asyncio.Event().wait()
        if self.down:
            raise LookupFailed("it is away")
        return self.tokens

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """Return `writes`, but False for all models but `toy`."""
        del salt
        self.wrote_ids.append(ids)
        return None if self.writes is None else self.writes and model == "toy"

    def compare(self, model: str) -> str:
        """Name the model."""
        return f"by the names of {model}"

    async def check(self) -> str:
        """Return `wrong`."""
        self.looked += 1
        return self.wrong

    async def close(self) -> None:
        """Do nothing."""


class Losing(Told):
    """A store that keeps the first chunk of every prompt asked about, until it is emptied."""

    def __init__(self) -> None:
        super().__init__(0)
        self.kept: set[bytes] = set()

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """Store the first chunk, and find nothing."""
        self.kept.add(ids[: 4 * self.chunk])
        return await super().held(ids, model, salt)

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """Return whether the chunk was not lost since."""
        await super().wrote(ids, model, salt)
        return ids in self.kept


class Clock:
    """A clock that the test sets, in seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def prompt_of(number: int, tokens: int = 400, model: str = "toy") -> Prompt:
    """Build a prompt that shares nothing with the others."""
    return Prompt(model, tokens, ids=number.to_bytes(4, "little") * tokens)


async def work(
    store: SharedStore, clock: Clock, rate: float, seconds: float, model: str = "toy"
) -> None:
    """Send new prompts at a rate, all of which are computed."""
    for number in range(int(seconds * rate)):
        clock.now += 1 / rate
        prompt = prompt_of(number, model=model)
        await store.ask(prompt)
        store.computed(prompt, 0)
        await asyncio.sleep(0)  # the checks run meanwhile
        await asyncio.sleep(0)


@pytest.mark.parametrize("rate", [0.1, pytest.param(20.0, marks=pytest.mark.long)])
def test_what_is_computed_and_does_not_come_is_said_under_any_load(
    rate: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing chunks are counted, and logged every few minutes; none are if they arrive in time."""

    async def run(*, writes: bool | None) -> SharedStore:
        clock, told = Clock(), Told(0)
        store, told.writes = SharedStore(told, 5.0, clock), writes
        await work(store, clock, rate, 4 / rate)
        assert not told.wrote_ids or 4 / rate > STORED_S
        assert store.wrong == ""
        await work(store, clock, rate, 1200)
        await store.close()
        return store

    with caplog.at_level(logging.WARNING, "warmroute.tiers"):
        store = asyncio.run(run(writes=False))
    said = "what workers computed did not come to lie there by the names of toy"
    assert store.wrong == said
    assert set(caplog.messages) == {f"no prompt will be found on L2: {said}"}
    assert 3 <= len(caplog.messages) <= 5
    assert store.written.missing >= 4 * len(caplog.messages)
    assert store.written.came == 0
    for writes in (True, None):
        store = asyncio.run(run(writes=writes))
        assert (store.wrong, store.written.missing) == ("", 0)
        assert bool(store.written.came) is bool(writes)


@pytest.mark.parametrize(
    ("rate", "lasts"), [(1 / 3600, 0), (1.0, 30), pytest.param(20.0, 30, marks=pytest.mark.long)]
)
def test_a_store_that_lost_all_is_not_wrong(rate: float, lasts: int) -> None:
    """A store that was restarted or emptied now and then is not reported as wrong.

    Missing chunks are counted, unless they were due long ago. That holds however long answers take
    and however few requests there are.
    """

    async def run() -> SharedStore:
        clock, told = Clock(), Losing()
        store, asked = SharedStore(told, 5.0, clock), deque[Prompt]()
        for number in range(max(40, int(600 * rate))):
            clock.now += 1 / rate
            if number % max(1, int(170 * rate)) == 0:
                told.kept.clear()
            asked.append(prompt_of(number))
            await store.ask(asked[-1])
            if len(asked) > lasts * rate:
                store.computed(asked.popleft(), 0)
            for _ in range(2):  # the checks run meanwhile
                await asyncio.sleep(0)
            assert store.wrong == ""
        await store.close()
        return store

    written = asyncio.run(run()).written
    assert bool(written.missing) is bool(written.came) is (rate > 1 / STAYS_S)


def test_one_model_that_comes_says_nothing_of_another() -> None:
    """A model asked for by a name that its workers do not know is reported, and only that one."""

    async def run() -> None:
        clock, told = Clock(), Told(0)
        store = SharedStore(told, 5.0, clock)
        for model in ("toy", "alias", "toy"):
            await work(store, clock, 1.0, 40, model)
            assert ("alias" in store.wrong) == (store.written.missing > 3)
        told.tokens = 256
        await store.ask(prompt_of(1000))
        assert "alias" in store.wrong
        await store.ask(prompt_of(1000, model="alias"))
        assert store.wrong == ""
        await store.close()

    asyncio.run(run())


def test_what_was_computed_is_looked_for() -> None:
    """The first chunk after the cached part is looked up.

    Not so for prompts that are stored already, too short, too long or never asked about.
    """

    async def run() -> list[int]:
        clock, told = Clock(), Told(0)
        store = SharedStore(told, 5.0, clock)
        for cached, tokens in ((0, 256), (1, 800), (256, 800), (257, 800), (600, 800)):
            prompt = prompt_of(cached, tokens)
            await store.ask(prompt)
            store.computed(prompt, cached)
        long = prompt_of(9, 20_000)
        await store.ask(long)
        store.computed(long, 19_000)
        store.computed(prompt_of(7), 0)
        told.tokens = 256
        known = prompt_of(8)
        await store.ask(known)
        store.computed(known, 0)
        clock.now += STORED_S
        await store.look()
        return [len(ids) // 4 for ids in told.wrote_ids]

    assert asyncio.run(run()) == [256, 512, 512, 768]


def test_an_answer_is_kept_for_its_prompt() -> None:
    """It counts for that prompt alone, and says no more is stored than the prompt has; without
    token ids there is nothing to ask."""

    async def run() -> None:
        told = Told()
        store = SharedStore(told, 5.0)
        await store.ask(PROMPT)
        assert store.held(PROMPT) == 256
        assert store.held(Prompt("toy", 400, ids=bytes(1600))) == 0
        assert (store.found, store.missed) == (1, 0)
        told.tokens = 300_000
        await store.ask(PROMPT)
        assert store.held(PROMPT) == PROMPT.tokens
        await store.ask(Prompt("toy", 400))
        assert told.asked == 2

    asyncio.run(run())


@pytest.mark.parametrize("how", ["slow", "down"])
def test_a_store_in_trouble_is_left_alone_for_a_while(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised, one line is logged, and the store counts again once it answers."""
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
        ["the L2 store answers again"],
    ]


def test_a_store_without_a_hit_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """After enough questions in vain the content is checked, and a problem is logged once."""
    told = Told(0)
    told.wrong = "it holds chunks of another size"

    async def run() -> None:
        clock = Clock()
        store = SharedStore(told, 5.0, clock)
        for number in range(200):
            clock.now += 10.0 if number == 100 else 0.0
            await store.ask(PROMPT)
            await asyncio.sleep(0)
        assert told.looked == 2, "not more often, however many there are"
        assert store.wrong == told.wrong
        told.tokens = 64
        await store.ask(PROMPT)
        assert store.wrong == ""
        await store.close()

    with caplog.at_level(logging.WARNING, "warmroute.tiers"):
        asyncio.run(run())
    assert caplog.messages == [f"no prompt will be found on L2: {told.wrong}"]
