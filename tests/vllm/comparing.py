"""Compares the router's token ids with the engine's, request by request."""

import json
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings

from router.api.endpoints import ENDPOINTS
from router.rendering.messages import NotReproducible
from router.rendering.tokens import PromptTokenizer
from tests.vllm.conversations import Bodies, Body
from tests.vllm.engine import MODEL, Engine

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
#: Most rounds to reach enough requests accepted by both, and fewest requests in a round.
_ROUNDS, _LEAST = 20, 10

Ask = Callable[[httpx.Client, Body], list[int] | None]


def post(client: httpx.Client, path: str, body: Body) -> Any:
    """Return the engine's answer; None if it refuses."""
    answer = client.post(path, json={"model": MODEL, **body})
    if answer.status_code == 400:
        return None
    answer.raise_for_status()
    return answer.json()


def tokenize(client: httpx.Client, body: Body) -> list[int] | None:
    """Return the engine's ids of a request, from `/tokenize`; None if it refuses."""
    said = post(client, "/tokenize", body)
    return None if said is None else list(said["tokens"])


def chat(client: httpx.Client, body: Body) -> list[int] | None:
    """Return the ids of a chat that the engine actually answers, with one token."""
    said = post(client, CHAT, {**body, "max_tokens": 1, "return_token_ids": True})
    return None if said is None else list(said["prompt_token_ids"])


def ours(exact: PromptTokenizer, path: str, body: Body) -> list[int] | str:
    """Return the router's ids, or why there are none."""
    try:
        return array("I", exact.ids(ENDPOINTS[path], json.dumps(body).encode())).tolist()
    except NotReproducible as unlike:
        return unlike.reason


def compare(
    engine: Engine, exact: PromptTokenizer, path: str, bodies: Bodies, *, cases: int, ask: Ask
) -> str:
    """Compare until enough requests were accepted by both; fail at the first difference.

    Returns a line that summarises the results.
    """
    counts: Counter[str] = Counter()
    with httpx.Client(base_url=engine.url, timeout=60) as client:

        def same(body: Body) -> None:
            mine, theirs = ours(exact, path, body), ask(client, body)
            if theirs is None:
                counts["refused by the engine"] += 1
            elif isinstance(mine, str):
                counts[f"not known here: {mine}"] += 1
            else:
                assert mine == theirs, f"of {json.dumps(body)}"
                counts["equal"] += 1

        for number in range(_ROUNDS):
            missing = cases - counts["equal"]
            if missing > 0:
                _each(bodies, max(missing, _LEAST), number)(same)
    told = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    assert counts["equal"] >= cases, told
    return f"{path}: 0 differences: {told}"


def _each(bodies: Bodies, examples: int, number: int) -> Callable[[Callable[[Body], None]], None]:
    """Return a function that runs a test with that many requests, the same for the same
    `number`."""

    def run(test: Callable[[Body], None]) -> None:
        tried = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        seed(number)(tried(given(bodies)(test)))()

    return run
