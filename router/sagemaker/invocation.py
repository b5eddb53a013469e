"""What the body of an invocation asks for: a prompt in one of three shapes, or a session. Pure.

    {"messages": …}                        a chat, as for /v1/chat/completions
    {"prompt": …}                          a completion, as for /v1/completions
    {"inputs": …, "parameters": {…}}       a text, as AWS's containers have it
    {"requestType": "NEW_SESSION"}         opens a session; CLOSE and CLOSE_SESSION end one

`CLOSE` is what SageMaker documents (developer guide, stateful sessions). `CLOSE_SESSION`, and
`extSessionID` for an id of the client's own, are of aws-samples' sticky session example.

The parameters of `inputs` have the names of Hugging Face's text-generation-inference, which DJL's
LMI containers adopted, and of SGLang's sampling parameters, which that example sends.
"""

from enum import Enum
from typing import Any, NamedTuple

import msgspec

from router.api.errors import BadRequest
from router.api.lenient_json import true
from router.api.messages import UNEXPECTED, Object
from router.api.request import NotJson
from router.http.exchange import Exchange
from router.http.headers import header
from router.sagemaker.paths import Operation, Route
from router.sessions import ids

#: Parameter names, with those of OpenAI and vLLM. Others are not passed on.
_SAME = {
    "max_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_new_token": "max_tokens",  # as the example's client writes it
    "min_new_tokens": "min_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
    "stop_sequences": "stop",
    "ignore_eos": "ignore_eos",
}


_Parameters = msgspec.defstruct(
    "_Parameters",
    [(name, msgspec.Raw, msgspec.Raw()) for name in (*_SAME, "do_sample", "return_full_text")],
)
_decode_parameters = msgspec.json.Decoder(_Parameters).decode


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a field is present and not null."""
    return len(raw) > 0 and bytes(memoryview(raw)[:4]) != b"null"


def as_completion(
    inputs: msgspec.Raw, parameters: msgspec.Raw, model: str | None, *, stream: bool
) -> bytes:
    """Return the body of the equivalent completion to the text `inputs`. Raises BadRequest.

    The values of parameters are left to the worker to check.
    """
    try:
        values: Any = _decode_parameters(parameters) if is_given(parameters) else _Parameters()
    except UNEXPECTED:
        raise BadRequest("The field `parameters` must be an object.", param="parameters") from None
    completion: dict[str, Any] = {} if model is None else {"model": model}
    completion["prompt"] = inputs
    for name, meant in _SAME.items():
        if is_given(value := getattr(values, name)):
            completion[meant] = value
    if bytes(values.do_sample) == b"false":
        completion["temperature"] = 0
    if bytes(values.return_full_text) == b"true":
        completion["echo"] = True
    if stream:
        completion["stream"] = True
    return msgspec.json.encode(completion)


def as_generation(answer: bytes) -> bytes:
    """Return a completion in the form of the text containers; unchanged if it is not a completion.

    `generation` is the sticky session example's, made by SGLang; `generated_text` is LMI's.
    """
    try:
        completion: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
        choice = completion["choices"][0]
        text, reason = choice["text"], choice.get("finish_reason")
    except (msgspec.DecodeError, UnicodeError, LookupError, TypeError, AttributeError):
        return answer
    usage = completion.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    meta = {
        "id": completion.get("id"),
        "finish_reason": reason,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
    }
    generation = {"text": text, "meta_info": meta}
    return msgspec.json.encode({"generation": generation, "generated_text": text})


class PromptShape(Enum):
    """The kind of prompt."""

    CHAT = "chat"
    COMPLETION = "completion"
    INPUTS = "inputs"
    NONE = "none"


#: Whether the values of `requestType` open a session, and whether they close one.
_REQUEST_TYPES = {
    "SESSION": (False, False),
    "NEW_SESSION": (True, False),
    "CLOSE": (False, True),
    "CLOSE_SESSION": (False, True),
}


class Payload(NamedTuple):
    """A parsed body."""

    shape: PromptShape
    body: bytes
    """The body as received; for `inputs`, the equivalent completion."""
    opens: bool = False
    """Whether `requestType` opens a session."""
    closes: bool = False
    session: str | None = None
    """The id in `extSessionID`, if any."""
    model: str | None = None
    streams: bool = False


class _Fields(msgspec.Struct):
    """The fields, undecoded until their expected types are known.

    Decoding objects with a million entries would take a second, and block all requests.
    """

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    model: msgspec.Raw = msgspec.Raw()
    requestType: msgspec.Raw = msgspec.Raw()  # noqa: N815 - AWS's names
    extSessionID: msgspec.Raw = msgspec.Raw()  # noqa: N815


_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_flag = msgspec.json.Decoder(str | int | float | bool | None | Object).decode


def read(body: bytes, *, seen: bytes = b"", streams: bool = False) -> Payload:
    """Parse a body, whatever its content type; boto3 sends none unless told to.

    With `seen`, that is parsed in its place. With `streams`, a completion made from `inputs` is
    asked for as a stream. Raises BadRequest, NotJson.
    """
    if not body.strip():
        return Payload(PromptShape.NONE, body)
    try:
        fields = _decode_fields(seen or body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body is not a JSON object: {error}.") from None
    except UNEXPECTED as error:
        raise NotJson(error) from None
    opens, closes = _request_type(fields.requestType)
    session = _text(fields.extSessionID, "extSessionID")
    model = _text(fields.model, "model")
    stream = _flag(fields.stream)
    shape = PromptShape.NONE
    if fields.messages:
        shape = PromptShape.CHAT
    elif fields.prompt:
        shape = PromptShape.COMPLETION
    elif is_given(fields.inputs):
        shape, stream = PromptShape.INPUTS, streams or stream
        parameters = fields.parameters if is_given(fields.parameters) else fields.sampling_params
        if _text(fields.inputs, "inputs") is None:
            raise BadRequest("The field `inputs` must be a text, and not empty.", param="inputs")
        prompt = _as_sent(fields.inputs, seen, body) if seen else fields.inputs
        body = as_completion(prompt, parameters, model, stream=stream)
    return Payload(shape, body, opens, closes, session, model, stream)


def with_model(body: bytes, model: str) -> bytes:
    """Return a JSON object whose `model` is missing or null with a model; the rest is unchanged.

    The field is put last, because the last of duplicate fields counts.
    """
    rest = body.rstrip()[:-1].rstrip()
    comma = b"" if rest.endswith(b"{") else b","
    return b'%b%b"model":%b}' % (rest, comma, msgspec.json.encode(model))


def _as_sent(text: msgspec.Raw, seen: bytes, body: bytes) -> msgspec.Raw:
    """Return a text of `seen` as it stands in the body, which is as long."""
    start = seen.index(bytes(text))
    return msgspec.Raw(body[start : start + len(text)])


def without_session(body: bytes, seen: bytes = b"") -> bytes:
    """Return a prompt without the example's session fields.

    A container that knows only what SageMaker documents refuses them. `seen` as in `read`.
    """
    kind = dict[str, msgspec.Raw]
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(seen or body, type=kind)
    ours = {"requestType", "extSessionID"} & fields.keys()
    if not ours:
        return body
    return msgspec.json.encode({key: value for key, value in fields.items() if key not in ours})


def _request_type(raw: msgspec.Raw) -> tuple[bool, bool]:
    """Return whether a session is opened, and whether one is closed. Raises BadRequest."""
    if not is_given(raw):
        return False, False
    try:
        return _REQUEST_TYPES[_decode_text(raw)]
    except (*UNEXPECTED, LookupError):
        raise BadRequest(
            "The field `requestType` must be NEW_SESSION, SESSION, CLOSE or CLOSE_SESSION.",
            param="requestType",
        ) from None


def _flag(value: msgspec.Raw) -> bool:
    try:
        return is_given(value) and true(_decode_flag(value))
    except UNEXPECTED:
        return False


def _text(value: msgspec.Raw, field: str) -> str | None:
    try:
        return _decode_text(value) or None if is_given(value) else None
    except UNEXPECTED:
        raise BadRequest(f"The field `{field}` must be a text.", param=field) from None


#: The AWS SDKs' id of a call, the same in every attempt at it.
_CALL = b"amz-sdk-invocation-id"
_MAX_CALL_ID = 64


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
    opens = not payload.closes and (is_new or payload.opens)
    if opens and named is not None and not is_new:
        raise BadRequest("A new session has no id yet: send NEW_SESSION in its place.")
    if opens and streams:
        raise BadRequest("A session cannot begin in a stream: use InvokeEndpoint.")
    plain = None
    if named is None and not opens:
        plain = names.find(exchange.headers, exchange.seen or exchange.body)
    key = plain or (payload.session if named is None or is_new else named)
    if payload.closes and key is None:
        raise BadRequest("A session is closed by its id: send it as SessionId.")
    if not (payload.closes or opens) and payload.shape is PromptShape.NONE:
        raise BadRequest("There is no prompt: give `messages`, `prompt` or `inputs`.")
    act = Act.OPEN if payload.shape is PromptShape.NONE else Act.INFER
    return Invocation(
        Act.CLOSE if payload.closes else act,
        exchange,
        payload,
        payload.model or model,
        key,
        opens,
        plain is not None,
        header(exchange.headers, _CALL).decode("latin-1")[:_MAX_CALL_ID],
        streams,
    )
