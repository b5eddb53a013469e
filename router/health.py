"""Watches every worker: is it there, which models does it serve, how large is its KV cache.

Off the request path, one task a worker. A worker is sent requests only after its first probe has
succeeded and its models are known.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from router.fleet import Fleet, State, Worker
from router.settings import HealthSettings
from router.tls import explain

log = logging.getLogger("warmroute.health")

#: Seconds between two looks at a ready worker's models: adapters are loaded while it runs.
REDISCOVER_S = 30.0


#: Tokens that no KV cache holds.
LARGEST_CACHE = 1 << 40
#: Bytes of a document that a worker is asked for; vLLM's metrics are some 100 KiB.
LARGEST = 8 << 20


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


class _Unwell(Exception):
    """What is wrong with a worker, in words."""


class Health:
    """Probes a fleet from `start` to `stop`."""

    def __init__(self, fleet: Fleet, settings: HealthSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clients: dict[ssl.SSLContext | None, httpx.AsyncClient] = {}
        self._watches: dict[Worker, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Probe everyone once, each for at most three timeouts, and go on in the background."""
        await self.meet(self._fleet.workers)

    async def meet(self, workers: Iterable[Worker]) -> None:
        """Probe these once, and go on in the background: they are in the fleet, or will be."""
        first: list[asyncio.Event] = []
        for worker in workers:
            probed = asyncio.Event()
            first.append(probed)
            self._watches[worker] = asyncio.create_task(self._watch(worker, probed))
        await asyncio.gather(*(probed.wait() for probed in first))

    async def part(self) -> None:
        """Watch nobody who is not in the fleet any more."""
        gone = set(self._watches).difference(self._fleet.workers)
        tasks = [self._watches.pop(worker) for worker in gone]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        used = {worker.upstream.tls for worker in self._fleet.workers}
        unused = [self._clients.pop(tls) for tls in set(self._clients).difference(used)]
        if unused:
            await asyncio.sleep(self._settings.timeout)  # a probe may be under way
        for client in unused:
            await client.aclose()

    def change(self, settings: HealthSettings) -> None:
        """Other settings, from the next probe of each worker on."""
        before, self._settings = self._settings, settings
        if settings.interval != before.interval:  # nobody sleeps for as long as it used to be
            for worker, task in list(self._watches.items()):
                task.cancel()
                self._watches[worker] = asyncio.create_task(self._watch(worker, asyncio.Event()))

    async def stop(self) -> None:
        """End all probes."""
        tasks = self._watches.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.aclose()

    async def _watch(self, worker: Worker, probed: asyncio.Event) -> None:
        try:
            await self._probe(worker, probed)
        finally:
            probed.set()  # nobody waits for a probe that never comes

    async def _probe(self, worker: Worker, probed: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        good = bad = 0
        while True:
            worker.attention.clear()
            try:
                await self._get(worker, "/health")
                if not worker.ready or loop.time() - worker.discovered_at >= REDISCOVER_S:
                    await self._discover(worker)
                    worker.discovered_at = loop.time()
                problem = None
            except _Unwell as unwell:
                problem = str(unwell)
            good, bad = (good + 1, 0) if problem is None else (0, bad + 1)
            self._judge(worker, good, bad, problem)
            probed.set()
            worker.upstream.expire()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval):
                    await worker.attention.wait()
                    # A request has failed there: one failed probe more is enough.
                    good, bad = 0, self._settings.fall

    def _judge(self, worker: Worker, good: int, bad: int, problem: str | None) -> None:
        """Change the worker's state if the last probes say so."""
        if problem is None:
            if not worker.ready and (good >= self._settings.rise or worker.state is State.UNKNOWN):
                if worker.state is State.DOWN:
                    # It was gone, and most likely restarted: its cache is empty.
                    self._fleet.restarted(worker)
                worker.become(State.READY, "ready")
                log.info("worker %s is ready: %s", worker.name, ", ".join(sorted(worker.models)))
        elif not worker.ready or bad >= self._settings.fall:
            if worker.state is not State.DOWN or worker.reason != problem:
                log.warning("worker %s is down: %s", worker.name, problem)
            worker.become(State.DOWN, problem)

    async def _discover(self, worker: Worker) -> None:
        """Learn its models and the size of its cache. Raises _Unwell."""
        if not worker.fixed_models:
            worker.models = _models(await self._get(worker, "/v1/models"))
        if not worker.fixed_kv_tokens:
            with suppress(_Unwell):  # routing does without
                worker.kv_tokens = _kv_tokens(await self._get(worker, "/metrics"))

    def _client(self, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
        """Return the client for all workers that are spoken to with this."""
        if tls not in self._clients:
            self._clients[tls] = httpx.AsyncClient(
                timeout=None,  # noqa: S113 - a probe has one for all of it
                limits=httpx.Limits(max_connections=None),  # or dead workers would block others
                trust_env=False,
                verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            )
        return self._clients[tls]

    async def _get(self, worker: Worker, path: str) -> bytes:
        """Fetch a small document, all of it within the probe's timeout. Raises _Unwell."""
        headers = {b"authorization": b"Bearer " + worker.api_key} if worker.api_key else {}
        # Ended by the probe's own timeout in the middle of a handshake, a connection would stay
        # open until it is collected as garbage.
        connecting = httpx.Timeout(None, connect=0.9 * self._settings.timeout)
        body = b""
        try:
            async with (
                asyncio.timeout(self._settings.timeout),
                self._client(worker.upstream.tls).stream(
                    "GET", worker.url + path, headers=headers, timeout=connecting
                ) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > LARGEST:
                        raise _Unwell(f"{path} answered more than {LARGEST} bytes")
        except (TimeoutError, httpx.TimeoutException):
            raise _Unwell(f"{path} did not answer in time") from None
        except _Unwell:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the next probe must come
            reason = _why(error, secure=worker.upstream.tls is not None)
            raise _Unwell(f"{path}: {reason}") from None
        if not answer.is_success:
            raise _Unwell(f"{path} answered {answer.status_code}")
        return body


def _why(error: Exception, *, secure: bool) -> str:
    """Say what went wrong between us and a worker."""
    reason = explain(error) or str(error) or type(error).__name__
    if secure and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        # In TLS 1.3 we have shaken hands before it looks at what we show, and many servers close
        # without saying what they missed.
        reason += " (it may ask for a certificate that it does not get)"
    return reason


def _models(body: bytes) -> dict[str, dict[str, Any]]:
    """Read a list of models, by name. Raises _Unwell."""
    try:
        models = {model["id"]: model for model in msgspec.json.decode(body, type=_Models).data}
        msgspec.convert(list(models), list[str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        raise _Unwell("/v1/models answered something else than a list of models") from None
    return models


def _kv_tokens(metrics: bytes) -> int | None:
    """Find the tokens a KV cache holds in vLLM's `vllm:cache_config_info`; None if not there."""
    with suppress(Exception):  # the parser raises whatever odd text makes it stumble over
        for family in text_string_to_metric_families(metrics.decode(errors="replace")):
            for sample in family.samples if family.name == "vllm:cache_config_info" else ():
                tokens = int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
                if 0 < tokens < LARGEST_CACHE:
                    return tokens
    return None
