"""Explanations of requests that no worker would be sent: what they would get, and why."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.worker import State
from tests.commands import run
from tests.support import MakeRouter, MakeStub, Router, error_of

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUIET = {"interval": "30s"}


def explain(router: Router, body: dict[str, Any] = CHAT) -> dict[str, Any]:
    """The router's explanation."""
    answer = router.http.post("/explain", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def left_out(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """State and reason of each worker that is left out."""
    return {one["worker"]: (one["state"], one["reason"]) for one in found["left_out"]}


@pytest.fixture
def empty(stub: MakeStub, route: MakeRouter) -> Router:
    """A router whose workers are down, draining, or of another model."""
    router = route(
        {"name": "a", "url": stub().url},
        {"name": "drains", "url": stub().url, "drain": True},
        {"name": "other", "url": stub(model="o").url},
        health=QUIET,
    )
    router.call(lambda: router.worker().become(State.DOWN, "it was unplugged"))
    return router


def test_without_any_worker_all_are_named_with_the_reason(empty: Router) -> None:
    """The explanation has the very error that the request gets, and says why nobody takes it."""
    found = explain(empty)
    refused = empty.http.post(PATH, json=CHAT)
    error = error_of(refused)
    assert found["refused"] == {
        "status": refused.status_code,
        "code": error["code"],
        "message": error["message"],
    }
    assert found["words"] == f"It would get 503 (no_worker): {error['message']}"
    assert (found["reason"], found["pool"], found["workers"]) == ("refused", "default", [])
    assert found["tokens"] > 0
    assert left_out(found) == {
        "a": ("down", "it was unplugged"),
        "drains": ("draining", "the settings say `drain`"),
        "other": ("other", "it does not serve 'm'"),
    }


def test_before_any_model_is_known_every_worker_is_named(route: MakeRouter, dead_url: str) -> None:
    """A request without a model could go to any pool: the workers of all are named."""
    pools = [
        {"name": "p", "workers": [{"name": "a", "url": dead_url}]},
        {"name": "q", "models": ["q"], "workers": [{"name": "b", "url": "http://127.0.0.1:9"}]},
    ]
    router = route(pools=pools, health=QUIET)
    found = explain(router, {**CHAT, "model": None})
    assert (found["refused"]["status"], found["pool"]) == (503, "")
    assert {name: state for name, (state, _) in left_out(found).items()} == {
        "a": "down",
        "b": "down",
    }


def test_a_model_that_nobody_has_is_still_an_error(empty: Router) -> None:
    """A wrong name is the request's own mistake, whatever the workers' states."""
    down = {**CHAT, "model": "no"}
    assert empty.http.post("/explain", json=down).status_code == 404


def test_the_command_lists_them_too(empty: Router, tmp_path: Path) -> None:
    """It prints what the request would get and each worker's state, and no empty table."""
    file, body = tmp_path / "c.yaml", tmp_path / "body.json"
    file.write_text("workers: [{url: 'http://127.0.0.1:9'}]\n")
    body.write_text(json.dumps(CHAT))
    command = ("explain", file, "--request", body, "--url", empty.url)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "refused: It would get 503 (no_worker): No worker that serves 'm'" in done.stdout
    assert "\na is left out, down: it was unplugged\n" in done.stdout
    assert "prefill" not in done.stdout
    found = json.loads(run(*command, "--json").stdout)
    assert (found["refused"]["code"], len(found["left_out"])) == ("no_worker", 3)
