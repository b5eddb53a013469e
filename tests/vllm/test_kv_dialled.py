"""Real engines that connect to the router: a fleet at one address, told apart by topic."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support import MakeRouter, until
from tests.vllm.engine import BLOCK
from tests.vllm.publishing import (
    PATIENCE,
    Publishing,
    ask,
    cached,
    direct,
    late_port,
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
    """Two engines that connect to the same address, whether or not a router is there."""
    dials = f"tcp://127.0.0.1:{late_port()}"
    with publishing(model, tmp_path_factory.mktemp("logs"), number=2, dials=dials) as made:
        yield made


def settings(one: Publishing, *, replay: bool) -> dict[str, str]:
    """Return the settings of such a worker."""
    found = {"url": one.url, "kv_events": one.dials.replace("127.0.0.1", "*")}
    return found | ({"kv_replay": one.replay} if replay else {})


def test_a_fleet_at_one_address_is_told_apart(
    pair: list[Publishing], route: MakeRouter, model: Path
) -> None:
    """What was computed before is learned by replay; then predictions for each engine are exact."""
    texts = [words(Random(number), 300) for number in (21, 22)]
    known = [tokens(direct(one, text)) for one, text in zip(pair, texts, strict=True)]
    router = start(route, model, *(settings(one, replay=True) for one in pair))
    until(lambda: trusted(router), PATIENCE)
    for one, text, number in zip(pair, texts, known, strict=True):
        whole = number // BLOCK * BLOCK
        until(lambda: memory_of(router, text, one.name) >= whole, PATIENCE)  # noqa: B023
        answer = ask(router, text)
        assert answer.headers["x-warmroute-worker"] == one.name
        assert predicted(answer) == cached(answer) > 250
    random, used = Random(23), set()
    for number in range(20):
        text = f"{random.choice(texts)[: random.randrange(900)]} {number} {words(random, 40)}"
        answer = ask(router, text)
        assert predicted(answer) == cached(answer), number
        told(router, answer, text)
        used.add(answer.headers["x-warmroute-worker"])
    assert used == {one.name for one in pair}
    for one in pair:
        (source,) = memory(router).sources[one.name]
        assert (source.refused["topic of nobody"], source.stream.epoch) == (0, 0)
