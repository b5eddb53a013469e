"""Turns what a client sent into a request with its pool, its prompt and its workers."""

from functools import partial
from time import monotonic
from typing import Final, cast

from router.api.endpoints import RESPONSES, Endpoint
from router.api.errors import Headers, LostPrevious
from router.api.request import NotJson, Request, parse
from router.dispatch.eligibility import cuts, fitted, within
from router.dispatch.preemption import resumable
from router.dispatch.request import InferenceRequest
from router.fleet.fleet import Fleet
from router.http.exchange import Exchange
from router.http.headers import header
from router.prompt.executor import MAX_LOOP_BODY_BYTES, PromptExecutor
from router.prompt.salts import give
from router.proxy.limits import Limits, refuse_engine_fields
from router.responses.ids import asked
from router.responses.owners import Responses, at
from router.runtime.threads import rest
from router.sessions.sessions import Sessions
from router.sessions.use import SessionUse
from router.settings.server import LimitSettings

#: The header in which SageMaker's clients send what OpenAI calls `prompt_cache_key`.
PREFIX_AWARE_ID: Final = b"x-amzn-sagemaker-prefix-aware-id"


class RequestReader:
    """Parses requests. One instance for the whole router."""

    def __init__(self, fleet: Fleet, tokenizing: PromptExecutor, responses: Responses) -> None:
        self._fleet = fleet
        self._responses = responses
        self._tokenizing = tokenizing

    def change(self, limits: LimitSettings) -> None:
        """Apply other limits to requests from now on."""
        self._limits = Limits(limits)

    def check(
        self, endpoint: Endpoint, request: Request, headers: Headers, *, here: bool = False
    ) -> bool:
        """Check a request, and give it what its headers say. Raises BadRequest.

        `here` and the result are as in `Limits.check`.
        """
        whole = self._limits.check(endpoint, request, here=here)
        if named := header(headers, PREFIX_AWARE_ID):
            request.prompt_cache_key = named.decode("latin-1")
        return whole

    async def read(self, endpoint: Endpoint, exchange: Exchange) -> InferenceRequest:
        """Parse the request, make its prompt, and find the workers that could answer."""
        started, route = monotonic(), self._fleet.route
        request, large, cut = self._at_once(endpoint, exchange), False, None
        if request is None:
            large = True
            request, cut = await self._in_thread(endpoint, exchange)
        body = exchange.seen or exchange.body
        only, responses = "", endpoint.prompted is RESPONSES
        if responses and request.previous_response_id:
            only = await self.only(request, exchange.tenant)
        salt = give(endpoint, request, exchange.salt) if exchange.salt else b""
        destination = self._fleet.found(request.model, in_session=True)
        if destination is None:
            destination = await self._fleet.find(request.model, in_session=True)
        pool, model, workers = destination
        request.model = model
        exchange.steers = exchange.trusted or pool.engine_fields
        if not exchange.steers:
            refuse_engine_fields(request)
        if not large and self._tokenizing.is_short(pool.prompts, request, body):
            made = self._tokenizing.made(pool.prompts, endpoint, request, body)
        else:
            make, tenant = self._tokenizing.make, exchange.tenant
            made = await make(pool.prompts, endpoint, request, body, tenant, large=large)
            pool, _, workers = route(request.model, in_session=True)  # may have changed
        if pool.consult is not None and made.prompt.blocks:
            await pool.consult(made.prompt, [worker.name for worker in workers])
            pool, _, workers = route(request.model, in_session=True)
        prompt = made.prompt
        if pool.uneven:
            prompt = fitted(pool, endpoint, request, prompt, body)
            workers = workers if only else pool.eligible(model, prompt.barred, in_session=True)
        session = None if pool.sessions is None else _session(pool.sessions, exchange)
        if only:
            workers = at(pool, model, only)
        elif session is None:  # without any, this raises
            workers = workers or pool.eligible(model, prompt.barred)
        return InferenceRequest(
            endpoint,
            exchange,
            pool,
            within(prompt, workers, body, cut=cut),
            None if exchange.seen else made.along,  # the ids are not of what the worker reads
            identity=exchange.identity,
            tenant=exchange.tenant,
            workers=workers,
            started=started,
            session=session,
            salt=salt,
            streams=request.stream is True and endpoint.events,
            resumable=resumable(endpoint, request),
            only=only,
            stores=responses and bytes(request.store) != b"false",
        )

    async def only(self, request: Request, tenant: str | None) -> str:
        """Return the name of the worker that has the response that a request goes on from.

        Empty if it goes on from none, or from one that is not known here: its worker tells whether
        that is there. Raises LostPrevious, NoWorker.
        """
        response = asked(request.previous_response_id)
        if not response:
            return ""
        place = await self._responses.place(response, tenant, LostPrevious)
        return "" if place is None else place[1].name

    def _at_once(self, endpoint: Endpoint, exchange: Exchange) -> Request | None:
        """Parse and check a body, as nearly all are; None if that takes more. Raises BadRequest."""
        if exchange.codings or len(exchange.body) > MAX_LOOP_BODY_BYTES:
            return None
        request = self._parsed(endpoint, exchange)
        if request is None or not self.check(endpoint, request, exchange.headers, here=True):
            return None
        return request

    async def _in_thread(
        self, endpoint: Endpoint, exchange: Exchange
    ) -> tuple[Request, bool | None]:
        """Do the same for a body that is large, is in a content coding, or has to be read laxly.

        Return also whether its prompt may be cut, if that was looked for. Raises APIError.
        """
        if exchange.codings:
            await exchange.decode()
        if len(exchange.body) <= MAX_LOOP_BODY_BYTES:
            request = self._parsed(endpoint, exchange)
            if request is None:
                await exchange.read_laxly()
                request = self._parse(endpoint, exchange)
            if self.check(endpoint, request, exchange.headers, here=True):
                return request, None
        read, size = partial(self._read, endpoint, exchange), len(exchange.body)
        parsed = await self._tokenizing.reading.run(read, size, exchange.tenant)
        if parsed is None:
            await exchange.read_laxly()
            again = partial(read, again=True)
            parsed = await self._tokenizing.reading.run(again, size, exchange.tenant)
        assert parsed is not None  # noqa: S101 - what was read laxly is read, or refused
        return parsed

    def _read(
        self, endpoint: Endpoint, exchange: Exchange, *, again: bool = False
    ) -> tuple[Request, bool] | None:
        """Parse and check it; None if it has to be read laxly first, which it was if `again`."""
        read = self._parse if again else self._parsed
        request = read(endpoint, exchange)
        if request is None:
            return None
        rest()
        self.check(endpoint, request, exchange.headers)
        rest()
        return request, not endpoint.form and cuts(exchange.seen or exchange.body)

    def _parsed(self, endpoint: Endpoint, exchange: Exchange) -> Request | None:
        """Parse the body; None if it has to be read laxly first."""
        try:
            return self._parse(endpoint, exchange)
        except NotJson:
            if exchange.seen:
                raise
            return None

    def _parse(self, endpoint: Endpoint, exchange: Exchange) -> Request:
        kind = header(exchange.headers, b"content-type") if endpoint.form else b""
        body = exchange.seen or exchange.body
        return parse(endpoint, body, kind, texts=self._fleet.reads_prompts)

    async def read_again(self, request: InferenceRequest) -> InferenceRequest:
        """Parse a request again, as its pool or its tokenizer has changed."""
        return await self.read(request.endpoint, cast("Exchange", request.source))


def _session(sessions: Sessions, exchange: Exchange) -> SessionUse | None:
    """Return the request's part in a session, if it has one."""
    session: SessionUse | None = exchange.session_among(sessions)
    if session is not None and session.begins and exchange.commented:
        return None  # its pool had no sessions before, and its client cannot be told an id now
    if session is not None:
        session.owner = exchange.tenant
        exchange.session = session
    return session
