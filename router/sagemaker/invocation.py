"""An invocation, understood: what is asked for, in which session. Pure."""

from enum import Enum
from typing import NamedTuple

from router.errors import BadRequest
from router.exchange import Exchange
from router.sagemaker.paths import Operation, Route
from router.sagemaker.payload import Payload, Shape, Word, read
from router.sessions import ids


class Act(Enum):
    """What is to be done."""

    INFER = "infer"
    """Have a prompt answered."""
    OPEN = "open"
    """Begin a session without a prompt."""
    CLOSE = "close"


class Invocation(NamedTuple):
    """What a client wants of `InvokeEndpoint` or its streaming sister."""

    act: Act
    exchange: Exchange
    payload: Payload
    model: str
    """The body's, or the endpoint's; empty if neither names one."""
    session: str | None
    """An id that the client names."""
    opens: bool
    """A session begins with it."""
    streams: bool
    """It is to be answered by an event stream."""


def understand(route: Route, exchange: Exchange, model: str) -> Invocation:
    """Read an invocation; `model` is the endpoint's. Raises BadRequest.

    The header names the session before the body does (`extSessionID`); with NEW_SESSION in the
    header, the body may name the id that the client wants.
    """
    streams = route.operation is Operation.STREAM
    named = ids.in_headers(exchange.headers, (ids.AWS_HEADER,))
    payload = read(exchange.body, streams=streams)
    is_new = named == ids.NEW_SESSION
    if named is not None and not is_new:
        ids.check(named, aws=True)
    if payload.session is not None:
        ids.check(payload.session, aws=True)
    opens = payload.word is not Word.CLOSE and (is_new or payload.word is Word.OPEN)
    if opens and named is not None and not is_new:
        raise BadRequest("A new session has no id yet: send NEW_SESSION in its place.")
    if opens and streams:
        raise BadRequest("A session cannot begin in a stream: use InvokeEndpoint.")
    key = payload.session if named is None or is_new else named
    act = _act(payload, opens=opens)
    if act is Act.CLOSE and key is None:
        raise BadRequest("A session is closed by its id: send it as SessionId.")
    return Invocation(act, exchange, payload, payload.model or model, key, opens, streams)


def _act(payload: Payload, *, opens: bool) -> Act:
    if payload.word is Word.CLOSE:
        return Act.CLOSE
    if payload.shape is not Shape.NONE:
        return Act.INFER
    if opens:
        return Act.OPEN
    raise BadRequest("There is no prompt: give `messages`, `prompt` or `inputs`.")
