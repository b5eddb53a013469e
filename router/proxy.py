"""One inference request from first byte to last.

    read → parse → prompt → rank → book → send → relay → settle

Each attempt is booked on its worker before a byte is sent and released whatever happens. A
client that leaves cancels the task that serves it, wherever that is: the connection to the worker
is closed on the way out, and the worker stops.
"""

import asyncio
from contextlib import suppress
from time import monotonic

from router.attempt import CLIENT_LEFT, FULL, Attempt, Job, log
from router.errors import BodyTooLarge, DoorError, NoWorker, WorkerError, WrongMethod, answer_for
from router.exchange import (
    ClientLeft,
    Receive,
    Scope,
    Send,
    discard_body,
    header,
    read_body,
    request_id,
    upstream_head,
)
from router.fleet import Fleet, Worker
from router.metrics import Metrics
from router.openai import Endpoint, parse
from router.presence import Presence
from router.relay import CutShort, Relay
from router.usage import Usage


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
            with Presence(receive):
                await self._try_each(job, send)
        except BodyTooLarge as error:
            self._refused(scope, identity, error.status, error.message)
            await refuse(send, error, identity, more=True)
            await discard_body(scope["headers"], receive)
            await send({"type": "http.response.body", "body": b""})
        except DoorError as error:
            self._refused(scope, identity, error.status, error.message)
            await refuse(send, error, identity)
        except ClientLeft as left:
            if not left.asked_worker:
                self._refused(scope, identity, CLIENT_LEFT, "the client left")
        except CutShort:
            pass  # told in the stream; or without an end, so that the connection is closed
        except Exception:  # noqa: BLE001 - a fault of ours: say so in the client's own shape
            log.exception("a fault of the router's own, id=%s", identity.decode())
            with suppress(RuntimeError):  # the answer had begun; without an end it is cut
                await refuse(send, DoorError("The router failed."), identity)

    async def _read(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, identity: bytes
    ) -> Job:
        """Everything up to the decision."""
        if scope["method"] != "POST":
            raise WrongMethod(scope["method"], "POST")
        headers = scope["headers"]
        body = await read_body(headers, receive, self._body_limit)
        started = monotonic()
        request = parse(endpoint, body, header(headers, b"content-type"))
        pool, request.model, workers = self._fleet.route(request.model)
        prompt = pool.prompts.prompt(endpoint, request)
        decision = pool.strategy.rank(prompt, workers, started)
        metrics = self._metrics.pools[pool.name]
        metrics.decided(decision.reason)
        self._metrics.overhead.observe(monotonic() - started)
        return Job(endpoint, scope, identity, body, pool, prompt, decision, started, metrics)

    async def _try_each(self, job: Job, send: Send) -> None:
        """Take candidates in order until one answers; only what surely did not begin moves on.

        Refusals are free. A worker that is full has been asked, and no more than so many are.
        """
        asked = 0
        error: DoorError = NoWorker("No worker is ready any more; please try again.")
        for place, choice in enumerate(job.decision.candidates, start=1):
            worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
            if not worker.ready:
                continue  # lost since the decision
            is_last = asked + 1 >= self._attempts or place == len(job.decision.candidates)
            with job.pool.booked(job.prompt, choice) as booking:
                attempt = Attempt(job, worker, choice, booking)
                try:
                    if await self._attempt(attempt, send, is_last=is_last):
                        return
                    asked += 1
                except WorkerError as failure:
                    error = answer_for(failure, worker.name)
                    if not failure.safe:
                        raise error from None
        raise error

    async def _attempt(self, attempt: Attempt, send: Send, *, is_last: bool) -> bool:
        """Ask one worker and relay its answer; False if it is full and another may be asked."""
        job, worker = attempt.job, attempt.worker
        head = upstream_head(job.scope, worker.host, worker.api_key, job.identity, len(job.body))
        usage = Usage()
        try:
            connection = await worker.upstream.ask(head, job.body)
            try:
                if (await connection.head()).status == FULL and not is_last:
                    attempt.full()
                    return False
                relay = Relay(job.endpoint, connection, attempt.on_first_byte)
                await relay.run(send, attempt.headers())
                usage = relay.usage()
            finally:
                worker.upstream.release(connection)
        except WorkerError as error:
            attempt.failed(error)
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

    def _refused(self, scope: Scope, identity: bytes, status: int, reason: str) -> None:
        """Count, and log, what is answered without a worker's help."""
        self._metrics.refused.labels(str(status)).inc()
        if self._log_requests:
            log.info(
                "id=%s path=%s status=%d reason=%r",
                identity.decode(),
                scope["path"],
                status,
                reason,
            )


async def refuse(send: Send, error: DoorError, identity: bytes, *, more: bool = False) -> None:
    """Answer with an error of our own; `more` leaves the end of the answer to the caller."""
    body = error.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", identity),
        *error.headers,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})
