"""SageMaker's paths: from an invocation to a request like any other, or to a word on a session."""

import asyncio
import logging
from time import monotonic

from router.errors import BadRequest, DoorError, NoWorker, UnknownPath, UnknownSession
from router.exchange import Exchange
from router.fleet import Fleet, Pool, Worker
from router.openai import ENDPOINTS, Endpoint, Prompted
from router.proxy import Proxy
from router.sagemaker import container
from router.sagemaker.answer import Answer, session_answer
from router.sagemaker.errors import model_error
from router.sagemaker.paths import Operation, Route, is_name
from router.sagemaker.payload import Payload, Shape, Word, read, with_model
from router.sagemaker.sigv4 import Verifier
from router.sessions import expiry, ids
from router.sessions.sessions import Sessions
from router.sessions.visit import Visit
from router.settings import Settings
from strategies.base import Outcome, Prompt

log = logging.getLogger("warmroute.requests")

_CHAT = ENDPOINTS["/v1/chat/completions"]
_COMPLETION = ENDPOINTS["/v1/completions"]
#: The container's own path, for workers that keep sessions themselves.
_OWN_CHAT = Endpoint("/invocations", Prompted.CHAT, answers=True)
_OWN_COMPLETION = Endpoint("/invocations", Prompted.COMPLETION, answers=True)
_CLOSED = b"x-amzn-sagemaker-closed-session-id: %b\r\n"
_NEW = b"x-amzn-sagemaker-new-session-id: %b\r\n"


class SageMaker:
    """Serves every path of SageMaker's runtime API."""

    def __init__(self, fleet: Fleet, proxy: Proxy, settings: Settings) -> None:
        self._fleet = fleet
        self._proxy = proxy
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Other settings, for the requests to come."""
        self._models = {one.name: one.model or "" for one in settings.sagemaker.endpoints}
        self._verifier = Verifier(settings.sagemaker.sigv4)

    async def serve(self, route: Route, exchange: Exchange) -> None:
        """Answer one request. Raises nothing that a client or a worker could have caused."""
        exchange.served = True
        try:
            self._verifier.check(exchange)
            await self._serve(route, exchange)
        except container.Refusal as refusal:
            status, message = refusal.said.status, refusal.message
            self._proxy.refused(exchange, 424, "the worker refused")
            error = model_error(status, message)
            exchange.answer(error.status, error.fields(), error.body)
        except DoorError as error:
            self._refuse(exchange, error)
        except asyncio.CancelledError:
            if not exchange.left and not exchange.started:
                self._refuse(exchange, NoWorker("The router is being stopped."))
        except Exception:  # noqa: BLE001 - a fault of ours: say so in the client's own shape
            log.exception("a fault of the router's own, id=%s", exchange.identity.decode())
            self._refuse(exchange, DoorError("The router failed."))

    def _refuse(self, exchange: Exchange, error: DoorError) -> None:
        self._proxy.refused(exchange, error.status, error.message)
        if not exchange.started:
            exchange.refuse(error)

    async def _serve(self, route: Route, exchange: Exchange) -> None:
        model = self._model(route)
        if route.operation is Operation.ASYNC:
            raise BadRequest(
                "Asynchronous invocations are not served here: use InvokeEndpoint, or"
                " InvokeEndpointWithResponseStream for long answers."
            )
        if route.operation is Operation.OPENAI:
            endpoint = ENDPOINTS.get(route.path)
            if endpoint is None:
                raise UnknownPath(exchange.path)
            if model and not endpoint.form:
                exchange.body = _naming(exchange.body, model)
            await self._proxy.serve(endpoint, exchange)
            return
        await self._invoke(route, exchange, model)

    def _model(self, route: Route) -> str:
        """Return the model of an endpoint, if one is known. Raises BadRequest."""
        name = route.name
        if name and not is_name(name):
            raise BadRequest(
                "The endpoint's name is not valid: 1 to 63 letters and digits, with hyphens"
                " between them.",
                param="EndpointName",
            )
        if name and self._models and name not in self._models:
            raise BadRequest(f"Endpoint {name} not found.", param="EndpointName")
        if route.component and route.component in self._fleet.models():
            return route.component
        return self._models.get(name, "")

    async def _invoke(self, route: Route, exchange: Exchange, model: str) -> None:
        streams = route.operation is Operation.STREAM
        named = ids.in_headers(exchange.headers, (ids.AWS_HEADER,))
        payload = read(exchange.body, streams=streams)
        if named is not None and named != ids.NEW_SESSION:
            ids.check(named, aws=True)
        if payload.session is not None:
            ids.check(payload.session, aws=True)
        opens = named == ids.NEW_SESSION or payload.word is Word.OPEN
        id = payload.session if named in {None, ids.NEW_SESSION} else named  # noqa: A001
        if opens and streams:
            raise BadRequest("A session cannot begin in a stream: use InvokeEndpoint.")
        if payload.word is Word.CLOSE:
            await self._close(exchange, id)
        elif opens and named not in {None, ids.NEW_SESSION}:
            raise BadRequest("A new session has no id yet: send NEW_SESSION in its place.")
        elif opens and payload.shape is Shape.NONE:
            await self._open(exchange, id, payload, model)
        elif payload.shape is Shape.NONE:
            raise BadRequest("There is no prompt: give `messages`, `prompt` or `inputs`.")
        else:
            await self._infer(exchange, payload, payload.model or model, id, opens, streams)

    async def _infer(
        self,
        exchange: Exchange,
        payload: Payload,
        model: str,
        id: str | None,  # noqa: A002
        opens: bool,
        streams: bool,
    ) -> None:
        """Have a prompt answered, in a session if it is in one."""
        pool, _, _ = self._fleet.route(model or None)
        visit: Visit | None = None
        if opens or id is not None:
            sessions = _sessions(pool)
            if opens and pool.stateful:
                visit = await self._open_there(exchange, sessions, pool, id, exchange.body, model)
                exchange.add(_NEW % expiry.announced(visit.id, visit.expires).encode())
            elif opens:
                visit = sessions.opening(id)
            elif id is not None:
                visit = sessions.within(id)
        body = exchange.body if pool.stateful else payload.body
        if model and payload.model is None:
            body = _naming(body, model)
        chat = payload.shape is Shape.CHAT
        endpoint = _CHAT if chat else _COMPLETION
        converts = payload.shape is Shape.INPUTS and not payload.streams
        if pool.stateful:
            endpoint, converts = (_OWN_CHAT if chat else _OWN_COMPLETION), False
        answer = Answer(exchange, body, visit, framed=streams, converts=converts)
        answer.stateful = pool.stateful
        await self._proxy.serve(endpoint, answer)

    # A word on a session.

    async def _open(
        self, exchange: Exchange, id: str | None, payload: Payload, model: str  # noqa: A002
    ) -> None:
        """Begin a session without a prompt: its worker is chosen now."""
        pool = self._pool(payload.model or model)
        sessions = _sessions(pool)
        said = b""
        if pool.stateful:
            visit = await self._open_there(exchange, sessions, pool, id, exchange.body, model)
        else:
            visit = sessions.opening(id)
            await visit.look(pool)
            await self._choose(pool, visit)
        line = _NEW % expiry.announced(visit.id, visit.expires).encode()
        line += b"x-warmroute-worker: %b\r\n" % visit.bound.encode()
        fields, body = session_answer(exchange.identity, exchange.headers, line, said)
        exchange.answer(200, fields, body)

    async def _choose(self, pool: Pool, visit: Visit | None) -> Worker:
        """Choose a worker as for a request of no tokens, and bind the session to it."""
        prompt = Prompt(model="", tokens=0, answer_tokens=0, bound="" if visit is None else visit.bound)
        now = monotonic()
        ready = [worker for worker in pool.taking if worker.ready]
        ready = pool.breakers.admitted(now, ready) if ready and pool.breakers.any_open else ready
        if not ready:
            raise NoWorker("No worker is ready; please try again.")
        decision = pool.strategy.rank(prompt, ready, now)
        choice = decision.candidates[0]
        if visit is not None:
            choice = await visit.settle(choice, decision.candidates, pool)
        booking = pool.book(prompt, choice, now)  # counted as a turn, so that the next goes elsewhere
        worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
        worker.load.release(booking, now)
        pool.strategy.settled(prompt, choice, Outcome(ok=True, began=False), now)
        return worker

    async def _open_there(
        self,
        exchange: Exchange,
        sessions: Sessions,
        pool: Pool,
        id: str | None,  # noqa: A002
        body: bytes,
        model: str,
    ) -> Visit:
        """Begin a session at a worker that keeps them; its id is the worker's, or the client's."""
        del model
        if id is not None:
            await sessions.opening(id).look(pool)
        worker = await self._choose(pool, None)
        own, expires, _ = await container.open_session(worker, body, exchange.identity)
        session = await sessions.adopt(id or own, worker.name, own, expires)
        if session is None:
            raise BadRequest("A session of that id is open already.")
        visit = sessions.within(id or own)
        await visit.look(pool)
        return visit

    async def _close(self, exchange: Exchange, id: str | None) -> None:  # noqa: A002
        """End a session."""
        if id is None:
            raise BadRequest("A session is closed by its id: send it as SessionId.")
        closed, said = False, b""
        for pool in self._fleet.pools:
            if pool.sessions is None:
                continue
            if pool.stateful:
                said = await self._close_there(exchange, pool, pool.sessions, id) or said
            closed = await pool.sessions.close(id) or closed
        if not closed:
            raise UnknownSession
        line = _CLOSED % id.encode()
        fields, body = session_answer(exchange.identity, exchange.headers, line, said)
        exchange.answer(200, fields, body)

    async def _close_there(
        self, exchange: Exchange, pool: Pool, sessions: Sessions, id: str  # noqa: A002
    ) -> bytes:
        session = await sessions.use(id, pool, known=False)
        worker = next((w for w in pool.workers if session and w.name == session.worker), None)
        if session is None or worker is None or not worker.ready:
            return b""
        own = session.own or id
        return await container.close_session(worker, exchange.body, own, exchange.identity)

    def _pool(self, model: str) -> Pool:
        """Return the pool of a session that names no prompt. Raises BadRequest."""
        if model:
            return self._fleet.route(model)[0]
        pools = [pool for pool in self._fleet.pools if pool.sessions is not None]
        if len(pools) == 1:
            return pools[0]
        if not pools:
            raise BadRequest(NONE)
        raise BadRequest(
            "Several pools keep sessions: name the `model`, or give the endpoint one in the settings.",
            param="model",
        )


NONE = "Sessions are not kept here: the pool's strategy is not `session`."


def _sessions(pool: Pool) -> Sessions:
    if pool.sessions is None:
        raise BadRequest(NONE)
    return pool.sessions


def _naming(body: bytes, model: str) -> bytes:
    """Put the model into a body that names none. Raises BadRequest."""
    try:
        fields = read(body)
        return body if fields.model else with_model(body, model)
    except ValueError as error:
        raise BadRequest(f"The body is not a JSON object: {error}.") from None
