"""What a router reports about tokenizers, and requests to it."""

from typing import Any, cast

from tests.support import Router, until
from tests.tokenizers.engine import Engine

CHAT = "/v1/chat/completions"


def tokenizers(router: Router) -> list[dict[str, Any]]:
    """Return the answer of `/tokenizers`."""
    return cast("list[dict[str, Any]]", router.http.get("/tokenizers").json())


def tokenizer(router: Router, model: str = "m") -> dict[str, Any]:
    """Return the entry of one model; empty while there is none."""
    return next((one for one in tokenizers(router) if model in one["models"]), {})


def states(router: Router, model: str = "m") -> dict[str, str]:
    """Return the state of each worker, by its name."""
    return {one["name"]: one["state"] for one in tokenizer(router, model).get("workers", ())}


def exact(router: Router, model: str = "m") -> object:
    """Return what makes a model's tokens, if prompts are keyed by these."""
    known = (pool.prompts.known.get(model) for pool in router.door.fleet.pools)
    return next((one.exact for one in known if one is not None), None)


def knows(router: Router, model: str = "m") -> bool:
    """Return whether prompts for a model are keyed by tokens."""
    return exact(router, model) is not None


def until_known(router: Router, model: str = "m") -> None:
    """Wait until prompts for a model are keyed by tokens."""
    until(lambda: knows(router, model))


def until_asked(router: Router, *engines: Engine, model: str = "m") -> None:
    """Wait until these workers have been asked for their tokens."""
    until(lambda: {engine.name for engine in engines} <= states(router, model).keys())


def ask(router: Router, text: str = "hello there", model: str = "m", **more: Any) -> int:
    """Send a chat; return the response status."""
    chat = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return router.http.post(CHAT, json=chat).status_code


def keyed(router: Router, by: str, pool: str = "default") -> int:
    """Return how many prompts were keyed by `tokens` or by `text`."""
    return int(router.metric("warmroute_prompts_total", pool=pool, keyed=by))


def workers(router: Router, pool: str = "default") -> dict[str, int]:
    """Return how many workers agree, differ, or are unverified, from the metrics."""
    return {
        state: int(router.metric("warmroute_tokenizer_workers", pool=pool, state=state))
        for state in ("agrees", "unverified", "differs")
    }
