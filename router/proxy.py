"""One inference request from first byte to last.

    parse → prompt → rank → book → send → relay → settle

Each attempt is booked on its worker before a byte is sent and released whatever happens. A
client that leaves cancels the task that serves it, wherever that is: the connection to the worker
is closed on the way out, and the worker stops.
"""

import asyncio
from time import monotonic

from router.attempt import CLIENT_LEFT, FULL, Attempt, Job, log
from router.errors import DoorError, NoWorker, WorkerError, answer_for
from router.exchange import Exchange
from router.fleet import Fleet, Worker
from router.headers import header, upstream_head
from router.metrics import Metrics
from router.openai import Endpoint, parse
from router.relay import CutShort, Relay
from router.usage import Usage

STOPPING = "The router is being stopped."


class Proxy:
    """Serves every inference endpoint."""

    def __init__(
        self, fleet: Fleet, metrics: Metrics, *, attempts: int, log_requests: bool = False
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._attempts = attempts
        self._log_requests = log_requests

    async def serve(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused."""
        exchange.served = True
        asked = False
        try:
            job = self._read(endpoint, exchange)
            asked = True
            await self._try_each(job)
        except DoorError as error:
            self.refused(exchange, error.status, error.message)
            exchange.refuse(error)
        except CutShort:
            exchange.cut()  # unless it was told in the stream
        except asyncio.CancelledError:
            if not exchange.left:
                self._stopped(exchange)
            elif not asked:
                self.refused(exchange, CLIENT_LEFT, "the client left")
        except Exception:  # noqa: BLE001 - a fault of ours: say so in the client's own shape
            log.exception("a fault of the router's own, id=%s", exchange.identity.decode())
            if not exchange.started:
                exchange.refuse(DoorError("The router failed."))
        finally:
            exchange.cut()  # unless it has ended

    def _read(self, endpoint: Endpoint, exchange: Exchange) -> Job:
        """Everything up to the decision."""
        started = monotonic()
        kind = header(exchange.headers, b"content-type") if endpoint.form else b""
        request = parse(endpoint, exchange.body, kind)
        pool, request.model, workers = self._fleet.route(request.model)
        prompt = pool.prompts.prompt(endpoint, request)
        decision = pool.strategy.rank(prompt, workers, started)
        metrics = self._metrics.pool(pool.name)
        metrics.decided(decision.reason)
        self._metrics.overhead.observe(monotonic() - started)
        return Job(endpoint, exchange, pool, prompt, decision, started, metrics)

    async def _try_each(self, job: Job) -> None:
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
            attempt = Attempt(job, worker, choice)
            try:
                if await self._attempt(attempt, is_last=is_last):
                    return
                asked += 1
            except WorkerError as failure:
                error = answer_for(failure, worker.name)
                if not failure.safe:
                    raise error from None
            finally:
                attempt.release()
        raise error

    async def _attempt(self, attempt: Attempt, *, is_last: bool) -> bool:
        """Ask one worker and relay its answer; False if it is full and another may be asked."""
        job, worker = attempt.job, attempt.worker
        exchange = job.exchange
        head = upstream_head(job.endpoint.path.encode(), exchange, worker.host, worker.api_key)
        usage = Usage()
        try:
            connection = await worker.upstream.ask(head, exchange.body)
            try:
                status = connection.head.status
                if status == FULL and not is_last:
                    attempt.full()
                    return False
                attempt.on_first_byte(status)
                relay = Relay(job.endpoint, exchange)
                if not relay.begin(connection, attempt.fields()):
                    await relay.flow(connection)
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
            if exchange.left:
                attempt.status = CLIENT_LEFT
            raise
        finally:
            attempt.settle(usage)
            if self._log_requests:
                attempt.log()
        return True

    def _stopped(self, exchange: Exchange) -> None:
        """The server will wait no longer for this answer."""
        error = NoWorker(STOPPING)
        if not exchange.started:
            self.refused(exchange, error.status, error.message)
            exchange.refuse(error)

    def refused(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """Count, and log, what is answered without a worker's help."""
        self._metrics.refused(status)
        if self._log_requests and exchange is not None:
            log.info(
                "id=%s path=%s status=%d reason=%r",
                exchange.identity.decode(),
                exchange.path,
                status,
                reason,
            )
