"""Simulated workers with a real tokenizer, which render and tokenize with code of their own."""

from functools import partial
from pathlib import Path

import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.rendering.other_formats import make_mistral, make_sentencepiece
from tests.support import MakeRouter, until
from tests.tokenizers.asking import ask, keyed, knows, states, tokenizer, until_known
from tests.tokenizers.conftest import QUICK, MakeEngine, Start


def test_they_agree(route: MakeRouter, folder: Path) -> None:
    """On all probes; and their token counts are the router's."""
    settings = FleetSettings(workers=2, profile="toy", models=("toy",), tokenizer=folder)
    with FleetThread(settings) as fleet:
        router = route(*fleet.urls, tokenizer=str(folder), health=QUICK)
        until_known(router, "toy")
        assert list(states(router, "toy").values()) == ["agrees", "agrees"]
        for text in ("hello", "Zürich <|im_end|> 日本 😀", "x" * 5000):
            assert ask(router, text, "toy") == 200
        assert (keyed(router, "tokens"), keyed(router, "text")) == (3, 0)
        until(router.idle)
        assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


@pytest.mark.parametrize("kind", ["tekken-v13", "sentencepiece-v3", "transformers"])
def test_other_formats(engine: MakeEngine, start: Start, tmp_path: Path, kind: str) -> None:
    """A running router takes them up too; that the ids are vLLM's own is shown in `tests/vllm`."""
    make = make_sentencepiece if kind == "transformers" else partial(make_mistral, kind=kind)
    folder = make(tmp_path / "model")
    router = start(engine(folder), tokenizer=str(folder))
    until(lambda: knows(router), 30)
    assert list(states(router).values()) == ["agrees"]
    assert ask(router, "Zürich 日本 😀") == 200
    assert (keyed(router, "tokens"), keyed(router, "text")) == (1, 0)
    until(router.idle)
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


def test_without_a_tokenizer_they_differ(route: MakeRouter, folder: Path) -> None:
    """The simulator's own tokenizer is no real model's: a router with another one notices."""
    with FleetThread(FleetSettings(profile="toy", models=("toy",))) as fleet:
        router = route(*fleet.urls, tokenizer=str(folder), health=QUICK)
        until(lambda: "differs" in states(router, "toy").values())
        assert tokenizer(router, "toy")["keyed"] == "text"
        router = route(*fleet.urls, health=QUICK)
        until(lambda: tokenizer(router, "toy"))
        assert tokenizer(router, "toy")["source"] == "text"
