"""`kvaware` in front of two real engines: predictions from events are exact."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from router.cli.check_live import check_live
from router.settings.model import Settings
from tests.support import MakeRouter, Router, until
from tests.vllm.engine import BLOCK, MODEL
from tests.vllm.publishing import (
    PATIENCE,
    Publishing,
    ask,
    cached,
    direct,
    held,
    memory,
    memory_of,
    predicted,
    publishing,
    start,
    tokens,
    told,
    trusted,
    words,
)


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Publishing]]:
    """Two engines with room for everything in these tests."""
    with publishing(model, tmp_path_factory.mktemp("logs"), number=2) as made:
        yield made


@pytest.fixture
def kvaware(route: MakeRouter, model: Path) -> MakeRouter:
    """Start a router, and wait until its engines' events can be used."""

    def make(*workers: object, **settings: object) -> Router:
        router = start(route, model, *workers, **settings)
        until(lambda: trusted(router), PATIENCE)
        return router

    return make


def test_a_shared_prefix_goes_to_its_holder(pair: list[Publishing], kvaware: MakeRouter) -> None:
    """Engines are found by /kv_event_sources; equal prompts with another salt are separate."""
    router = kvaware(pair[0].url, pair[1].url)
    text = words(Random(1), 400)
    first = ask(router, text)
    told(router, first, text)
    holder = first.headers["x-warmroute-worker"]
    for number in range(6):
        again = ask(router, f"{text} and {number}")
        assert again.headers["x-warmroute-worker"] == holder
        assert again.headers["x-warmroute-decision"].startswith("prefix;")
        assert predicted(again) == cached(again) > 350
    salted = ask(router, text, cache_salt="tenant")
    assert (predicted(salted), cached(salted)) == (0, 0)
    told(router, salted, text, cache_salt="tenant")
    salted = ask(router, text, cache_salt="tenant")
    assert predicted(salted) == cached(salted) > 350


CACHED = {
    "/v1/chat/completions": ("prompt_tokens_details", "cached_tokens"),
    "/v1/completions": ("prompt_tokens_details", "cached_tokens"),
    "/v1/responses": ("input_tokens_details", "cached_tokens"),
    "/v1/messages": ("cache_read_input_tokens",),
}
"""Where the usage of an answer has the number of cached tokens."""


@pytest.mark.parametrize("path", CACHED)
def test_keys_with_caches_of_their_own(
    pair: list[Publishing], kvaware: MakeRouter, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The engine finds nothing of another key's, on any endpoint."""
    keys = {name: f"sk-team-{name}-0123456789" for name in "ab"}
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_{name}", key)
    auth = {"keys": ["${KEY_a}", "${KEY_b}"], "separate_caches": True}
    router = kvaware(pair[0].url, auth=auth)
    text = words(Random(path), 400)
    says = [{"role": "user", "content": text}]
    bodies: dict[str, dict[str, object]] = {
        "/v1/completions": {"prompt": text},
        "/v1/responses": {"input": says, "max_output_tokens": 1},
    }
    body = bodies.get(path, {"messages": says})

    def found(name: str) -> int:
        asked = {"model": MODEL, "max_tokens": 1, **body}
        key = {"authorization": f"Bearer {keys[name]}"}
        answer = router.http.post(path, json=asked, headers=key, timeout=120)
        assert answer.status_code == 200, answer.text
        until(router.idle)
        told = answer.json()["usage"]
        for part in CACHED[path]:
            told = (told or {}).get(part)
        return int(told or 0)

    assert [found("a"), found("b")] == [0, 0]
    assert found("a") > 350
    assert found("b") > 350


def test_names_of_blocks_are_compared(pair: list[Publishing], model: Path) -> None:
    """Engines with the same settings name blocks alike, and the check finds the algorithm and seed;
    both report cached tokens."""
    told = {"workers": [one.url for one in pair], "strategy": "kvaware", "tokenizer": str(model)}
    lines, well = asyncio.run(check_live(Settings.model_validate(told), ask=True))
    assert well, lines
    names = [line for line in lines if "block names: by sha256, PYTHONHASHSEED=0; " in line]
    assert len(names) == 2, lines
    assert all("those of the others, of " in line for line in names)
    assert sum("a repeated prompt: 512 of 520 tokens were cached" in line for line in lines) == 2
    assert sum("cached tokens are reported" in line for line in lines) == 2


def test_200_chats_are_predicted_exactly(pair: list[Publishing], kvaware: MakeRouter) -> None:
    """On one engine with room for all of them."""
    random, router = Random(2), kvaware(pair[0].url)
    starts = [words(random, 300) for _ in range(5)]
    hits = 0
    for number in range(200):
        text = random.choice(starts)[: random.randrange(20, 1500)]
        text += f" {number} {words(random, random.randrange(100))}"
        answer = ask(router, text)
        assert predicted(answer) == cached(answer), number
        hits += cached(answer) > 0
        told(router, answer, text)
    assert hits > 100
    truth = memory(router).track_records[pair[0].name]
    assert (truth.compared, truth.sum, truth.demoted) == (200, 0, False)


def test_who_joins_late_learns_the_past_by_replay(
    pair: list[Publishing], kvaware: MakeRouter
) -> None:
    """Without replay, it only learns what is new."""
    text = words(Random(3), 300)
    first = direct(pair[0], text)
    late = kvaware({"url": pair[0].url, "kv_events": pair[0].events, "kv_replay": pair[0].replay})
    until(lambda: memory_of(late, text, pair[0].name) >= tokens(first) // BLOCK * BLOCK, PATIENCE)
    answer = ask(late, text)
    assert predicted(answer) == cached(answer) > 250
    blind = kvaware({"url": pair[0].url, "kv_events": pair[0].events})
    answer = ask(blind, text)
    assert (predicted(answer), cached(answer) > 250) == (0, True)
    other = words(Random(4), 300)
    told(blind, ask(blind, other), other)
    answer = ask(blind, other)
    assert predicted(answer) == cached(answer) > 250


def test_a_reset_cache_is_empty(pair: list[Publishing], kvaware: MakeRouter) -> None:
    """The engine announces it with its next step."""
    router = kvaware(pair[0].url)
    text = words(Random(5), 300)
    told(router, ask(router, text), text)
    assert httpx.post(pair[0].url + "/reset_prefix_cache", timeout=30).status_code == 200
    other = words(Random(6), 100)
    told(router, ask(router, other), other)
    until(lambda: held(router, pair[0].name) < 15, PATIENCE)
    answer = ask(router, text)
    assert predicted(answer) == cached(answer)


def test_a_killed_engine_is_cleared_and_refilled(
    pair: list[Publishing], kvaware: MakeRouter
) -> None:
    """It comes back empty, on the same ports."""
    router = kvaware(pair[0].url, pair[1].url)
    text = words(Random(7), 300)
    first = ask(router, text)
    told(router, first, text)
    holder = next(one for one in pair if one.name == first.headers["x-warmroute-worker"])
    (other,) = [one for one in pair if one is not holder]
    holder.engine.stop()
    until(lambda: not router.worker(pair.index(holder)).ready, PATIENCE)
    answer = ask(router, text)
    assert answer.headers["x-warmroute-worker"] == other.name
    holder.engine.start()
    until(lambda: router.worker(pair.index(holder)).ready, PATIENCE)
    until(lambda: held(router, holder.name) == 0, PATIENCE)
    until(lambda: not memory(router).doubt(holder.name), PATIENCE)
    alone = kvaware(holder.url)
    answer = ask(alone, text)
    assert (predicted(answer), cached(answer)) == (0, 0)
    told(alone, answer, text)
    until(lambda: memory_of(router, text, holder.name) > 250, PATIENCE)


def test_evictions_are_followed(model: Path, tmp_path: Path, kvaware: MakeRouter) -> None:
    """With a cache of 40 blocks, predictions match what is still there."""
    few = ("--num-gpu-blocks-override", "40", "--max-model-len", "1024")
    with publishing(model, tmp_path, *few) as (small,):
        random, router = Random(8), kvaware(small.url)
        texts = [words(random, 150) for _ in range(5)]
        hits = 0
        for _ in range(30):
            text = random.choice(texts)
            answer = ask(router, text)
            assert predicted(answer) == cached(answer)
            hits += cached(answer) > 0
            told(router, answer, text)
            assert held(router, small.name) <= 40
        assert 0 < hits < 30
