"""Tools with `tool_choice: none`: engines write them into the prompt, or leave them out."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.rendering.errors import NotReproducible
from router.rendering.tokens import without_unused_tools
from strategies.api import Prompt
from tests.rendering.folders import TOOL
from tests.support import Router, until
from tests.tokenizers.asking import keyed, until_asked, until_known
from tests.tokenizers.conftest import MakeEngine, Start

CHAT = "/v1/chat/completions"
UNKNOWN = "tools that engines may leave out"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
NONE = {**HELLO, "tools": [TOOL], "tool_choice": "none"}
AUTO = {**HELLO, "tools": [TOOL]}


def prompt(router: Router, **asked: Any) -> Prompt:
    """Return a router's prompt of a chat."""
    body = json.dumps({"model": "m", **asked}).encode()
    request = parse(ENDPOINTS[CHAT], body, b"application/json")
    return router.door.fleet.pools[0].prompts.prompt(ENDPOINTS[CHAT], request, body)


@pytest.mark.parametrize("left_out", [False, True])
def test_all_workers_do_the_same(
    engine: MakeEngine, start: Start, folder: Path, *, left_out: bool
) -> None:
    """The router finds out which, and tokenizes prompts as the workers do."""
    workers = engine(folder), engine(folder)
    for worker in workers:
        worker.left_out = left_out
    router = start(*workers)
    until_known(router)
    assert router.http.post(CHAT, json={"model": "m", **AUTO}).status_code == 200
    assert router.door.fleet.pools[0].prompts.known["m"].left_out is None, "nobody needs to know"
    assert router.http.post(CHAT, json={"model": "m", **NONE}).status_code == 200
    until(lambda: router.door.fleet.pools[0].prompts.known["m"].left_out is left_out)
    like = HELLO if left_out else AUTO
    assert prompt(router, **NONE).keys == prompt(router, **like).keys
    assert prompt(router, **AUTO).keys != prompt(router, **HELLO).keys
    assert router.http.post(CHAT, json={"model": "m", **NONE}).status_code == 200
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0
    assert keyed(router, "text") == 1


@pytest.mark.parametrize("how", ["left_out", "mute"])
def test_nobody_knows(engine: MakeEngine, start: Start, folder: Path, how: str) -> None:
    """If workers do not do the same, or one does not tell, such prompts are keyed by text, with a
    reason."""
    one, two = engine(folder), engine(folder)
    setattr(one, how, True)
    router = start(one, two)
    until_known(router)
    until_asked(router, one, two)
    until(lambda: router.door.fleet.pools[0].prompts.known["m"].left_out is None)
    assert router.http.post(CHAT, json={"model": "m", **NONE}).status_code == 200
    assert router.http.post(CHAT, json={"model": "m", **AUTO}).status_code == 200
    assert (keyed(router, "text"), keyed(router, "tokens")) == (1, 1)
    assert router.metric("warmroute_prompts_by_text_total", pool="default", reason=UNKNOWN) == 1


def test_workers_that_are_asked_for_tokens(engine: MakeEngine, start: Start, folder: Path) -> None:
    """They are asked without the tools that they leave out."""
    worker = engine(folder)
    worker.left_out = True
    router = start(worker, tokenizer="worker")
    until(lambda: "m" in router.door.fleet.pools[0].prompts.asked)
    assert router.http.post(CHAT, json={"model": "m", **NONE}).status_code == 200
    until(lambda: router.door.keeper.cases[0].left_out)
    for asked, tools in ((NONE, False), (AUTO, True)):
        assert router.http.post(CHAT, json={"model": "m", **asked}).status_code == 200
        assert ("tools" in worker.tokenized[-1]) is tools
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_dialects(choice: object) -> None:
    """`/v1/messages` has its own way of saying it."""
    asked = {"tools": [TOOL], "tool_choice": choice}
    assert without_unused_tools(asked, left_out=True) == {"tool_choice": choice}
    assert without_unused_tools(asked, left_out=False) is asked
    with pytest.raises(NotReproducible, match="leave out"):
        without_unused_tools(asked, left_out=None)


@pytest.mark.parametrize("asked", [{"tool_choice": "none"}, {"tools": [TOOL]}, {"tools": []}])
def test_nothing_to_leave_out(asked: dict[str, Any]) -> None:
    """Then it does not matter what engines do."""
    assert without_unused_tools(asked, left_out=None) is asked
