"""Separate prefix caches: SageMaker's `PrefixAwareId`, and OpenAI's `prompt_cache_key`."""

import re
from typing import Any

import httpx

from tests.sdk.boto.client import Boto
from tests.support import MakeRouter, MakeStub, until

TEXT = "All the king's horses and all the king's men. " * 100
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}]}
FIELD = "X-Amzn-SageMaker-Prefix-Aware-Id"


def held(decision: str) -> int:
    """Return the tokens that the worker was believed to hold."""
    return int(re.findall(r"held=(\d+)", decision)[0])


def test_ids_share_no_prefix(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """The same words with another id, or with none, are cold: row R14 of docs/hyperpod.md."""
    workers = [stub(), stub()]
    router = route(*(worker.url for worker in workers))
    has_it = "PrefixAwareId" in boto.shape("InvokeEndpointInput")["members"]

    def invoked(name: str) -> int:
        if has_it:
            reply = boto.invoke(router.url, CHAT, PrefixAwareId=name).good
            assert FIELD.lower() in {field.lower() for field in reply.sent[0]}
            decision = reply.headers["x-warmroute-decision"]
        else:  # an older generation: send the header with another client
            path = f"{router.url}/endpoints/llama/invocations"
            answer = httpx.post(path, json=CHAT, headers={FIELD: name})
            decision = answer.headers["x-warmroute-decision"]
        until(router.idle)
        return held(decision)

    def asked(**more: str) -> int:
        answer = router.http.post("/v1/chat/completions", json={**CHAT, **more})
        until(router.idle)
        return held(answer.headers["x-warmroute-decision"])

    assert invoked("a") == 0
    assert invoked("a") > 0
    assert invoked("b") == 0
    assert asked() == 0
    assert asked(prompt_cache_key="c") == 0
    for name in ("a", "b"):
        assert invoked(name) > 0
        assert asked(prompt_cache_key=name) > 0
    assert asked() > 0
    for worker in workers:
        assert not any(FIELD.lower().encode() in one.lower() for one in worker.requests)
