"""One inference request from first byte to last.

    parse → prompt → acquire a lease (`dispatch/`) → send → relay

A client that disconnects cancels the task that serves it, at whatever step that is. As the task
unwinds, it closes the connection to the worker, which makes the worker stop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from router.api.endpoints import Endpoint
from router.api.error_shapes import error_event
from router.api.errors import DoorError, Stopping
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.lease import CLIENT_LEFT
from router.dispatch.request import InferenceRequest
from router.fleet.fleet import Fleet
from router.http.exchange import Exchange
from router.http.sse import Comments
from router.observe.metrics import Metrics
from router.prompt.executor import MAX_LOOP_BODY_BYTES, PromptExecutor
from router.proxy.access_log import log, log_refusal
from router.proxy.dry_run import DryRun
from router.proxy.parse import RequestReader
from router.proxy.relay import AnswerCut
from router.proxy.send import Sender
from router.responses.owners import Responses
from router.settings.model import Settings
from strategies.cost.booking import Booking

T = TypeVar("T")


class Proxy:
    """Serves requests to all inference endpoints."""

    def __init__(self, fleet: Fleet, metrics: Metrics, settings: Settings) -> None:
        self._metrics = metrics
        self._tokenizing = PromptExecutor()
        self.responses = Responses(fleet)
        """Which worker has which response."""
        self._parsing = RequestReader(fleet, self._tokenizing, self.responses)
        self.dispatcher = Dispatcher(fleet, metrics, settings, self._parse_again)
        self._sender = Sender(self.responses)
        self.large_ended = 0
        """Requests with large bodies that have ended."""
        self.dry_run = DryRun(self.dispatcher, self._parsing, self._tokenizing)
        """What would be decided on requests that are not sent."""
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Apply other settings to requests from now on."""
        self._parsing.change(settings.limits)
        self.responses.change(settings)
        self.dry_run.change(settings)
        self.dispatcher.change(settings)
        self._sender.change(settings)
        self._comment = settings.timeouts.comment
        self._log_requests = settings.logs.requests

    async def serve(
        self,
        endpoint: Endpoint,
        exchange: Exchange,
        relays: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused.

        `relays`, if given, does it for one that needs no decision.
        """
        exchange.served = True
        self.dispatcher.scheduler.in_flight += 1
        try:
            if relays is None:
                await self._begin(endpoint, exchange)
            else:
                await relays()
        except DoorError as error:
            self.refused(exchange, error.status, error.message)
            _answer(endpoint, exchange, error)
        except AnswerCut:
            exchange.cut()  # no effect if an error event has ended the stream
        except asyncio.CancelledError:
            if not exchange.left:
                self._stopped(endpoint, exchange)
            elif not exchange.asked:
                self.refused(exchange, CLIENT_LEFT, "the client left")
        except Exception:  # noqa: BLE001 - our own bug: answer with the endpoint's error format
            log.exception("internal error, id=%s", exchange.identity.decode())
            _answer(endpoint, exchange, DoorError("Internal error in the router."))
        finally:
            self.large_ended += len(exchange.body) > MAX_LOOP_BODY_BYTES
            self.dispatcher.scheduler.in_flight -= 1
            exchange.cut()  # no effect if it has ended

    async def _begin(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Serve a request; if it fails, undo the session that it would have opened."""
        failure: BaseException | None = None
        try:
            await self._serve(endpoint, exchange)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised below
            failure = error
        if failure is None:
            return
        try:
            await exchange.undo()
            raise failure
        finally:
            failure = None  # breaks the reference cycle: traceback, this frame, exception

    async def _serve(self, endpoint: Endpoint, exchange: Exchange) -> None:
        request = await self._parsing.read(endpoint, exchange)
        if request.session is not None:  # before a comment starts the answer, with status 200
            await request.look(request.session)
        if self._comment is not None and request.streams:
            with Comments(exchange, self._comment):
                await self._forward(request, exchange)
        else:
            await self._forward(request, exchange)

    async def _forward(self, request: InferenceRequest, exchange: Exchange) -> None:
        """Send a request to the worker that it is booked on, until one has answered."""
        answered = False
        try:
            while not answered:
                lease = await self.dispatcher.acquire(request)
                exchange.asked = True
                try:
                    answered = await self._sender.send(lease, exchange)
                finally:
                    if lease.preempted:
                        exchange.asked = False
                    lease.release()
                if not answered:
                    exchange.asked = False
        except BaseException:
            request.abandon()
            raise

    async def _parse_again(self, request: InferenceRequest) -> InferenceRequest:
        return await self._parsing.read_again(request)

    def freed_elsewhere(self) -> None:
        """Look at what waits: in another router process, a prefill or an answer has ended."""
        self.dispatcher.scheduler.freed()

    def gives_way(self, booking: Booking) -> None:
        """Preempt a request for one of another process of this router, if it is not too late."""
        self.dispatcher.preempting.give_way(booking)

    async def apart(self, size: int, tenant: str, work: Callable[[], T]) -> T:
        """Do something with a body of `size` bytes, in a thread if it is large. Raises what that
        raises."""
        return (
            work()
            if size <= MAX_LOOP_BODY_BYTES
            else await self._tokenizing.reading.run(work, size, tenant)
        )

    def close(self) -> None:
        """Start no more tokenizing."""
        self._tokenizing.close()

    def _stopped(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Answer a request whose task the stopping server has cancelled."""
        if not exchange.started or exchange.commented:
            error = Stopping()
            self.refused(exchange, error.status, error.message)
            _answer(endpoint, exchange, error)

    def refused(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """Count and log an answer that came from the router itself."""
        self._metrics.refused(status)
        if self._log_requests and exchange is not None:
            log_refusal(exchange, status, reason)


def _answer(endpoint: Endpoint, exchange: Exchange, error: DoorError) -> None:
    """Send `error` to the client, if the state of the answer still allows it."""
    if exchange.commented:
        exchange.fail(error_event(endpoint.path, error, exchange.identity), error.message)
    elif not exchange.started:
        exchange.refuse(error)
