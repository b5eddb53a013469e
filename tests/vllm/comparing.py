"""One request after the other: our ids, and the engine's."""

import json
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings

from router.identity.exact import Exact
from router.identity.unlike import Unlike
from router.openai import ENDPOINTS
from tests.vllm.conversations import Bodies, Body
from tests.vllm.engine import MODEL, Engine

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
#: Rounds until enough requests were taken at both ends, and requests of the last ones.
_ROUNDS, _LEAST = 20, 10

Ask = Callable[[httpx.Client, Body], list[int] | None]


def post(client: httpx.Client, path: str, body: Body) -> Any:
    """What the engine answers; None if it refuses."""
    answer = client.post(path, json={"model": MODEL, **body})
    if answer.status_code == 400:
        return None
    answer.raise_for_status()
    return answer.json()


def tokenize(client: httpx.Client, body: Body) -> list[int] | None:
    """The engine's ids of a request, by `/tokenize`; None if it refuses."""
    said = post(client, "/tokenize", body)
    return None if said is None else list(said["tokens"])


def chat(client: httpx.Client, body: Body) -> list[int] | None:
    """The ids of a chat that it really answers, by one token."""
    said = post(client, CHAT, {**body, "max_tokens": 1, "return_token_ids": True})
    return None if said is None else list(said["prompt_token_ids"])


def ours(exact: Exact, path: str, body: Body) -> list[int] | str:
    """Our ids, or why there are none."""
    try:
        return array("I", exact.ids(ENDPOINTS[path], json.dumps(body).encode())).tolist()
    except Unlike as unlike:
        return unlike.reason


def compare(
    engine: Engine, exact: Exact, path: str, bodies: Bodies, *, cases: int, ask: Ask
) -> str:
    """Compare until there were so many that both take; fail with the first that differs.

    Returns a line that says what came of them.
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
    """Call a test with that many requests, the same ones for the same `number`."""

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
