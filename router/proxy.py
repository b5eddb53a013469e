"""One inference request from first byte to last.

    read → parse → prompt → rank → book → send → relay → settle

Each attempt is booked on its worker before a byte is sent and released whatever happens. A
client that leaves cancels the task that serves it, wherever that is: the connection to the worker
is closed on the way out, and the worker stops.
"""

import asyncio
import logging
from dataclasses import dataclass
from time import monotonic

from router.errors import (
    DoorError,
    Gone,
    Headers,
    Refused,
    WorkerError,
    WrongMethod,
    answer_for,
)
from router.exchange import (
    ClientLeft,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    request_id,
    upstream_head,
)
from router.fleet import Fleet, Pool, Worker
from router.metrics import Metrics, PoolMetrics
from router.openai import Endpoint, parse
from router.presence import Presence
from router.relay import CutShort, Relay
from router.usage import Usage
from strategies.base import Candidate, Decision, Outcome, Prompt
from strategies.load import Booking

log = logging.getLogger("warmroute.requests")

#: The status under which a client that left is counted, as nginx has it.
CLIENT_LEFT = 499


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that has been read, understood and decided."""

    endpoint: Endpoint
    scope: Scope
    identity: bytes
    body: bytes
    pool: Pool
    prompt: Prompt
    decision: Decision
    started: float
    metrics: PoolMetrics


class _Attempt:
    """The job on one worker: what is learned of it on the way."""

    def __init__(self, job: _Job, choice: Candidate, booking: Booking) -> None:
        self.job = job
        self.choice = choice
        self.worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
        self.booking = booking
        self.booked_at = monotonic()
        self.first_byte_s: float | None = None
        self.status = 0
        self.ok = False

    def on_first_byte(self) -> None:
        """The prompt is computed, if this is a stream."""
        now = monotonic()
        self.first_byte_s = now - self.booked_at
        self.worker.load.first_byte(self.booking, now)
        if self.job.prompt.stream:
            self.job.metrics.first_byte.observe(now - self.job.started)

    def failed(self, error: WorkerError) -> None:
        """The worker did, not the client."""
        if isinstance(error, Gone):
            self.worker.attention.set()  # dead or dying: a probe will tell
        self.job.metrics.failed(self.worker.name, error.kind)
        log.warning("worker %s: %s: %s", self.worker.name, error.kind, error)

    def settle(self, usage: Usage) -> None:
        """The attempt is over: tell everyone who learns from it."""
        job, choice = self.job, self.choice
        now = monotonic()
        if self.status:
            job.metrics.answered(self.worker.name, self.status)
            job.metrics.duration.observe(now - job.started)
        outcome = Outcome(self.ok, self.first_byte_s, usage.prompt, usage.cached)
        job.pool.strategy.settled(job.prompt, choice, outcome, now)
        if usage.prompt is None:
            return
        job.pool.prompts.learn(job.prompt, usage.prompt)
        job.metrics.prompt_tokens.inc(usage.prompt)
        if usage.cached is not None:
            job.metrics.cached_tokens.inc(usage.cached)
            job.metrics.predicted_tokens.inc(min(choice.held_tokens, usage.prompt))
        self._learn_pace(usage.prompt, usage.cached)

    def _learn_pace(self, prompt_tokens: int, cached: int | None) -> None:
        if not self.job.prompt.stream or self.first_byte_s is None:
            return  # the first byte came with the last token
        if cached is None:
            cached = min(self.choice.held_tokens, prompt_tokens)
        pace = self.worker.pace
        waited = self.booking.waited_s / self.booking.pace_factor
        pace.observe(waited + pace.guess(prompt_tokens - cached, cached), self.first_byte_s)

    def log(self) -> None:
        """One line a request, without a word of the prompt."""
        job = self.job
        log.info(
            "id=%s path=%s status=%d worker=%s decision=%r tokens=%d seconds=%.3f",
            job.identity.decode(),
            job.endpoint.path,
            self.status,
            self.worker.name,
            _explain(job.decision.reason, self.choice).decode(),
            job.prompt.tokens,
            monotonic() - job.started,
        )


class Proxy:
    """Serves every inference endpoint."""

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        *,
        body_limit: int,
        attempts: int,
        log_requests: bool = False,
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._body_limit = body_limit
        self._attempts = attempts
        self._log_requests = log_requests

    async def serve(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused."""
        identity = request_id(scope["headers"])
        try:
            job = await self._read(endpoint, scope, receive, identity)
        except DoorError as error:
            await self._refuse(send, error, identity)
            return
        except ClientLeft:
            self._metrics.refused.labels("499").inc()
            return
        try:
            with Presence(receive):
                await self._try_each(job, send)
        except DoorError as error:
            await self._refuse(send, error, identity)
        except (ClientLeft, CutShort):
            pass  # nobody to tell, or told already; without an end, the connection is closed

    async def _refuse(self, send: Send, error: DoorError, identity: bytes) -> None:
        self._metrics.refused.labels(str(error.status)).inc()
        await refuse(send, error, identity)

    async def _read(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, identity: bytes
    ) -> _Job:
        """Everything up to the decision."""
        if scope["method"] != "POST":
            raise WrongMethod(scope["method"], "POST")
        headers: Headers = scope["headers"]
        body = await read_body(headers, receive, self._body_limit)
        started = monotonic()
        request = parse(endpoint, body, header(headers, b"content-type"))
        pool, request.model, workers = self._fleet.route(request.model)
        prompt = pool.prompts.prompt(endpoint, request)
        decision = pool.strategy.rank(prompt, workers, started)
        metrics = self._metrics.pools[pool.name]
        metrics.decided(decision.reason)
        self._metrics.overhead.observe(monotonic() - started)
        return _Job(endpoint, scope, identity, body, pool, prompt, decision, started, metrics)

    async def _try_each(self, job: _Job, send: Send) -> None:
        """Take candidates in order until one answers; only what surely did not begin moves on."""
        candidates = job.decision.candidates[: self._attempts]
        for place, choice in enumerate(candidates, start=1):
            is_last = place == len(candidates)
            with job.pool.booked(job.prompt, choice) as booking:
                attempt = _Attempt(job, choice, booking)
                try:
                    if await self._attempt(attempt, send, is_last=is_last):
                        return
                except WorkerError as error:
                    attempt.failed(error)
                    if is_last or not error.safe:
                        raise answer_for(error, attempt.worker.name) from None

    async def _attempt(self, attempt: _Attempt, send: Send, *, is_last: bool) -> bool:
        """Ask one worker and relay its answer; False if it is full and another may be asked."""
        job, worker = attempt.job, attempt.worker
        head = upstream_head(job.scope, worker.host, worker.api_key, job.identity, len(job.body))
        usage = Usage()
        try:
            connection = await worker.upstream.ask(head, job.body)
            try:
                attempt.status = (await connection.head()).status
                if attempt.status == 503 and not is_last:
                    # vLLM admits no more: that is backpressure, not a failure.
                    attempt.status = 0
                    job.metrics.failed(worker.name, "full")
                    await connection.chunk()
                    return False
                relay = Relay(job.endpoint, connection, attempt.on_first_byte)
                await relay.run(send, _added(job, attempt.choice))
                usage = relay.usage()
                attempt.ok = attempt.status < 500
            finally:
                worker.upstream.release(connection)
        except Refused as error:
            worker.lost(str(error))
            raise
        except CutShort as cut:
            attempt.failed(cut.error)
            raise
        except asyncio.CancelledError:
            attempt.status = CLIENT_LEFT
            raise
        finally:
            attempt.settle(usage)
            if self._log_requests:
                attempt.log()
        return True


def _added(job: _Job, choice: Candidate) -> Headers:
    """Header fields that say what happened."""
    return [
        (b"x-request-id", job.identity),
        (b"x-warmroute-worker", choice.worker.name.encode()),
        (b"x-warmroute-decision", _explain(job.decision.reason, choice)),
    ]


def _explain(reason: str, choice: Candidate) -> bytes:
    cost = choice.cost
    return b"%b; held=%d; wait=%.3fs; prefill=%.3fs; crowd=%.3fs; pressure=%.3fs" % (
        reason.encode(),
        choice.held_tokens,
        *cost,
    )


async def refuse(send: Send, error: DoorError, identity: bytes) -> None:
    """Answer with an error of our own."""
    body = error.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", identity),
        *error.headers,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
