"""Sends a request to the worker it is booked on, and relays the answer."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

from router.api.request import with_field
from router.dispatch.request import Job
from router.dispatch.scheduler import Scheduler
from router.fleet.worker import Worker
from router.http.headers import Incoming, Numbered, upstream_head
from router.observe.access_log import log_answer
from router.prompt.forward import with_ids
from router.proxy.attempt import FULL, Attempt
from router.proxy.decision_headers import decision_fields
from router.proxy.relay import CutShort, Relay
from router.responses.owners import Responses
from router.settings.model import Settings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Redirected, WorkerError
from router.upstream.faults import BAD_REQUEST, NOT_FOUND, NOT_IMPLEMENTED
from router.upstream.pool import Upstream
from router.upstream.usage import NO_USAGE

#: Too many requests.
TOO_MANY: Final = 429
#: The statuses after which another worker may be asked.
_PASSED: Final = frozenset((FULL, BAD_REQUEST, NOT_FOUND, NOT_IMPLEMENTED))
#: The worker rejects the key. If the key is the router's own, every request there ends like this.
_NOT_US: Final = frozenset((401, 403))


class Sending:
    """Gets attempts answered, each by its worker. One instance for the whole router."""

    def __init__(self, scheduler: Scheduler, responses: Responses) -> None:
        self._scheduler = scheduler
        self._responses = responses

    def change(self, settings: Settings) -> None:
        """Apply new settings to the requests to come."""
        self._log_requests = settings.logs.requests

    async def send(self, attempt: Attempt, *, others: bool) -> bool:
        """Ask one worker and relay its answer; False if it cannot take it.

        That is only so if `others` may be asked, or if the request may wait for one that is full.
        """
        job, worker = attempt.job, attempt.worker
        exchange, upstream = job.exchange, worker.upstream  # a reload may replace the latter
        asks = await self._as_shown(attempt)
        usage, relay = NO_USAGE, Relay(job.endpoint, exchange)
        try:
            body = _body(job, worker)
            path, key = job.endpoint.path.encode(), worker.api_key
            head = upstream_head(path, asks, worker.host, key, len(body))
            connection = await _answered(attempt, upstream, head, body)
            try:
                status = connection.head.status
                self._feel(attempt, status)
                if status in _PASSED and self._passes(attempt, connection, others=others):
                    return False
                attempt.on_answer(status)
                begun = self._answers(attempt, connection)
                if status >= 400 or job.stores:
                    await self._note(attempt, connection, relay)
                told = decision_fields(job, worker, attempt.choice, status)
                if not relay.begin(connection, told):
                    await relay.flow(connection, begun)
                if relay.naming is not None:
                    await relay.naming.ends()
                usage = relay.usage()
                attempt.relayed(relay, usage)
            finally:
                upstream.release(connection)
        except WorkerError as error:
            attempt.failed(error)
            raise
        except CutShort as cut:
            attempt.failed(cut.error)
            raise
        except asyncio.CancelledError as cancelled:
            if relay.complete():  # a stream's last event was sent: clients close then
                usage = relay.usage()
                attempt.relayed(relay, usage)
            else:
                attempt.cancelled(cancelled)
            raise
        finally:
            attempt.settle(usage)
            if self._log_requests and not attempt.preempted:
                log_answer(job, worker, attempt.choice, attempt.status, attempt.failure)
        return True

    def _answers(
        self, attempt: Attempt, connection: UpstreamConnection
    ) -> Callable[[], None] | None:
        """Note that an answer begins; return what is to be called when more than comments comes."""
        begun = None
        if connection.commented:
            begun = partial(self._begun, attempt)
        else:
            attempt.on_first_byte(errs=connection.errs)
        self._scheduler.freed()
        return begun

    async def _note(self, attempt: Attempt, connection: UpstreamConnection, relay: Relay) -> None:
        """Restore the session after a failure; note which response the worker keeps, now or as soon
        as the answer tells."""
        exchange = attempt.job.exchange
        if attempt.status >= 400:
            await exchange.undo()
        elif 200 <= attempt.status < 300:
            naming = self._responses.naming(attempt.worker, exchange.tenant)
            if not await naming.begins(connection.begins):
                relay.naming = naming

    def may_wait(self, job: Job) -> bool:
        """Whether a request that full workers refuse may wait for its turn, if it has time left."""
        return not job.bound and self._scheduler.limit > 0

    def _passes(self, attempt: Attempt, connection: UpstreamConnection, *, others: bool) -> bool:
        """Whether a full worker's 503 is kept from the client, as a worker can be asked later.

        So is the refusal of a worker that has not got what others may have, such as the model.
        """
        status = connection.head.status
        if status != FULL:
            return others and attempt.lacks(status, connection.begins)
        passes = others or self.may_wait(attempt.job)
        if passes:
            attempt.full()
        return passes

    def _begun(self, attempt: Attempt) -> None:
        """Note that more than comments has come of an answer that began with them."""
        attempt.on_first_byte()
        self._scheduler.freed()

    async def _as_shown(self, attempt: Attempt) -> Incoming:
        """Return the request as its worker may see it."""
        job = attempt.job
        shown: Incoming = job.exchange
        if job.visit is not None:
            shown = await attempt.bound(job.visit)
        return Numbered(shown, job.preemptions) if job.preemptions else shown

    def _feel(self, attempt: Attempt, status: int) -> None:
        """Note what a status says about the worker's room, its key or its models."""
        rests, worker = self._scheduler.rests, attempt.worker
        if status == FULL:
            attempt.refused()
        if status in {FULL, TOO_MANY} or (status in _NOT_US and worker.api_key):
            worker.rest = rest = rests.refused(worker, monotonic())
            rest.why, rest.full = f"it answered {status}", status == FULL
            rest.here = worker.load.here - 1  # without this one, which is still booked
        elif status == NOT_FOUND:
            worker.doubt(attempt.job.prompt.model, monotonic())
        elif rests and status < 400:
            rests.answered(worker, attempt.booked_at)


async def _answered(
    attempt: Attempt, upstream: Upstream, head: bytes, body: bytes
) -> UpstreamConnection:
    """Send the request and wait for the first byte. Raises Preempted, WorkerError."""
    try:
        if attempt.movable:
            async with asyncio.timeout(None) as patience:
                attempt.asks(patience)
                connection = await upstream.ask(head, body, attempt.sends)
        else:
            connection = await upstream.ask(head, body, attempt.sends)
    except (TimeoutError, WorkerError):
        if not attempt.preempted:
            raise
        raise attempt.why() from None
    finally:
        attempt.stays()
    if attempt.preempted:  # at the very moment when the answer began
        connection.close()
        upstream.release(connection)
        raise attempt.why()
    if connection.head.redirects:
        connection.close()
        upstream.release(connection)
        raise Redirected(connection.head)
    return connection


def _body(job: Job, worker: Worker) -> bytes:
    """Return the body for the worker: with a cache salt, and token ids if the worker takes them."""
    body = job.exchange.body
    if job.salt:
        body = with_field(body, job.salt)
    if job.along and worker.takes_ids and job.pool.prompts.holds(job.along):
        return with_ids(body, job.along.listed)
    return body
