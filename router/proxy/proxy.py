"""One inference request from first byte to last.

    parse → prompt → acquire a lease (`dispatch/`) → send → relay

A client that disconnects cancels the task that serves it, at whatever step that is. As the task
unwinds, it closes the connection to the worker, which makes the worker stop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

from router.api.endpoints import Endpoint
from router.api.error_shapes import error_event
from router.api.errors import APIError, Stopping
from router.api.request import with_field
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.lease import CLIENT_LEFT, Lease
from router.dispatch.request import InferenceRequest
from router.fleet.fleet import Fleet
from router.fleet.worker import Worker
from router.http.exchange import Exchange
from router.http.headers import Incoming, Numbered, header, upstream_head
from router.http.sse import Comments
from router.observe.metrics import Metrics
from router.prompt.executor import MAX_LOOP_BODY_BYTES, PromptExecutor
from router.prompt.forward import with_ids
from router.proxy.dry_run import DryRun
from router.proxy.parse import RequestReader
from router.proxy.relay import AnswerCut, Relay
from router.responses.owners import Responses
from router.settings.model import Settings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Redirected, WorkerError
from router.upstream.faults import NO_FAULT
from router.upstream.pool import NOT_SENT as UNSENT
from router.upstream.pool import Upstream
from router.upstream.usage import NO_USAGE, Usage
from strategies.cost.load import Booking
from strategies.explain import gives_way, instead, terms, words

log = logging.getLogger("warmroute.requests")

T = TypeVar("T")
Fields = dict[str, str | float]

#: With this header, whatever its value, a client asks for the whole decision.
DECISION: Final = b"x-warmroute-decision"
#: How many of the best workers have their cost in a header then.
MAX_COST_HEADERS = 16


class Proxy:
    """Serves requests to all inference endpoints."""

    def __init__(self, fleet: Fleet, metrics: Metrics, settings: Settings) -> None:
        self._metrics = metrics
        self._tokenizing = PromptExecutor()
        self.responses = Responses(fleet)
        """Which worker has which response."""
        self._parsing = RequestReader(fleet, self._tokenizing, self.responses)
        self.dispatcher = Dispatcher(fleet, metrics, settings, self._parsing.read_again)
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
        except APIError as error:
            self.refused(exchange, error.status, error.message)
            _answer(endpoint, exchange, error)
        except AnswerCut:
            exchange.cut()  # no effect if an error event has ended the stream
        except asyncio.CancelledError:
            if not exchange.left:
                self._stopped(endpoint, exchange)
            elif not exchange.asked:
                self.refused(exchange, CLIENT_LEFT, "the client left")
        except Exception:
            log.exception("internal error, id=%s", exchange.identity.decode())
            _answer(endpoint, exchange, APIError("Internal error in the router."))
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
                    answered = await self._send(lease, exchange)
                finally:
                    if lease.preempted:
                        exchange.asked = False
                    lease.release()
                if not answered:
                    exchange.asked = False
        except BaseException:
            request.abandon()
            raise

    async def _send(self, lease: Lease, exchange: Exchange) -> bool:
        """Ask the worker and relay its answer; return false if the request is to be leased again.

        Then nothing of an answer has reached the client. Raise AnswerCut if some has, but not all.
        """
        request = lease.request
        shown: Incoming = exchange
        if request.session is not None:
            if not await _bound(lease, exchange):
                return False
            shown = request.session.stripped(exchange)
        if request.preemptions:
            shown = Numbered(shown, request.preemptions)
        usage, relay, answered = NO_USAGE, Relay(request.endpoint, exchange), False
        try:
            answered = await self._ask(lease, exchange, shown, relay)
            if answered:
                usage = relay.usage()
                lease.relayed(_flaw(lease, relay, usage))
        except WorkerError as error:
            lease.failed(error)
        except AnswerCut as cut:
            lease.failed(cut.error)
            raise
        except asyncio.CancelledError as cancelled:
            if relay.complete():  # a stream's last event was sent: clients close then
                usage = relay.usage()
                lease.relayed(_flaw(lease, relay, usage))
            else:
                unsent = UNSENT in getattr(cancelled, "__notes__", ())
                lease.cancelled(left=exchange.left, unsent=unsent)
            raise
        finally:
            lease.finished(usage)
            if self._log_requests and not lease.preempted:
                log_answer(lease, exchange)
        return answered

    async def _ask(self, lease: Lease, exchange: Exchange, shown: Incoming, relay: Relay) -> bool:
        """Ask the worker, of which the client's request is `shown`, and relay its answer.

        Return as `_send`. Raise WorkerError, AnswerCut.
        """
        request, worker = lease.request, lease.worker
        upstream = worker.upstream  # a reload may replace it
        body = _body(request, worker, exchange.body)
        path, key = request.endpoint.path.encode(), worker.api_key
        head = upstream_head(path, shown, worker.host, key, len(body))
        connection = await _connected(lease, upstream, head, body)
        if connection is None:
            return False
        try:
            status = connection.head.status
            if lease.retried(status, connection.begins if status >= 400 else b""):
                return False
            lease.answered(status)
            begun: Callable[[], None] | None = None
            if connection.commented:
                begun = lease.first_byte
            else:
                lease.first_byte(errs=connection.errs)
            if status >= 400 or request.stores:
                await self._note(lease, exchange, connection, relay)
            added = _decision_fields(lease, exchange)
            if not relay.begin(connection, added):
                await relay.flow(connection, begun)
            if relay.naming is not None:
                await relay.naming.ends()
        finally:
            upstream.release(connection)
        return True

    async def _note(
        self, lease: Lease, exchange: Exchange, connection: UpstreamConnection, relay: Relay
    ) -> None:
        """Restore the session after a failure; note which response the worker keeps, now or as soon
        as the answer tells."""
        if lease.status >= 400:
            await exchange.undo()
        elif 200 <= lease.status < 300:
            naming = self.responses.naming(lease.worker, exchange.tenant)
            if not await naming.begins(connection.begins):
                relay.naming = naming

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


async def _bound(lease: Lease, exchange: Exchange) -> bool:
    """Bind the request's session to the worker; return false if it is at another by now."""
    bound = False
    try:
        bound = await lease.bind()
    finally:
        if not bound:
            lease.cancelled(left=exchange.left, unsent=True)
            lease.finished(NO_USAGE)
    return bound


async def _connected(
    lease: Lease, upstream: Upstream, head: bytes, body: bytes
) -> UpstreamConnection | None:
    """Send the request and wait for the first byte; return None if it was taken back meanwhile.

    Raise WorkerError if none comes.
    """
    try:
        if lease.movable:
            async with asyncio.timeout(None) as timeout:
                lease.interruptible(timeout)
                connection = await upstream.ask(head, body, lease.sent)
        else:
            connection = await upstream.ask(head, body, lease.sent)
    except (TimeoutError, WorkerError):
        if not lease.preempted:
            raise
        return None
    finally:
        lease.committed()
    redirects = connection.head.redirects
    if lease.preempted or redirects:  # the former at the very moment when the answer began
        connection.close()
        upstream.release(connection)
    if lease.preempted:
        return None
    if redirects:
        raise Redirected(connection.head)
    return connection


def _flaw(lease: Lease, relay: Relay, usage: Usage) -> tuple[int, str]:
    """Return what is wrong with an answer whose status does not say that it is an error."""
    return relay.flaw(usage) if lease.status < 300 else NO_FAULT


def _body(request: InferenceRequest, worker: Worker, body: bytes) -> bytes:
    """Return the body for the worker: with a cache salt, and token ids if the worker takes them."""
    if request.salt:
        body = with_field(body, request.salt)
    along = request.along
    if along and worker.takes_ids and request.pool.prompts.holds(along):
        return with_ids(body, along.listed)
    return body


def _decision_fields(lease: Lease, exchange: Exchange) -> bytes:
    """Return the header lines that tell the client which worker its request went to, and why."""
    request = lease.request
    lines = b"x-request-id: %b\r\nx-warmroute-worker: %b\r\nx-warmroute-decision: %b\r\n" % (
        request.identity,
        lease.worker.label,
        lease.explanation(),
    )
    if request.preemptions:
        lines += b"x-warmroute-preempted: %d\r\n" % request.preemptions
    if request.session is not None:
        lines += request.session.fields(lease.status)
        request.metrics.decided(request.reason)
    return lines + _whole_decision(lease) if header(exchange.headers, DECISION) else lines


def _whole_decision(lease: Lease) -> bytes:
    """Return the reason in words and the cost on each of the best workers, as header lines."""
    decision = lease.request.decision
    why = words(lease.request.prompt, decision)
    why += instead(decision, lease.choice) or gives_way(decision)
    lines = [b"x-warmroute-reason: %b\r\n" % why.encode()]
    for candidate in decision.candidates[:MAX_COST_HEADERS]:
        cost = "; ".join(filter(None, (candidate.worker.name, terms(candidate))))
        lines.append(b"x-warmroute-cost: %b\r\n" % cost.encode())
    return b"".join(lines)


def _answer(endpoint: Endpoint, exchange: Exchange, error: APIError) -> None:
    """Send `error` to the client, if the state of the answer still allows it."""
    if exchange.commented:
        exchange.fail(error_event(endpoint.path, error, exchange.identity), error.message)
    elif not exchange.started:
        exchange.refuse(error)


def log_answer(lease: Lease, exchange: Exchange) -> None:
    """Log an answer that came from a worker, or what went wrong instead."""
    request = lease.request
    fields: Fields = {
        "status": lease.status,
        "worker": lease.worker.name,
        "decision": lease.explanation().decode(),
        "tokens": request.prompt.too_long or request.prompt.tokens,
        "seconds": round(monotonic() - request.started, 3),
    }
    if request.preemptions:
        fields["preempted"] = request.preemptions
    if lease.failure:
        fields["failure"] = lease.failure
    _log(exchange, request.endpoint.path, fields)


def log_relayed(
    exchange: Exchange, worker: Worker, status: int, failure: str | None, seconds: float
) -> None:
    """Log an answer that came from a worker without a decision: only that one could be asked."""
    fields: Fields = {"status": status, "worker": worker.name, "seconds": round(seconds, 3)}
    if failure:
        fields["failure"] = failure
    _log(exchange, exchange.path, fields)


def log_refusal(exchange: Exchange, status: int, reason: str) -> None:
    """Log an answer that came from the router itself."""
    _log(exchange, exchange.path, {"status": status, "reason": reason})


def _log(exchange: Exchange, path: str, more: Fields) -> None:
    """Log fields as a line of text for people, and as they are for machines."""
    fields = {"id": exchange.identity.decode(), "path": path, **exchange.named(), **more}
    text = " ".join(f"{name}={_text(name, value)}" for name, value in fields.items())
    log.info("%s", text, extra={"fields": fields})


def _text(name: str, value: str | float) -> str:
    if name in {"decision", "reason"}:  # words of clients and of third parties
        return repr(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
