"""Simulated workers with a real tokenizer, which render and tokenize with code of their own."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.identity.other_formats import make_mistral, make_sentencepiece
from tests.identity_live.asking import CHAT, ask, keyed, knows, states, tokenizer, until_known
from tests.identity_live.conftest import QUICK
from tests.support import MakeRouter, until


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


@pytest.mark.parametrize("kind", ["tekken-v3", "tekken-v13", "sentencepiece-v3", "transformers"])
def test_other_formats(route: MakeRouter, tmp_path: Path, kind: str) -> None:
    """They agree too. Those in Mistral's format also hit their previous answer in the cache; for
    others, the start of an answer depends on what the template writes before it."""
    make = make_sentencepiece if kind == "transformers" else partial(make_mistral, kind=kind)
    folder = make(tmp_path / "model")
    settings = FleetSettings(profile="toy", models=("toy",), tokenizer=folder)
    with FleetThread(settings) as fleet:
        router = route(*fleet.urls, tokenizer=str(folder), health=QUICK)
        until(lambda: knows(router, "toy"), 30)
        assert list(states(router, "toy").values()) == ["agrees"]
        chat: dict[str, Any] = {"model": "toy", "messages": [], "max_tokens": 100}
        for text in ("Hello!", "Go on."):
            chat["messages"].append({"role": "user", "content": text})
            answer = router.http.post(CHAT, json=chat).json()
            chat["messages"].append(answer["choices"][0]["message"])
        details = answer["usage"]["prompt_tokens_details"]
        assert kind == "transformers" or details["cached_tokens"] >= 96
        assert (keyed(router, "tokens"), keyed(router, "text")) == (2, 0)
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
