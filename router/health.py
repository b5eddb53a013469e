"""Watches every worker: is it there, which models does it serve, how large is its KV cache.

Off the request path, one task a worker. A worker is sent requests only after its first probe has
succeeded and its models are known.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from router.fleet import Fleet, Pool, State, Worker
from router.settings import HealthSettings

log = logging.getLogger("warmroute.health")

#: Seconds between two looks at a ready worker's models: adapters are loaded while it runs.
REDISCOVER_S = 30.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class Health:
    """Probes a fleet while the context is open."""

    def __init__(self, fleet: Fleet, settings: HealthSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Probe everyone once, for at most the probe's timeout, and go on in the background."""
        self._client = httpx.AsyncClient(timeout=self._settings.timeout, trust_env=False)
        first: list[asyncio.Event] = []
        for pool in self._fleet.pools:
            for worker in pool.workers:
                probed = asyncio.Event()
                first.append(probed)
                self._tasks.append(asyncio.create_task(self._watch(pool, worker, probed)))
        await asyncio.gather(*(probed.wait() for probed in first))

    async def stop(self) -> None:
        """End all probes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    async def _watch(self, pool: Pool, worker: Worker, probed: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        good = bad = 0
        discovered = -REDISCOVER_S
        while True:
            worker.attention.clear()
            problem = await self._probe(worker)
            if problem is None and not (worker.ready and loop.time() - discovered < REDISCOVER_S):
                problem = await self._discover(worker)
                discovered = loop.time()
            good, bad = (good + 1, 0) if problem is None else (0, bad + 1)
            self._judge(pool, worker, good, bad, problem)
            probed.set()
            worker.upstream.expire(loop.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval):
                    await worker.attention.wait()
                    bad = self._settings.fall  # a failed request has counted already

    def _judge(self, pool: Pool, worker: Worker, good: int, bad: int, problem: str | None) -> None:
        """Change the worker's state if the last probes say so."""
        if problem is None:
            came_back = worker.state is not State.READY
            if came_back and (good >= self._settings.rise or worker.state is State.UNKNOWN):
                if worker.state is State.DOWN:
                    # It was gone, and most likely restarted: its cache is empty.
                    pool.strategy.forget(worker.name)
                worker.state = State.READY
                worker.reason = "ready"
                log.info("worker %s is ready: %s", worker.name, ", ".join(sorted(worker.models)))
        elif worker.state is not State.DOWN and (bad >= self._settings.fall or not worker.ready):
            worker.state = State.DOWN
            worker.reason = problem
            log.warning("worker %s is down: %s", worker.name, problem)

    async def _probe(self, worker: Worker) -> str | None:
        """Ask for its health; return what is wrong, or None."""
        try:
            answer = await self._get(worker, "/health")
        except httpx.HTTPError as error:
            return _sentence(error)
        if answer.is_success:
            return None
        return f"/health answered {answer.status_code}"

    async def _discover(self, worker: Worker) -> str | None:
        """Learn its models and the size of its cache; return what is wrong, or None."""
        try:
            if not worker.fixed_models:
                answer = await self._get(worker, "/v1/models")
                answer.raise_for_status()
                models = msgspec.json.decode(answer.content, type=_Models)
                worker.models = frozenset(model.id for model in models.data)
            if not worker.fixed_kv_tokens:
                answer = await self._get(worker, "/metrics")
                worker.kv_tokens = next(_kv_tokens(answer.text), None)
        except httpx.HTTPStatusError as error:
            return f"/v1/models answered {error.response.status_code}"
        except httpx.HTTPError as error:
            return _sentence(error)
        except (ValueError, RecursionError) as error:  # not JSON, not models, or not UTF-8
            return f"/v1/models answered something else than a list of models: {error}"
        return None

    async def _get(self, worker: Worker, path: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {worker.api_key}"} if worker.api_key else {}
        return await self._client.get(worker.url + path, headers=headers)


def _kv_tokens(metrics: str) -> Iterator[int]:
    """Find tokens a KV cache holds in vLLM's `vllm:cache_config_info`; nothing if not there."""
    with suppress(ValueError):
        for family in text_string_to_metric_families(metrics):
            if family.name != "vllm:cache_config_info":
                continue
            for sample in family.samples:
                blocks = sample.labels.get("num_gpu_blocks", "")
                size = sample.labels.get("block_size", "")
                if blocks.isdigit() and size.isdigit():
                    yield int(blocks) * int(size)


def _sentence(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
