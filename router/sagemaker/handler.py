"""SageMaker's paths: turns invocations into ordinary requests, or into session operations."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from router.api.endpoints import ENDPOINTS, Endpoint, Prompted
from router.api.error_shapes import model_error
from router.api.errors import APIError, BadRequest, Stopping, UnknownModel, UnknownPath, perhaps
from router.api.request import NotJson
from router.dispatch.lease import CLIENT_LEFT
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.http.exchange import Exchange, date_line
from router.http.headers import header
from router.proxy.proxy import Proxy
from router.sagemaker.invocation import (
    Act,
    Invocation,
    PromptShape,
    read,
    understand,
    with_model,
    without_session,
)
from router.sagemaker.paths import Operation, Route, is_name
from router.sagemaker.response import InvocationExchange
from router.sagemaker.sessions import (
    WorkerRefusal,
    close_call,
    open_call,
    open_there,
    sessions_of,
)
from router.sagemaker.sigv4 import Verifier
from router.sessions.ids import Names
from router.sessions.use import SessionUse
from router.settings.model import Settings

T = TypeVar("T")

_COMPONENT = b"x-amzn-sagemaker-inference-component"
_TARGET = b"x-amzn-sagemaker-target-model"
#: What AWS calls components in its errors.
_COMPONENTS = "Inference component"
log = logging.getLogger("warmroute.requests")

_CHAT = ENDPOINTS["/v1/chat/completions"]
_COMPLETION = ENDPOINTS["/v1/completions"]
#: Endpoints of the container's own path, for workers that keep sessions themselves.
_OWN_CHAT = Endpoint("/invocations", Prompted.CHAT, answers=True)
_OWN_COMPLETION = Endpoint("/invocations", Prompted.COMPLETION, answers=True)


class SageMaker:
    """Serves every path of SageMaker's runtime API."""

    def __init__(self, fleet: Fleet, proxy: Proxy, settings: Settings) -> None:
        self._fleet = fleet
        self._proxy = proxy
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        self._models = {
            endpoint.name: endpoint.model or "" for endpoint in settings.sagemaker.endpoints
        }
        self._names = Names.of(settings.session)
        self._verifier = Verifier(settings.sagemaker.sigv4)

    async def serve(self, route: Route, exchange: Exchange) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused."""
        exchange.served = True
        try:
            await self._apart(exchange, partial(self._verifier.check, exchange))
            await self._serve(route, exchange)
        except WorkerRefusal as refusal:
            self._proxy.refused(exchange, 424, "the worker refused")
            error = model_error(refusal.original_status, refusal.message)
            identity = b"x-amzn-requestid: %b\r\n" % exchange.identity
            exchange.answer(error.status, error.fields() + identity + date_line(), error.body)
        except APIError as error:
            self._refuse(exchange, error)
        except asyncio.CancelledError:  # while a session was looked for, or opened
            if exchange.left and not exchange.started:
                self._proxy.refused(exchange, CLIENT_LEFT, "the client left")
            elif not exchange.started:
                self._refuse(exchange, Stopping())
        except Exception:
            log.exception("internal error, id=%s", exchange.identity.decode())
            self._refuse(exchange, APIError("Internal error in the router."))

    async def admits(self, route: Route, exchange: Exchange) -> bool:
        """Whether a request may be answered by other code; if not, refuse it here."""
        try:
            self._verifier.check(exchange)
            await self._model(route, exchange)
        except APIError as error:
            self._refuse(exchange, error)
            return False
        return True

    async def _apart(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Do something with the body, in a thread if it is large. Raises what that raises."""
        return await self._proxy.apart(len(exchange.body), exchange.tenant, work)

    async def _name(self, exchange: Exchange, model: str) -> None:
        """Add the model to a body that names none. Raises BadRequest."""
        try:
            exchange.body = await self._apart(exchange, partial(_naming, exchange.body, model))
        except NotJson:
            await exchange.read_laxly()
            naming = partial(_naming, exchange.body, model, exchange.seen)
            exchange.body, exchange.seen = await self._apart(exchange, naming), b""

    def _refuse(self, exchange: Exchange, error: APIError) -> None:
        self._proxy.refused(exchange, error.status, error.message)
        if not exchange.started:
            exchange.refuse(error)

    async def _serve(self, route: Route, exchange: Exchange) -> None:
        if exchange.codings:  # after its signature, which is over the bytes that were sent
            await exchange.decode()
        model = await self._model(route, exchange)
        if route.operation is Operation.ASYNC:
            raise BadRequest(
                "Asynchronous invocations are not served here: use InvokeEndpoint, or"
                " InvokeEndpointWithResponseStream for long answers."
            )
        if route.operation is Operation.OPENAI:
            endpoint = ENDPOINTS.get(route.path)
            if endpoint is None:
                raise UnknownPath(exchange.path)
            exchange.keyed = True  # AWS credentials are of no use to a worker
            if model and not endpoint.form:
                await self._name(exchange, model)
            await self._proxy.serve(endpoint, exchange)
            return
        reading = partial(understand, route, exchange, model, self._names)
        try:
            invocation = await self._apart(exchange, reading)
        except NotJson:
            await exchange.read_laxly()
            invocation = await self._apart(exchange, reading)
        if invocation.act is Act.OPEN:
            await open_call(self._fleet, invocation)
        elif invocation.act is Act.CLOSE:
            await close_call(self._fleet, invocation)
        else:
            await self._infer(invocation)

    async def _model(self, route: Route, exchange: Exchange) -> str:
        """Return the model named by the path or a header; empty if none is.

        An inference component is a model, or a name in the settings; otherwise it is as unknown as
        an endpoint that is not listed. Raises BadRequest, UnknownModel.
        """
        if route.name and not is_name(route.name):
            raise BadRequest(
                "The endpoint's name is not valid: 1 to 63 letters and digits, with hyphens"
                " between them.",
                param="EndpointName",
            )
        target = header(exchange.headers, _TARGET).decode("latin-1")
        if target:
            await self._fleet.seek(target)
        if target and self._fleet.described(target) is None:
            raise UnknownModel(target, self._fleet.meant(target))
        component = route.component or header(exchange.headers, _COMPONENT).decode("latin-1")
        if component not in self._models:
            await self._fleet.seek(component)
        if component and self._fleet.described(component) is not None:
            component_model = component
        else:
            component_model = self._named(component, _COMPONENTS)
        endpoint_model = self._named(route.name, "Endpoint")
        return target or component_model or endpoint_model

    def _named(self, name: str, what: str) -> str:
        """Return the model that the settings give to a name.

        Raises BadRequest if the settings list only other names.
        """
        if name and self._models and name not in self._models:
            hint = perhaps(self._meant(name, what))
            raise BadRequest(f"{what} {name} not found.{hint}", param="EndpointName")
        return self._models.get(name, "")

    def _meant(self, name: str, what: str) -> str:
        """Return the name that was probably meant; empty if none is like it."""
        alike = [known for known in self._models if known.casefold() == name.casefold()]
        if not alike and what == _COMPONENTS:
            return self._fleet.meant(name)
        return alike[0] if alike else next(iter(self._models)) if len(self._models) == 1 else ""

    async def _infer(self, invocation: Invocation) -> None:
        """Answer a prompt, in its session if it has one."""
        pool, model, workers = await self._fleet.find(invocation.model, in_session=True)
        payload, chat = invocation.payload, invocation.payload.shape is PromptShape.CHAT
        if pool.stateful:  # a container reads its own dialect
            endpoint = _OWN_CHAT if chat else _OWN_COMPLETION
            stripped = partial(without_session, invocation.exchange.body, invocation.exchange.seen)
            body = await self._apart(invocation.exchange, stripped)
        else:
            endpoint, body = (_CHAT if chat else _COMPLETION), payload.body
        if invocation.model and payload.model is None:
            body = await self._apart(
                invocation.exchange, partial(with_model, body, invocation.model)
            )
        visit = await _visit(invocation, pool, model, workers)  # undone from here on, if it fails
        converts = payload.shape is PromptShape.INPUTS and not (payload.streams or pool.stateful)
        answer = InvocationExchange(
            invocation.exchange, body, visit, framed=invocation.streams, converts=converts
        )
        answer.stateful = pool.stateful
        await self._proxy.serve(endpoint, answer)
        if answer.session is not None and answer.failed:
            await answer.session.undo()


async def _visit(
    invocation: Invocation, pool: Pool, model: str, workers: list[Worker]
) -> SessionUse | None:
    """Return the request's visit to a session, if any. Raises an APIError, and Refusal."""
    if invocation.opens and pool.stateful:
        return await open_there(invocation, pool, model, workers, answered=True)
    if invocation.opens:
        return sessions_of(pool).opening(invocation.session, invocation.call)
    if invocation.session is None:
        return None
    if invocation.plain:
        return None if pool.sessions is None else pool.sessions.named(invocation.session)
    return sessions_of(pool).within(invocation.session)


def _naming(body: bytes, model: str, seen: bytes = b"") -> bytes:
    """Add the model to a body that names none. Raises BadRequest, NotJson."""
    return body if not body.strip() or read(body, seen=seen).model else with_model(body, model)
