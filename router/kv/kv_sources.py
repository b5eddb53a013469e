"""Where a worker publishes its KV events: the settings say so, or the worker does."""

from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from router.fleet.worker import Worker
from router.settings.model import WorkerSettings
from router.upstream.client import Inquiries, NoAnswer

#: Seconds a worker may take to answer where it publishes KV events.
PATIENCE_S = 5.0
#: The flag that makes vLLM publish KV events.
FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq",'
    '"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}\''
)


class Published(NamedTuple):
    """Where one engine publishes its KV events."""

    rank: int
    endpoint: str
    replay: str | None
    topic: str


class _Said(msgspec.Struct):
    """The answer of `GET /kv_event_sources` for one data-parallel rank."""

    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    replay_endpoint: str | None = None
    topic: str = ""


def configured(settings: WorkerSettings | None) -> Published | None:
    """Return where the settings say that a worker publishes, if they do."""
    if settings is None or settings.kv_events is None:
        return None
    return Published(0, settings.kv_events, settings.kv_replay, "")


async def published_by(inquiries: Inquiries, worker: Worker) -> list[Published]:
    """Ask a worker where it publishes. Raises NoAnswer, which says how to fix it."""
    answer = await inquiries.ask(worker, "/kv_event_sources", patience=PATIENCE_S)
    if answer.status == 404:
        raise NoAnswer("it has no /kv_event_sources; set kv_events, and start vLLM with " + FLAG)
    try:
        said = msgspec.json.decode(answer.body, type=dict[str, _Said]) if answer.good else {}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise NoAnswer("/kv_event_sources answered something else than sources") from None
    published = [
        Published(
            int(rank),
            _reached(one.endpoint, worker),
            _reached(one.replay_endpoint, worker) if one.replay_endpoint else None,
            one.topic,
        )
        for rank, one in sorted(said.items())
        if rank.isdecimal() and one.enable_kv_cache_events and one.publisher == "zmq"
    ]
    if not published:
        raise NoAnswer("it publishes none; start vLLM with " + FLAG)
    return published


def _reached(endpoint: str, worker: Worker) -> str:
    """Replace a wildcard address in `endpoint` by the worker's host."""
    host = urlsplit(worker.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    for anywhere in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - not bound here
        endpoint = endpoint.replace(f"//{anywhere}:", f"//{host}:")
    return endpoint
