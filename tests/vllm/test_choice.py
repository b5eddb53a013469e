"""Tools with `tool_choice: none` in a real vLLM: the router finds out what becomes of them."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from tests.rendering.folders import TOOL
from tests.support import MakeRouter, until
from tests.tokenizers.asking import keyed, knows
from tests.vllm.conftest import StartEngine
from tests.vllm.engine import MODEL, make_model

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
FLAG = "--exclude-tools-when-tool-choice-none"
HELLO = [{"role": "user", "content": "Hello there, Zürich 👍!"}]
CLAUDES = {"name": "get_weather", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template writes tools."""
    return make_model(tmp_path_factory.mktemp("models") / "qwen", "qwen")


@pytest.mark.parametrize("flags", [(), (FLAG,)])
def test_prompts_are_the_engines(
    vllm: StartEngine, route: MakeRouter, folder: Path, flags: tuple[str, ...]
) -> None:
    """With and without the flag, for either dialect: ids are compared where vLLM returns them,
    otherwise their number."""
    engine = vllm(folder, *flags)
    router = route(engine.url)
    until(lambda: knows(router, MODEL), 60)
    prompts = router.door.fleet.pools[0].prompts
    chat: dict[str, Any] = {
        "model": MODEL, "messages": HELLO, "tools": [TOOL], "tool_choice": "none", "max_tokens": 1
    }  # fmt: skip
    assert router.http.post(CHAT, json=chat, timeout=60).status_code == 200
    until(lambda: prompts.known[MODEL].left_out is bool(flags), 60)
    known = prompts.known[MODEL]
    answer = router.http.post(CHAT, json={**chat, "return_token_ids": True}, timeout=60).json()
    ids = known.exact.ids(ENDPOINTS[CHAT], json.dumps(chat).encode(), left_out=known.left_out)
    assert array("I", ids).tolist() == answer["prompt_token_ids"]
    claudes = {**chat, "tools": [CLAUDES], "tool_choice": {"type": "none"}}
    assert router.http.post(MESSAGES, json=claudes, timeout=60).status_code == 200
    assert keyed(router, "tokens") == 2
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0
