"""What the operators' paths show: of this process, or merged from all if there are several."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

import msgspec
from pydantic import TypeAdapter

from router.api.errors import NoWorker
from router.fleet.fleet import Fleet
from router.fleet.worker import Worker
from router.kv.attach import Memories
from router.kv.status import KvStatus, kv_statuses, remote_statuses
from router.observe.exposition import written
from router.observe.merge import families
from router.observe.metrics import Metrics
from router.observe.models import Shown
from router.replicas.channel import Lost, Refusal
from router.tokenizers.state import SourceCase
from router.tokenizers.status import TokenizerStatus

#: Seconds that the other processes have to answer.
ANSWER_TIMEOUT_S = 5.0

Ask = Callable[[str], Awaitable[bytes]]


class WorkerStatus(Shown):
    """One worker, as the router sees it now."""

    name: str
    pool: str
    url: str
    state: str
    """`ready`; `down` or `asleep` by its probes; or though they succeed: `ejected`, as it fails
    what others answer, `draining`, `stuck`, `full`, or `backing_off`: asked last, as its latest
    answers were bad."""
    reason: str
    """Why, and how long an ejection lasts."""
    models: list[str]
    in_flight: int
    """Requests sent there and not ended."""
    wait_seconds: float
    """Booked prefill that is not done yet."""
    kv_tokens: int | None
    """Tokens its KV cache holds; null if nobody has told."""
    kv_tokens_booked: int
    """Tokens of KV cache that the requests in flight take."""
    pace_factor: float
    """Learned prefill time over the initial estimate: 2 is half as fast."""


_statuses = TypeAdapter(list[WorkerStatus])
_tokenizers = TypeAdapter(list[TokenizerStatus])


class View:
    """Metrics, workers and tokenizers."""

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        cases: Callable[[], Sequence[SourceCase]] = tuple,
        memories: Memories | None = None,
    ) -> None:
        """`cases` returns what is known of tokenizers; `memories` know the workers' caches."""
        self._fleet = fleet
        self._metrics = metrics
        self._cases = cases
        self._memories = memories
        self.ask: Ask | None = None
        """Asks for what is merged from all processes; None if this is the only one."""

    async def metrics(self) -> bytes:
        """Return every series in Prometheus' text format."""
        if self.ask is None:
            return await written(self._metrics.registry.collect())
        return await _together(self.ask, "metrics")

    async def workers(self) -> list[WorkerStatus]:
        """Return every worker: its state and what is booked on it."""
        if self.ask is None:
            return self._own()
        return _statuses.validate_json(await _together(self.ask, "workers"))

    async def tokenizers(self) -> list[TokenizerStatus]:
        """Return every source of tokenizers, and whether workers agree with it."""
        if self.ask is None:
            return self._own_tokenizers()
        return _tokenizers.validate_json(await _together(self.ask, "tokenizers"))

    def kv(self) -> list[KvStatus]:
        """Return what this process knows of the workers' KV events."""
        if self._memories is None:
            return []
        return [*kv_statuses(self._memories), *remote_statuses(self._memories)]

    def stores(self) -> dict[str, str]:
        """Return the pools whose shared store is `down` or `wrong` (its content does not match)."""
        kept = self._memories.stores if self._memories else {}
        return {
            name: "down" if store.down else "wrong"
            for name, store in kept.items()
            if store.down or store.wrong
        }

    def blind(self) -> dict[str, int]:
        """Count ready workers whose KV events are missing, for each pool that needs them."""
        if self._memories is None:
            return {}
        return {
            pool.name: sum(w.ready and bool(memory.doubt(w.name)) for w in pool.workers)
            for pool, memory in self._memories.all()
        }

    # What this process reports to the others.

    def own_metrics(self) -> bytes:
        """Return this process's series, for `merge`."""
        return msgspec.msgpack.encode(families(self._metrics.registry.collect()))

    def own_workers(self) -> bytes:
        """Return what this process knows of the workers, for `merge`."""
        return _statuses.dump_json(self._own())

    def own_tokenizers(self) -> bytes:
        """Return what this process knows of tokenizers, for `merge`."""
        return _tokenizers.dump_json(self._own_tokenizers())

    def _own_tokenizers(self) -> list[TokenizerStatus]:
        return [TokenizerStatus.of(case) for case in self._cases()]

    def _own(self) -> list[WorkerStatus]:
        return [_status(p.name, worker) for p in self._fleet.pools for worker in p.workers]


async def _together(ask: Ask, what: str) -> bytes:
    """Ask for what all processes report. Raises NoWorker: a partial sum would look like a drop."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await ask(what)
    except (TimeoutError, Lost, Refusal):
        raise NoWorker("The router's other processes did not answer; please try again.") from None


def _status(pool: str, worker: Worker) -> WorkerStatus:
    state, reason = worker.availability(monotonic())
    return WorkerStatus(
        name=worker.name,
        pool=pool,
        url=worker.url,
        state=state.value,
        reason=reason,
        models=sorted(worker.models),
        in_flight=worker.load.here,
        wait_seconds=worker.wait(),
        kv_tokens=worker.kv_tokens or worker.room_tokens,
        kv_tokens_booked=worker.load.tokens_here,
        pace_factor=worker.pace.factor,
    )
