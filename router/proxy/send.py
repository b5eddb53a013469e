"""Sends a leased request to its worker, and relays the answer."""

import asyncio
from collections.abc import Callable

from router.api.request import with_field
from router.dispatch.lease import Lease
from router.dispatch.request import InferenceRequest
from router.fleet.worker import Worker
from router.http.exchange import Exchange
from router.http.headers import Incoming, Numbered, upstream_head
from router.prompt.forward import with_ids
from router.proxy.access_log import log_answer
from router.proxy.decision_headers import decision_fields
from router.proxy.relay import AnswerCut, Relay
from router.responses.owners import Responses
from router.settings.model import Settings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Redirected, WorkerError
from router.upstream.faults import NO_FAULT
from router.upstream.pool import NOT_SENT as UNSENT
from router.upstream.pool import Upstream
from router.upstream.usage import NO_USAGE, Usage


class Sender:
    """Gets leased requests answered, each by its worker. One instance for the whole router."""

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    def change(self, settings: Settings) -> None:
        """Apply new settings to the requests to come."""
        self._log_requests = settings.logs.requests

    async def send(self, lease: Lease, exchange: Exchange) -> bool:
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

        Return as `send`. Raise WorkerError, AnswerCut.
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
            added = decision_fields(request, exchange, worker, lease.choice, status)
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
            naming = self._responses.naming(lease.worker, exchange.tenant)
            if not await naming.begins(connection.begins):
                relay.naming = naming


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
