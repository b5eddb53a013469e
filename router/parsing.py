"""Turns what a client sent into a plea: a request with its pool, its prompt and its workers."""

from time import monotonic
from typing import Final

from router.errors import Headers
from router.exchange import Exchange
from router.fleet import Fleet
from router.headers import header
from router.job import Plea
from router.lengths import cuts, within
from router.limits import Limits
from router.openai import Endpoint, Request, parse
from router.preempting import resumable
from router.sessions.sessions import Sessions
from router.sessions.visit import Visit
from router.settings import LimitSettings
from router.slices import rest
from router.tokenizing import LARGE, Tokenizing

#: The header in which SageMaker's clients send what OpenAI calls `prompt_cache_key`.
PREFIX_AWARE_ID: Final = b"x-amzn-sagemaker-prefix-aware-id"


class Parsing:
    """Parses requests. One instance for the whole router."""

    def __init__(self, fleet: Fleet, tokenizing: Tokenizing) -> None:
        self._fleet = fleet
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

    async def read(self, endpoint: Endpoint, exchange: Exchange) -> Plea:
        """Parse the request, make its prompt, and find the workers that could answer."""
        started, body, route = monotonic(), exchange.body, self._fleet.route
        cut: bool | None = None
        request, large = self._read_here(endpoint, exchange)
        if request is None or large:
            request, cut = await self._read_large(endpoint, exchange, request)
        salts = exchange.salts
        salt = b"" if salts is None else salts.give(endpoint, request, exchange.tenant)
        pool, request.model, workers = route(request.model, in_session=True)
        if not large and self._tokenizing.is_short(pool.prompts, request, body):
            made = self._tokenizing.made(pool.prompts, endpoint, request, body)
        else:
            make, tenant = self._tokenizing.make, exchange.tenant
            made = await make(pool.prompts, endpoint, request, body, tenant, large=large)
            pool, _, workers = route(request.model, in_session=True)  # may have changed
        if pool.consult is not None and made.prompt.blocks:
            await pool.consult(made.prompt, [worker.name for worker in workers])
            pool, _, workers = route(request.model, in_session=True)
        visit = None if pool.sessions is None else _visit(pool.sessions, exchange)
        if visit is None:
            workers = workers or pool.eligible(request.model)  # without any, this raises
        return Plea(
            endpoint,
            exchange,
            pool,
            within(made.prompt, workers, body, cut=cut),
            made.along,
            workers=workers,
            started=started,
            visit=visit,
            salt=salt,
            streams=request.stream is True,
            resumable=resumable(endpoint, request),
        )

    def _read_here(self, endpoint: Endpoint, exchange: Exchange) -> tuple[Request | None, bool]:
        """Parse and check a request, and return whether it is large.

        If it is, it is not checked completely, or is not even parsed. Raises BadRequest.
        """
        body, headers = exchange.body, exchange.headers
        if len(body) > LARGE:
            return None, True
        kind = header(headers, b"content-type") if endpoint.form else b""
        request = parse(endpoint, body, kind, texts=self._fleet.reads_prompts)
        return request, not self.check(endpoint, request, headers, here=True)

    async def _read_large(
        self, endpoint: Endpoint, exchange: Exchange, parsed: Request | None
    ) -> tuple[Request, bool]:
        """Parse and check a large request in a thread; return also whether its prompt may be cut.

        `parsed`: it was parsed already. Raises BadRequest.
        """
        body, headers = exchange.body, exchange.headers
        kind = header(headers, b"content-type") if endpoint.form else b""
        texts = self._fleet.reads_prompts

        def read() -> tuple[Request, bool]:
            request = parsed or parse(endpoint, body, kind, texts=texts)
            rest()
            self.check(endpoint, request, headers)
            rest()
            return request, not endpoint.form and cuts(body)

        return await self._tokenizing.reading.run(read, len(body), exchange.tenant)

    async def read_again(self, before: Plea) -> Plea:
        """Parse a request again, and keep what it has been through."""
        plea = await self.read(before.endpoint, before.exchange)
        plea.goes_on_from(before)
        return plea


def holds(plea: Plea) -> bool:
    """Whether its tokens are still made the way its model's tokens are."""
    return plea.along is None or plea.pool.prompts.holds(plea.along)


def _visit(sessions: Sessions, exchange: Exchange) -> Visit | None:
    """Return the request's part in a session, if it has one."""
    visit = exchange.visit(sessions)
    if visit is not None and visit.begins and exchange.commented:
        return None  # its pool had no sessions before, and its client cannot be told an id now
    if visit is not None:
        visit.owner = exchange.tenant
        exchange.part = visit
    return visit
