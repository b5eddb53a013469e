"""An invocation, understood: what is asked for, in which session. Pure."""

from enum import Enum
from typing import NamedTuple

from router.errors import BadRequest
from router.exchange import Exchange
from router.headers import header
from router.sagemaker.paths import Operation, Route
from router.sagemaker.payload import Payload, Shape, Word, read
from router.sessions import ids

#: The AWS SDKs' name for a call, the same in every attempt at it.
_CALL = b"amz-sdk-invocation-id"
_LONGEST_CALL = 64


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
    plain: bool
    """The id is named as OpenAI's clients do: the session need not be open."""
    call: str
    """The client's name for this call, the same each time that it is sent; or empty."""
    streams: bool
    """It is to be answered by an event stream."""


def understand(route: Route, exchange: Exchange, model: str, names: ids.Names) -> Invocation:
    """Read an invocation; `model` is the endpoint's. Raises BadRequest.

    SageMaker's header names the session before others do: those of the settings (`names`), and last
    `extSessionID` in the body. Where a session begins, that is the id which the client wants.
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
    plain = names.find(exchange.headers, exchange.body) if named is None and not opens else None
    key = plain or (payload.session if named is None or is_new else named)
    act = _act(payload, opens=opens)
    if act is Act.CLOSE and key is None:
        raise BadRequest("A session is closed by its id: send it as SessionId.")
    call = header(exchange.headers, _CALL).decode("latin-1")[:_LONGEST_CALL]
    return Invocation(
        act,
        exchange,
        payload,
        payload.model or model,
        key,
        opens,
        plain is not None,
        call,
        streams,
    )


def _act(payload: Payload, *, opens: bool) -> Act:
    if payload.word is Word.CLOSE:
        return Act.CLOSE
    if payload.shape is not Shape.NONE:
        return Act.INFER
    if opens:
        return Act.OPEN
    raise BadRequest("There is no prompt: give `messages`, `prompt` or `inputs`.")
