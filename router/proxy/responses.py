"""The paths of single responses: relays what is asked of one to the worker that has it."""

import asyncio
from functools import partial
from time import monotonic

from router.api.endpoints import ENDPOINTS
from router.api.errors import NoWorker
from router.dispatch.lease import CLIENT_LEFT
from router.fleet.pool import Pool
from router.fleet.worker import ProbeState, Worker
from router.http.exchange import Exchange
from router.http.headers import upstream_head
from router.observe.metrics import Metrics
from router.proxy.proxy import Proxy, log_relayed
from router.proxy.relay import AnswerCut, Relay
from router.responses.ids import Stored
from router.settings.model import Settings
from router.upstream.errors import (
    ConnectionLost,
    Redirected,
    Refused,
    Stale,
    WorkerError,
    answer_for,
)

#: Whose errors and events these paths have.
_ENDPOINT = ENDPOINTS["/v1/responses"]


class Retrieval:
    """Serves the paths of single responses."""

    def __init__(self, proxy: Proxy, metrics: Metrics, settings: Settings) -> None:
        self._proxy = proxy
        self._metrics = metrics
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        self._log_requests = settings.logs.requests

    async def serve(self, stored: Stored, exchange: Exchange) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused."""
        await self._proxy.serve(_ENDPOINT, exchange, partial(self._serve, stored, exchange))

    async def _serve(self, stored: Stored, exchange: Exchange) -> None:
        """Ask the worker that has the response, as that is not work for its engine: at once, and
        even if its engine is asleep."""
        if exchange.codings:
            await exchange.decode()
        pool, worker = await self._proxy.responses.only(stored.id, exchange.tenant)
        if not (worker.there or worker.state is ProbeState.ASLEEP):  # its front process is awake
            raise NoWorker("The worker that has the response is not ready; please try again.")
        began, relay = monotonic(), Relay(_ENDPOINT, exchange)
        answered = _Answered(self._metrics, pool, worker)
        exchange.asked = True
        try:
            await answered.relay(stored, exchange, relay)
        except WorkerError as error:
            answered.failed(error)
            raise answer_for(error, worker.name) from None
        except AnswerCut as cut:
            answered.failed(cut.error)
            raise
        except asyncio.CancelledError:
            if exchange.left and not relay.complete():
                answered.status = CLIENT_LEFT
            raise
        finally:
            answered.end()
            if self._log_requests:
                outcome = answered.status, answered.failure
                log_relayed(exchange, worker, *outcome, monotonic() - began)


class _Answered:
    """One question to a worker about a response, and what came of it."""

    def __init__(self, metrics: Metrics, pool: Pool, worker: Worker) -> None:
        self._counts = metrics.pool(pool.name)
        self._worker = worker
        self.status = 0
        """The status of the answer; 0 while there is none."""
        self.failure: str | None = None
        """What went wrong, if anything."""

    async def relay(self, stored: Stored, exchange: Exchange, relay: Relay) -> None:
        """Send the request, and relay the answer. Raises WorkerError, AnswerCut."""
        worker, upstream, body = self._worker, self._worker.upstream, exchange.body
        target, method = (worker.host, worker.api_key, len(body)), exchange.method.encode()
        head = upstream_head(stored.path.encode(), exchange, *target, method=method)
        connection = await upstream.ask(head, body)
        try:
            if connection.head.redirects:
                connection.close()
                raise Redirected(connection.head)
            self.status = connection.head.status
            fields = exchange.identity, worker.label
            added = b"x-request-id: %b\r\nx-warmroute-worker: %b\r\n" % fields
            if not relay.begin(connection, added):
                await relay.flow(connection)
        finally:
            upstream.release(connection)

    def failed(self, error: WorkerError) -> None:
        """Note a failure, and have the worker probed."""
        self.failure = error.kind
        self._counts.failed(self._worker.name, error.kind)
        if isinstance(error, Refused):
            if not error.ours:
                self._worker.lost(str(error))
        elif isinstance(error, ConnectionLost | Stale):
            self._worker.attention.set()

    def end(self) -> None:
        """Count the answer, if there was one."""
        if self.status:
            self._counts.answered(self._worker.name, self.status)
