"""A parsed invocation: what is asked for, in which session. Pure."""

from enum import Enum
from typing import NamedTuple

from router.api.errors import BadRequest
from router.http.exchange import Exchange
from router.http.headers import header
from router.sagemaker.paths import Operation, Route
from router.sagemaker.payload import Payload, Shape, Word, read
from router.sessions import ids

#: The AWS SDKs' id of a call, the same in every attempt at it.
_CALL = b"amz-sdk-invocation-id"
_LONGEST_CALL = 64


class Act(Enum):
    """What to do."""

    INFER = "infer"
    """Answer a prompt."""
    OPEN = "open"
    """Start a session without a prompt."""
    CLOSE = "close"


class Invocation(NamedTuple):
    """A call of `InvokeEndpoint` or its streaming variant."""

    act: Act
    exchange: Exchange
    payload: Payload
    model: str
    """The body's model, or the endpoint's; empty if neither names one."""
    session: str | None
    """The session id given by the client."""
    opens: bool
    """Whether it starts a session."""
    plain: bool
    """Whether the id is given as OpenAI clients do, so that the session need not be open."""
    call: str
    """The client's id of this call, the same in every attempt; may be empty."""
    streams: bool
    """Whether the answer is an event stream."""


def understand(route: Route, exchange: Exchange, model: str, names: ids.Names) -> Invocation:
    """Parse an invocation; `model` is the endpoint's. Raises BadRequest, NotJson.

    SageMaker's header takes precedence in naming the session, then come those of the settings
    (`names`), then `extSessionID` in the body. If the call starts a session, that is the id that
    the client wants.
    """
    streams = route.operation is Operation.STREAM
    named = ids.in_headers(exchange.headers, (ids.AWS_HEADER,))
    payload = read(exchange.body, seen=exchange.seen, streams=streams)
    is_new = named == ids.NEW_SESSION
    if named is not None and not is_new:
        ids.check(named)
    if payload.session is not None:
        ids.check(payload.session)
    opens = payload.word is not Word.CLOSE and (is_new or payload.word is Word.OPEN)
    if opens and named is not None and not is_new:
        raise BadRequest("A new session has no id yet: send NEW_SESSION in its place.")
    if opens and streams:
        raise BadRequest("A session cannot begin in a stream: use InvokeEndpoint.")
    seen = exchange.seen or exchange.body
    plain = names.find(exchange.headers, seen) if named is None and not opens else None
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
