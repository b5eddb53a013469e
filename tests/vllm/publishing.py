"""Engines that publish KV events, and helpers for a router in front of them."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random, SystemRandom

import httpx

from controller.kv_memory import KvMemory
from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from tests.support import MakeRouter, Router, until
from tests.vllm.engine import BLOCK, MODEL, Engine

CHAT = "/v1/chat/completions"
QUICK = {"interval": "200ms", "timeout": "5s", "fall": 1}
#: Most seconds until an engine's events arrive: it publishes with its next step.
PATIENCE = 60.0
WORDS = ["sea", "wind", "boat", "home", "story", "the", "and", "of", "a", "light", "night"]


def late_port() -> int:
    """Return a port that is free, and stays free until it is bound half a minute later.

    Systems hand out other ports meanwhile (from 32768 on).
    """
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Publishing:
    """An engine and the addresses where it publishes."""

    def __init__(self, folder: Path, log: Path, *flags: str, dials: str = "") -> None:
        """With `dials`, the engine connects to that address instead of binding one."""
        self.dials = dials
        self.events = f"tcp://127.0.0.1:{late_port()}"
        self.replay = f"tcp://127.0.0.1:{late_port()}"
        told = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": dials or self.events.replace("127.0.0.1", "*"),
            "replay_endpoint": self.replay.replace("127.0.0.1", "*"),
        }
        dev = {"VLLM_SERVER_DEV_MODE": "1"}
        self.engine = Engine(folder, log, *flags, environment=dev)
        self.url = self.engine.url
        self.name = self.url.partition("://")[2]
        told["topic"] = f"kv@{self.name}@{MODEL}"
        self.engine.add("--kv-events-config", json.dumps(told))


@contextmanager
def publishing(
    model: Path, logs: Path, *flags: str, number: int = 1, dials: str = ""
) -> Iterator[list[Publishing]]:
    """Start this many engines; their output is in the folder `logs`."""
    with ExitStack() as opened:
        made = [
            Publishing(model, logs / f"{one}.log", *flags, dials=dials) for one in range(number)
        ]
        for one in made:
            opened.callback(one.engine.stop)
            one.engine.start()
        yield made


def direct(one: Publishing, text: str) -> httpx.Response:
    """Send a chat to an engine, bypassing the router; return the answer."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = httpx.post(one.url + CHAT, json=chat, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def start(route: MakeRouter, model: Path, *workers: object, **settings: object) -> Router:
    """Start a `kvaware` router, and wait until the engines' tokens are verified."""
    router = route(
        *workers,  # type: ignore[arg-type]  # as a YAML file has them
        strategy={"name": "kvaware", "unconfirmed": "0s"},
        tokenizer=str(model),
        health=QUICK,
        **settings,
    )
    until(lambda: MODEL in router.door.fleet.pools[0].prompts.known, PATIENCE)
    return router


def trusted(router: Router) -> bool:
    """Return whether the events of every engine can be used."""
    workers = router.door.fleet.pools[0].workers
    return {memory(router).doubt(worker.name) for worker in workers} == {""}


def memory(router: Router) -> KvMemory:
    """Return the memory of all engines."""
    ((_, found),) = router.door.memories.pools()
    return found


def held(router: Router, worker: str) -> int:
    """Return how many blocks an engine has announced."""
    return sum(place.blocks for place in memory(router).index.caches() if place.worker == worker)


def ask(router: Router, text: str, **more: object) -> httpx.Response:
    """Send a chat; return the answer."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = router.http.post(CHAT, json={**chat, **more}, timeout=120)
    assert answer.status_code == 200, answer.text
    until(router.idle)
    return answer


def cached(answer: httpx.Response) -> int:
    """Return the cached tokens that the engine reported."""
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def tokens(answer: httpx.Response) -> int:
    """Return the length of the prompt."""
    return int(answer.json()["usage"]["prompt_tokens"])


def predicted(answer: httpx.Response) -> int:
    """Return the cached tokens that the decision predicted."""
    return int(answer.headers["x-warmroute-decision"].split("held=")[1].split(";")[0])


def told(router: Router, answer: httpx.Response, text: str, **more: object) -> None:
    """Wait until the engine has announced all full blocks of that prompt."""
    worker = answer.headers["x-warmroute-worker"]
    whole = tokens(answer) // BLOCK * BLOCK

    def is_there() -> bool:
        (source,) = memory(router).sources[worker]
        return not source.doubt and memory_of(router, text, worker, **more) >= whole

    until(is_there, PATIENCE)


def memory_of(router: Router, text: str, worker: str, **more: object) -> int:
    """Return how many tokens of a chat a worker has on its GPU according to the index, including
    the last token."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    body = json.dumps({**chat, **more}).encode()
    endpoint = ENDPOINTS[CHAT]
    prompt = router.door.fleet.pools[0].prompts.prompt(endpoint, parse(endpoint, body, b""), body)
    index = memory(router).index
    depth = 0
    for size, keys in prompt.blocks.items():
        for bit, blocks in index.find(keys).depths.items():
            if index.cache_of(bit).worker == worker:
                depth = max(depth, blocks * size)
    return depth


def words(random: Random, number: int) -> str:
    """Return this many random words."""
    return " ".join(random.choices(WORDS, k=number))
