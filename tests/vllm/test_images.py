"""Chats with images in a real vLLM: the tokens that the router claims to know are right."""

import json
from array import array
from typing import Any

import httpx
import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.probes import square
from router.tokenizers.loader import TokenizerCache
from tests.rendering.test_media import part
from tests.support import MakeRouter, until
from tests.tokenizers.asking import keyed, knows, tokenizer
from tests.vllm.conftest import StartEngine
from tests.vllm.engine import BLOCK, MODEL, Engine
from tests.vllm.models import make_seeing

CHAT = "/v1/chat/completions"
FLAGS = ("--limit-mm-per-prompt", '{"image": 3, "video": 0}', "--max-num-batched-tokens", "2048")
SMALL, LARGE = square(64), square(128)
LONG = part("Look at this, Zürich 👍: " * 30)
CHATS = (
    [{"role": "user", "content": [SMALL, part("What is this?")]}],
    [{"role": "user", "content": [LONG, SMALL, part("and this?"), LARGE]}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [LONG, part("b"), LARGE]},
        {"role": "assistant", "content": "A square."},
        {"role": "user", "content": [part("And this?"), SMALL]},
    ],
)


@pytest.fixture(scope="module")
def engine(vllm: StartEngine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An engine with a vision model; skipped if vLLM lacks what it needs for that."""
    try:
        return vllm(make_seeing(tmp_path_factory.mktemp("models") / "seeing"), *FLAGS)
    except RuntimeError as error:
        if "torchvision" not in str(error) and "inspected" not in str(error):
            raise
        pytest.skip("vLLM's models that see need torchvision, which is not installed beside it")


@pytest.mark.parametrize("messages", CHATS)
def test_tokens_before_the_first_image(engine: Engine, messages: list[Any]) -> None:
    """The engine's tokens begin with ours, and then comes the image."""
    exact = TokenizerCache().open(engine.folder).exact
    head = exact.head(ENDPOINTS[CHAT], json.dumps({"messages": messages}).encode())
    ids = array("I", head.ids).tolist()
    asked = {"model": MODEL, "messages": messages}
    answer = httpx.post(f"{engine.url}/tokenize", json=asked, timeout=60)
    theirs = answer.json()["tokens"]
    assert theirs[: len(ids)] == ids
    start, image = 3, 5
    assert theirs[len(ids) : len(ids) + 2] == [start, image]


def test_a_router_knows(engine: Engine, route: MakeRouter) -> None:
    """The state says so, and the engine's cached tokens are those before the image."""
    router = route(engine.url)
    until(lambda: knows(router, MODEL), 60)
    why = tokenizer(router, MODEL)["workers"][0]["why"]
    assert why.endswith("probes, and before an image")
    cached = []
    for image in (SMALL, LARGE, LARGE):
        messages = [{"role": "user", "content": [LONG, image, part("What is this?")]}]
        asked = {"model": MODEL, "messages": messages, "max_tokens": 1}
        answer = router.http.post(CHAT, json=asked, timeout=60).json()
        details = answer["usage"].get("prompt_tokens_details") or {}
        cached.append(int(details.get("cached_tokens") or 0))
        head = (
            TokenizerCache()
            .open(engine.folder)
            .exact.head(ENDPOINTS[CHAT], json.dumps(asked).encode())
        )
    known = len(head.ids) // 4 // BLOCK * BLOCK
    assert cached[:2] == [0, known]
    assert cached[2] >= known
    assert keyed(router, "tokens") == 3
    assert keyed(router, "text") == 0
