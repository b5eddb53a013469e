"""Engines with tiers behind a tiny GPU, and their counts of what came from which tier."""

import json
import pickle
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import msgspec
import zmq
from prometheus_client.parser import text_string_to_metric_families

from strategies.cost.prefill import Held
from strategies.explain import Explanation
from tests.support import Router, until
from tests.vllm.engine import BLOCK, MODEL, command
from tests.vllm.publishing import CHAT, PATIENCE, Publishing, cached, predicted, tokens, words

#: Blocks on a GPU, and in host memory.
GPU, L1 = 40, 80
#: Longest prompt, in tokens.
LONGEST = 1024
#: Bytes per block of the model: keys and values, two layers, 32 numbers of two bytes per token.
BLOCK_BYTES = 2 * 2 * 32 * 2 * BLOCK
#: Flags for a GPU with so few blocks.
TINY = ("--num-gpu-blocks-override", str(GPU), "--max-model-len", str(LONGEST))


@cache
def has(module: str) -> bool:
    """Return whether vLLM's environment has a module."""
    found = command()
    if found is None:
        return False
    asked = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    python = Path(found).parent / "python"
    return subprocess.run([python, "-c", asked], check=False).returncode == 0


class Tiered(Publishing):
    """An engine with tiers behind its GPU."""

    def __init__(self, folder: Path, log: Path, connector: str, **extra: object) -> None:
        """`connector` is vLLM's name of what moves blocks, `extra` are its settings."""
        super().__init__(folder, log, *TINY)
        told = {
            "kv_connector": connector,
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        self.engine.add("--kv-transfer-config", json.dumps(told))

    def counted(self, *names: str) -> Mapping[tuple[str, str], float]:
        """Return its counters with these names."""
        return counters(f"{self.url}/metrics", names)

    def direct(self, text: str, **more: object) -> httpx.Response:
        """Send it a chat, bypassing the router."""
        chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        answer = httpx.post(self.url + CHAT, json={**chat, **more}, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer


class Hits(NamedTuple):
    """Tokens found by tier, in total or since another count."""

    gpu: int = 0
    l1: int = 0
    l2: int = 0

    def since(self, other: "Hits") -> "Hits":
        """Return the difference from an earlier count."""
        return Hits(*(new - old for new, old in zip(self, other, strict=True)))


def counters(url: str, names: tuple[str, ...]) -> Mapping[tuple[str, str], float]:
    """Return a program's counters with these name prefixes, by name and tier label, if any."""
    text = httpx.get(url, timeout=30).text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(names):
                labels = sample.labels
                place = sample.name, labels.get("tier", labels.get("source", ""))
                found[place] = found.get(place, 0.0) + sample.value
    return found


def start_all(engines: Iterable[Tiered]) -> None:
    """Start all engines at once, as most of the time is spent waiting."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.engine.start(), engines))


def believed(router: Router, one: Tiered, text: str, **more: object) -> Held:
    """Return what the router believes that an engine holds of a chat, without sending it."""
    term = next(term for term in explained(router, text, **more).workers if term.worker == one.name)
    held, l1, l2 = term.held_tokens or 0, term.l1_tokens or 0, term.l2_tokens or 0
    return Held(held - l1 - l2, l1, l2)


def explained(router: Router, text: str, **more: object) -> Explanation:
    """Return what the router would decide now."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = router.http.post("/explain", json={**chat, **more})
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Explanation)


def sent(router: Router, text: str, **more: object) -> httpx.Response:
    """Send a chat through the router, without waiting for it to be idle."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = router.http.post(CHAT, json={**chat, **more}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def reason(answer: httpx.Response) -> str:
    """Return the reason of the decision."""
    return answer.headers["x-warmroute-decision"].partition(";")[0]


def whole(answer: httpx.Response, size: int = BLOCK) -> int:
    """Return how many tokens of the prompt are in full blocks."""
    return tokens(answer) // size * size


def step(one: Tiered) -> None:
    """Have an engine compute something, so that it publishes what happened since its last step."""
    one.direct(f"step {SystemRandom().random()}")


def other_work(one: Tiered, done: Callable[[], bool]) -> None:
    """Have an engine compute prompts that are never asked for again, until a condition holds."""
    for _ in range(12):
        step(one)
        with suppress(AssertionError):
            until(done, 1)
            return
        one.direct(words(Random(SystemRandom().random()), 230))
    until(done, 2)


@contextmanager
def only(router: Router, one: Tiered) -> Iterator[None]:
    """Book the other workers for minutes, so that this one is chosen."""
    others = [worker for worker in router.door.fleet.workers if worker.name != one.name]
    booked = [
        (worker.load, worker.load.book(monotonic(), 100.0, 100, stream=True)) for worker in others
    ]
    try:
        yield
    finally:
        for load, booking in booked:
            load.release(booking, monotonic())


def computed(router: Router, one: Tiered, text: str, **more: object) -> httpx.Response:
    """Have an engine compute a new prompt; wait until the router knows its blocks on the GPU."""
    with only(router, one):
        assert explained(router, text, **more).reason == "cold"
        answer = sent(router, text, **more)
    assert (answer.headers["x-warmroute-worker"], cached(answer)) == (one.name, 0)
    assert tokens(answer) % BLOCK, "another text: of this one the last block is computed always"
    until(lambda: believed(router, one, text, **more).gpu == whole(answer), PATIENCE)
    return answer


def left_gpu(router: Router, one: Tiered, text: str, **more: object) -> None:
    """Let other prompts take its place on the GPU; slower tiers have room for them."""
    other_work(one, lambda: believed(router, one, text, **more).gpu == 0)


def left_l1(router: Router, one: Tiered, text: str, **more: object) -> None:
    """Let other prompts take its place on the GPU and on L1."""
    other_work(one, lambda: believed(router, one, text, **more)[:2] == (0, 0))


def found(
    router: Router,
    one: Tiered,
    text: str,
    where: Held,
    fields: Mapping[str, object] = MappingProxyType({}),
    **more: object,
) -> httpx.Response:
    """Ask for what lies there, after the router has predicted so: it is cached in the end.

    `fields` are added only to the request that is sent.
    """
    with only(router, one):
        plan = explained(router, text, **more)
        assert plan.workers[0].worker == one.name
        assert believed(router, one, text, **more) == where
        answer = sent(router, text, **more, **fields)
    assert answer.headers["x-warmroute-worker"] == one.name
    assert reason(answer) == plan.reason
    assert predicted(answer) == cached(answer) == where.total
    return answer


class Event(NamedTuple):
    """One event of an engine."""

    kind: str
    medium: str
    hashes: list[int]
    fields: dict[str, Any]


class Hearing:
    """A separate subscriber to one engine."""

    def __init__(self, one: Tiered, socket: "zmq.Socket[bytes]") -> None:
        self._one, self._socket = one, socket

    def is_heard(self) -> bool:
        """Return whether an event arrives after a step."""
        step(self._one)
        return bool(self._socket.poll(500))

    def all(self) -> list[Event]:
        """Return all events since the last call, in order; those of the engine's next step are
        included."""
        step(self._one)
        events = []
        while self._socket.poll(1000):
            payload = self._socket.recv_multipart()[2]
            for one in msgspec.msgpack.decode(payload)[1]:
                hashes = one.get("block_hashes", [])
                events.append(Event(one["type"], one.get("medium", ""), hashes, one))
        return events


@contextmanager
def hearing(one: Tiered) -> Iterator[Hearing]:
    """Listen to an engine, from when its events are known to arrive."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(one.events)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        heard = Hearing(one, socket)
        until(heard.is_heard, 60)
        heard.all()
        yield heard


# The names vLLM gives to blocks, computed from tokens (0.32, `v1/core/kv_cache_utils.py`). Each is
# the SHA-256 of the previous name, the block's tokens and nothing else; the first follows the hash
# of `PYTHONHASHSEED`'s value. The input is either pickled or written as canonical CBOR. Events
# contain the last eight bytes.

Write = Callable[[Any], bytes]


def vllm_pickle(tokens: list[int], size: int, seed: str = "0") -> list[bytes]:
    """Return the names of full blocks with `--prefix-caching-hash-algo sha256`."""
    return list(_chain(tokens, size, seed, lambda value: pickle.dumps(value, protocol=5)))


def vllm_cbor(tokens: list[int], size: int, seed: str = "0") -> list[bytes]:
    """Return the names of full blocks with `--prefix-caching-hash-algo sha256_cbor`."""
    return list(_chain(tokens, size, seed, cbor))


def _chain(tokens: list[int], size: int, seed: str, write: Write) -> Iterator[bytes]:
    last = sha256(write(seed)).digest()
    for start in range(0, len(tokens) - size + 1, size):
        last = sha256(write((last, tuple(tokens[start : start + size]), None))).digest()
        yield last


def cbor(value: object) -> bytes:
    """Return canonical CBOR (RFC 8949, section 4.2) of the types needed here. Raises TypeError."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return _head(4, len(value)) + b"".join(_all(value))
    raise TypeError(f"{type(value).__name__} is in no name")


def _all(values: Iterable[object]) -> Iterator[bytes]:
    return (cbor(value) for value in values)


def _head(kind: int, number: int) -> bytes:
    """Return a type with a length or value, in as few bytes as possible."""
    if number < 24:
        return bytes([kind << 5 | number])
    length = next(length for length in range(4) if number < 1 << (8 << length))
    return bytes([kind << 5 | 24 + length]) + number.to_bytes(1 << length, "big")
