"""Watches every worker: whether it is up, which models it serves, how large its KV cache is.

Runs off the request path, one task per worker. A worker gets requests only after its first probe
has succeeded and its models are known.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from heapq import nsmallest
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from router.fleet.abilities import ModelSearch, lacking
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries, InquiryAnswer, NoAnswer, NotAsked
from router.fleet.worker import ProbeState, Worker
from router.settings.fleet import HealthSettings

log = logging.getLogger("warmroute.health")

#: Seconds after which a ready worker is asked for its models again, as adapters come and go.
REDISCOVER_S = 30.0

#: Seconds since a worker was heard last, in answers or probes, in which it counts as busy if it
#: takes connections but lets its probes wait, or refuses them while it answers requests. A front
#: process that tokenizes a huge prompt, or waits for a kernel to be compiled, takes some ten.
MAX_BUSY_S = 30.0

#: What is most likely wrong if a worker lets nobody in, without and with a key for it.
_KEY_HINT = (": does it need a key, the worker's `api_key` in a file?", ": is its `api_key` wrong?")

#: Levels of lists and objects in the description of a model; vLLM's has three. More could not be
#: told to clients.
MAX_DEPTH = 64

#: Most lists and objects in a worker's list of models; vLLM's has three for each model. The longest
#: takes a tenth of a second to read.
MAX_LIST_VALUES = 1 << 17

#: Most models of a worker that the log names, and most characters of each.
NAMED, NAME_LENGTH = 8, 200

#: A KV cache of this many tokens or more is taken for a mistake.
MAX_CACHE_TOKENS = 1 << 40

#: Called with a ready worker whose models were just read, and whether it was not ready before, or
#: is another process now.
Notice = Callable[[Worker, bool], None]


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


class Health:
    """Probes a fleet from `start` to `stop`."""

    def __init__(
        self, fleet: Fleet, settings: HealthSettings, inquiries: Inquiries, notice: Notice
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._inquiries = inquiries
        self._notice = notice
        self._seeking = ModelSearch(self._read_again)
        fleet.asks = self._seeking.seek
        self._watches: dict[Worker, asyncio.Task[None]] = {}
        self._busy = set[Worker]()

    async def start(self) -> None:
        """Probe all workers once, each for at most five timeouts, then go on in the background."""
        await self.meet(self._fleet.workers)

    async def meet(self, workers: Iterable[Worker]) -> None:
        """Probe workers that are, or will be, in the fleet once, then go on in the background."""
        first: list[asyncio.Event] = []
        for worker in workers:
            probed = asyncio.Event()
            first.append(probed)
            self._watches[worker] = asyncio.create_task(self._watch(worker, probed))
        await asyncio.gather(*(probed.wait() for probed in first))

    async def part(self) -> None:
        """Stop watching workers that are not in the fleet any more."""
        gone = set(self._watches).difference(self._fleet.workers)
        tasks = [self._watches.pop(worker) for worker in gone]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def change(self, settings: HealthSettings) -> None:
        """Apply new settings from the next probe of each worker on."""
        before, self._settings = self._settings, settings
        if settings.interval != before.interval:  # restart tasks that sleep for the old interval
            for worker, task in list(self._watches.items()):
                task.cancel()
                self._watches[worker] = asyncio.create_task(self._watch(worker, asyncio.Event()))

    async def stop(self) -> None:
        """End all probes."""
        self._seeking.stop()
        tasks = self._watches.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, worker: Worker, probed: asyncio.Event) -> None:
        try:
            await self._probe(worker, probed)
        finally:
            probed.set()  # so that `meet` never waits for a probe that will not come

    async def _probe(self, worker: Worker, probed: asyncio.Event) -> None:
        good, bad, lacked, since = 0, 0, "", inf
        while True:
            worker.attention.clear()
            was_ready, before = worker.ready, worker.discovered_at
            process = worker.started
            try:
                problem = await self._look(worker)
            except NotAsked as lacking:  # the router's own lack: the worker's state stays
                if lacked != str(lacking):
                    lacked = str(lacking)
                    log.error("worker %s cannot be probed: %s", worker.name, lacked)
            else:
                good, bad, lacked = (good + 1, 0, "") if problem is None else (0, bad + 1, "")
                since = min(since, monotonic()) if problem and problem.refused else inf
                state = worker.state
                self._judge(worker, good, bad, problem, since)
                if worker.state is not ProbeState.READY or worker.state is not state:
                    self._fall_back(worker)
                if worker.ready and worker.discovered_at != before:
                    self._notice(worker, not was_ready or worker.started != process)
            probed.set()
            worker.upstream.expire()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.interval):
                    await worker.attention.wait()
                    # A request has failed there: one more failed probe takes it out.
                    good, bad = 0, self._settings.fall

    async def _look(self, worker: Worker) -> NoAnswer | None:
        """Probe a worker once; return what is wrong, if anything is. Raises NotAsked."""
        now = asyncio.get_running_loop().time
        try:
            await self._get(worker, "/health")
            if not worker.ready or now() - worker.discovered_at >= REDISCOVER_S:
                await self._discover(worker)
                worker.discovered_at = now()
            elif worker.sleeps is not None and worker.answered_at <= worker.probed_at:
                # It has begun no answer since the last probe: it may have been put to sleep.
                with suppress(NoAnswer):
                    worker.sleeps = _sleeps(await self._get(worker, "/metrics"))
        except NotAsked:
            raise
        except NoAnswer as lacking:
            return lacking
        worker.probed_at = monotonic()
        return None

    def _judge(
        self, worker: Worker, good: int, bad: int, problem: NoAnswer | None, since: float
    ) -> None:
        """Change the worker's state if the last probes demand it.

        They are answered with errors `since` that time.
        """
        ready = worker.state is ProbeState.READY
        if problem is None and worker.sleeps:
            self._become(worker, ProbeState.ASLEEP, "its engine is put to sleep")
        elif problem is None:
            if not ready and (good >= self._settings.rise or worker.state is not ProbeState.DOWN):
                worker.become(ProbeState.READY, "ready")
                log.info("worker %s is ready: %s", worker.name, _some(worker.models))
        elif not ready or bad >= self._settings.fall:
            now = monotonic()
            served = ready or worker.state is ProbeState.BUSY
            heard, lately = worker.heard_at(now), now - MAX_BUSY_S
            # SGLang's `/health` answers 503 if no token was computed in time.
            works = problem.late or (problem.refused and heard > since)
            busy = served and works and heard > lately
            self._become(worker, ProbeState.BUSY if busy else ProbeState.DOWN, str(problem))

    def _become(self, worker: Worker, state: ProbeState, reason: str) -> None:
        """Take a worker out: its probes fail, or it is asleep."""
        if worker.state is state and (worker.reason == reason or state is ProbeState.BUSY):
            return
        log.warning("worker %s is %s: %s", worker.name, state.value, reason)
        if state is ProbeState.ASLEEP:  # vLLM empties its prefix cache then
            self._fleet.restarted(worker)
        elif state is ProbeState.DOWN:
            worker.sleeps = None
        worker.become(state, reason)

    def _fall_back(self, worker: Worker) -> None:
        """Send requests to busy workers, if too few workers pass their probes.

        Workers that let their probes wait are most likely busy, not gone, if they take connections
        and were heard a moment ago. To refuse every request, or to overload the rest with all of
        them, would be worse: Envoy's panic threshold is the model.
        """
        if worker.state is ProbeState.BUSY:
            self._busy.add(worker)
        self._busy = {busy for busy in self._busy if busy.state is ProbeState.BUSY}
        for pool in self._fleet.pools if self._busy else ():
            passing = [other for other in pool.taking if other.state is ProbeState.READY]
            few = len(passing) < self._settings.ejection.panic * len(pool.workers)
            for busy in self._busy.intersection(pool.workers):
                needed = few or not all(any(m in w.models for w in passing) for m in busy.models)
                if needed and not busy.ready:
                    log.warning(
                        "pool %s: %d of %d workers pass their probes; requests still go to worker"
                        " %s, which takes connections and was heard a moment ago",
                        *(pool.name, len(passing), len(pool.workers), busy.name),
                    )
                busy.ready = needed

    async def _discover(self, worker: Worker) -> None:
        """Read the worker's models, its cache size and its start time. Raises NoAnswer.

        Once after it was away, also what else it serves.
        """
        if not worker.fixed_models:
            worker.models = _models(await self._get(worker, "/v1/models"))
        metrics = _NO_METRICS
        with suppress(NoAnswer):  # routing works without metrics
            metrics = _parse_metrics(await self._get(worker, "/metrics"))
            worker.gpu_tokens, worker.reuses = metrics.gpu_tokens, metrics.reuses
            worker.sleeps = metrics.sleeps
        restarted = _restarted(worker, metrics.started)
        if restarted:  # its cache is empty, earlier failures are void
            self._fleet.restarted(worker)
            worker.breaker.restarted(monotonic())
        if restarted or worker.started is None:  # several processes may answer in turns
            worker.started = metrics.started
        if restarted or not (worker.ready and worker.told):
            await self._ask_served(worker)
        self._fleet.compare(worker)

    async def _ask_served(self, worker: Worker) -> None:
        """Ask the worker which endpoints it serves, if requests could go to others instead."""
        worker.lacks, worker.told = frozenset(), False
        if any(worker in pool.workers and len(pool.workers) < 2 for pool in self._fleet.pools):
            return

        async def ask(path: str) -> InquiryAnswer:
            return await self._inquiries.ask(worker, path, patience=self._settings.timeout)

        with suppress(NoAnswer):  # what is not known is taken as possible
            worker.lacks = await lacking(ask)
            worker.told = True

    async def _read_again(self, worker: Worker) -> None:
        """Read the models of a ready worker out of turn. Raises NoAnswer."""
        models = _models(await self._get(worker, "/v1/models"))
        if worker.ready and not worker.fixed_models:
            worker.models = models
            self._fleet.compare(worker)
            self._notice(worker, False)

    async def _get(self, worker: Worker, path: str) -> bytes:
        """Fetch a small document completely within the probe's timeout. Raises NoAnswer."""
        answer = await self._inquiries.ask(worker, path, patience=self._settings.timeout)
        if not answer.good:
            hint = _KEY_HINT[bool(worker.api_key)] if answer.status in {401, 403} else ""
            raise NoAnswer(f"{path} answered {answer.status}{hint}", refused=True)
        return answer.body


def _some(models: Collection[str]) -> str:
    """Return the first few names; a worker may have a thousand adapters."""
    names = [name[:NAME_LENGTH] for name in nsmallest(NAMED, models)]
    more = len(models) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _restarted(worker: Worker, started: float | None) -> bool:
    """Whether a worker whose process began at `started` most likely was restarted.

    One that was down was, unless it tells the same time as before. A probe or two may have missed
    that another was down, but then it tells a later time.
    """
    before = worker.started
    if worker.state is ProbeState.DOWN:
        return started is None or started != before
    return started is not None and before is not None and started > before


def _models(body: bytes) -> dict[str, dict[str, Any]]:
    """Parse the answer of `/v1/models`; return the models by name. Raises NoAnswer."""
    if body.count(b"{") + body.count(b"[") > MAX_LIST_VALUES:
        raise NoAnswer(f"/v1/models answered more than {MAX_LIST_VALUES} lists and objects")
    try:
        models = {model["id"]: model for model in msgspec.json.decode(body, type=_Models).data}
        msgspec.convert(list(models), list[str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        raise NoAnswer("/v1/models answered something else than a list of models") from None
    if _deep(models):
        raise NoAnswer(f"/v1/models answered more than {MAX_DEPTH} levels of lists and objects")
    return models


def _deep(models: dict[str, dict[str, Any]]) -> bool:
    """Whether any description is deeper than `MAX_DEPTH`; found without recursion."""
    level: list[Any] = list(models.values())
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, list | dict)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    return any(isinstance(value, list | dict) for value in level)


class _WorkerMetrics(NamedTuple):
    """What a worker's metrics say."""

    gpu_tokens: int | None = None
    """Capacity in tokens of the KV cache on its GPU."""
    started: float | None = None
    """Start time of its process, in seconds since 1970."""
    reuses: bool | None = None
    """Whether its prefix cache is on."""
    sleeps: bool | None = None
    """Whether an engine of it is asleep."""


_NO_METRICS = _WorkerMetrics()
_CACHE, _STARTED = b"vllm:cache_config_info", b"process_start_time_seconds"
_AWAKE = re.compile(
    rb'^vllm:engine_sleep_state\{[^}\n]*\bsleep_state="awake"[^}\n]*\} ([01](?:\.0)?)$',
    re.MULTILINE,
)
#: Most lines of each that are parsed (there is one per data-parallel rank), and most bytes of one,
#: four times those of vLLM: the parser's time grows with the square of a line's length.
_MAX_LINES, _MAX_LINE_BYTES = 16, 4 << 10


def _lines(metrics: bytes, name: bytes) -> list[bytes]:
    """Return the first lines that begin with `name`; others are not even told apart."""
    begins, lines = b"\n" + name, list[bytes]()
    metrics = b"\n" + metrics
    at = metrics.find(begins)
    while at >= 0 and len(lines) < _MAX_LINES:
        line = metrics[at + 1 : at + 2 + _MAX_LINE_BYTES].partition(b"\n")[0]
        if len(line) <= _MAX_LINE_BYTES:
            lines.append(line)
        at = metrics.find(begins, at + 1)
    return lines


def _parse_metrics(metrics: bytes) -> _WorkerMetrics:
    """Parse `vllm:cache_config_info` and the process start time that prometheus_client exports."""
    lines = _lines(metrics, _STARTED) + _lines(metrics, _CACHE)
    text = b"\n".join(lines).decode(errors="replace")
    gpu_tokens, started, reuses = None, None, None
    with suppress(Exception):  # the parser may raise anything on malformed text
        for family in text_string_to_metric_families(text):
            if family.name == _CACHE.decode():
                gpu_tokens = gpu_tokens or next(filter(None, map(_size, family.samples)), None)
                labels = {sample.labels.get("enable_prefix_caching") for sample in family.samples}
                reuses = None if labels == {None} else labels == {"True"}
            elif family.name == _STARTED.decode():
                times = (sample.value for sample in family.samples if sample.value > 0)
                started = next(times, None)
    return _WorkerMetrics(gpu_tokens, started, reuses, _sleeps(metrics))


def _sleeps(metrics: bytes) -> bool | None:
    """Return whether an engine is asleep by `vllm:engine_sleep_state`; None if it is not told.

    vLLM writes it for each engine (`v1/metrics/loggers.py`).
    """
    awake = _AWAKE.findall(metrics) if b"vllm:engine_sleep_state{" in metrics else ()
    return any(float(value) == 0 for value in awake) if awake else None


def _size(sample: Sample) -> int | None:
    with suppress(LookupError, ValueError):
        tokens = int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
        if 0 < tokens < MAX_CACHE_TOKENS:
            return tokens
    return None
