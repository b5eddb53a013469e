"""What a router says of tokenizers, and requests to it."""

from typing import Any, cast

from tests.identity_live.engine import Engine
from tests.support import Router, until

CHAT = "/v1/chat/completions"


def tokenizers(router: Router) -> list[dict[str, Any]]:
    """As operators are shown them."""
    return cast("list[dict[str, Any]]", router.http.get("/tokenizers").json())


def tokenizer(router: Router, model: str = "m") -> dict[str, Any]:
    """That of one model; empty while there is none."""
    return next((one for one in tokenizers(router) if model in one["models"]), {})


def states(router: Router, model: str = "m") -> dict[str, str]:
    """What each worker's tokens are, by its name."""
    return {one["name"]: one["state"] for one in tokenizer(router, model).get("workers", ())}


def knows(router: Router, model: str = "m") -> bool:
    """Whether prompts for it are keyed by tokens."""
    return any(model in pool.prompts.known for pool in router.door.fleet.pools)


def until_known(router: Router, model: str = "m") -> None:
    """Wait until they are."""
    until(lambda: knows(router, model))


def until_asked(router: Router, *engines: Engine, model: str = "m") -> None:
    """Wait until these have been asked for their tokens."""
    until(lambda: {engine.name for engine in engines} <= states(router, model).keys())


def ask(router: Router, text: str = "hello there", model: str = "m") -> int:
    """Send a chat; return the status of the answer."""
    chat = {"model": model, "messages": [{"role": "user", "content": text}]}
    return router.http.post(CHAT, json=chat).status_code


def keyed(router: Router, by: str, pool: str = "default") -> int:
    """How many prompts were keyed by tokens, or by text."""
    return int(router.metric("warmroute_prompts_total", pool=pool, keyed=by))


def workers(router: Router, pool: str = "default") -> dict[str, int]:
    """How many workers agree, differ, or are not verified, as the metrics have it."""
    return {
        state: int(router.metric("warmroute_tokenizer_workers", pool=pool, state=state))
        for state in ("agrees", "unverified", "differs")
    }
