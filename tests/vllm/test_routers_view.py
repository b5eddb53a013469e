"""A complete router in front of a real vLLM: what it finds out, and how it uses it."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.prompt.forward import with_ids
from tests.commands import run
from tests.support import MakeRouter, Router, until
from tests.tokenizers.asking import keyed, knows, states, tokenizer
from tests.vllm.conftest import StartEngine
from tests.vllm.engine import BLOCK, MODEL, Engine, make_model
from tests.vllm.models import make_adapter

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello there, Zürich 👍! " * 20}
#: Most seconds for an engine to answer, even on a busy machine.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def engine(vllm: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """One for all tests, with two adapters."""
    models = tmp_path_factory.mktemp("models")
    folder = make_model(models / "qwen", "qwen")
    adapters = [make_adapter(models / name, folder, seed) for seed, name in enumerate("ab")]
    named = [f"{adapter.name}={adapter}" for adapter in adapters]
    flags = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", *named)
    return vllm(folder, *flags)


def ask(router: Router, model: str = MODEL, **more: Any) -> dict[str, Any]:
    """Send a chat through the router; return the answer."""
    body = {"model": model, "messages": [HELLO], "max_tokens": 1, "temperature": 0}
    body["return_token_ids"] = True
    answer = router.http.post(CHAT, json={**body, **more}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cached(answer: dict[str, Any]) -> int:
    """Return how many tokens the engine had cached."""
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def keys(router: Router, model: str, **more: Any) -> list[int]:
    """Return the keys of that chat."""
    body = json.dumps({"model": model, "messages": [HELLO], **more}).encode()
    request = parse(ENDPOINTS[CHAT], body, b"application/json")
    prompts = next(iter(router.door.fleet.pools)).prompts
    return list(prompts.prompt(ENDPOINTS[CHAT], request, body).keys)


def test_tokens_are_known_and_agree(engine: Engine, route: MakeRouter) -> None:
    """From the folder that the engine reports; adapters use their base model's."""
    router = route(engine.url)
    until(lambda: knows(router, MODEL), PATIENCE_S)
    for model in (MODEL, "a", "b"):
        assert tokenizer(router, model)["keyed"] == "tokens"
        assert set(states(router, model).values()) == {"agrees"}
    answer = ask(router)
    assert keyed(router, "tokens") == 1
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


def test_adapters_and_tenants_share_nothing(engine: Engine, route: MakeRouter) -> None:
    """What one has cached is no use to another, neither in the engine nor in the router's keys."""
    router = route(engine.url)
    until(lambda: all(knows(router, model) for model in (MODEL, "a", "b")), PATIENCE_S)
    others: list[dict[str, Any]] = [
        {"model": MODEL, "cache_salt": "here"},
        {"model": MODEL, "cache_salt": "there"},
        {"model": "a", "cache_salt": "here"},
        {"model": "b", "cache_salt": "here"},
    ]
    seen: set[int] = set()
    tokens = ask(router, **others[0], messages=[HELLO])["prompt_token_ids"]
    for other in others[1:]:
        answer = ask(router, **other)
        assert (cached(answer), answer["prompt_token_ids"]) == (0, tokens)
        again = ask(router, **other)
        assert cached(again) == (len(tokens) - 1) // BLOCK * BLOCK
    for other in others:
        mine = keys(router, **other)
        assert mine
        assert seen.isdisjoint(mine)
        seen.update(mine)


def test_tokens_that_are_asked_for(engine: Engine, route: MakeRouter) -> None:
    """With `worker`, for every prompt; the counts are right."""
    known = route(engine.url)
    until(lambda: knows(known, MODEL), PATIENCE_S)
    router = route(engine.url, tokenizer="worker")
    until(lambda: any(MODEL in p.prompts.asked for p in router.door.fleet.pools), PATIENCE_S)
    ask(router)
    assert keyed(router, "tokens") == 1
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


def test_tokens_that_go_along(engine: Engine, route: MakeRouter) -> None:
    """The engine uses them instead of the messages, and gives the same answer."""
    settings = {"source": str(engine.folder), "forward_token_ids": True}
    router = route(engine.url, tokenizer=settings)
    until(lambda: router.worker().takes_ids, PATIENCE_S)
    forwarded, own = ask(router), ask(route(engine.url, tokenizer="bytes"))
    ids = own["prompt_token_ids"]
    assert forwarded["prompt_token_ids"] == ids
    assert forwarded["choices"] == own["choices"]
    other = {"model": MODEL, "messages": [{"role": "user", "content": "no"}], "max_tokens": 1}
    chat = json.dumps({**other, "return_token_ids": True}).encode()
    body = with_ids(chat, json.dumps(ids).encode())
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{engine.url}{CHAT}", content=body, headers=headers, timeout=PATIENCE_S)
    assert answer.json()["prompt_token_ids"] == ids


def test_an_operator_is_told(engine: Engine, tmp_path: Path) -> None:
    """`warmroute check --live` reports that all is well, or where tokens differ."""
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"workers": [engine.url]}))
    done = run("check", path, "--live")
    assert done.returncode == 0, done.stdout
    assert "tokens by" in done.stdout
    assert "agrees: the same tokens of" in done.stdout
    other = make_model(tmp_path / "other", "chatml")
    path.write_text(json.dumps({"workers": [engine.url], "tokenizer": str(other)}))
    done = run("check", path, "--live")
    assert done.returncode == 1
    assert 'differs: probe "' in done.stdout
