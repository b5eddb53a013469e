"""What the body of an invocation is: a prompt in one of three shapes, or a word about a session.

    {"messages": …}                        a chat, as for /v1/chat/completions
    {"prompt": …}                          a completion, as for /v1/completions
    {"inputs": …, "parameters": {…}}       a text, as AWS's containers have it
    {"requestType": "NEW_SESSION"}         opens a session; CLOSE and CLOSE_SESSION end one

`CLOSE` is what SageMaker documents (developer guide, stateful sessions). `CLOSE_SESSION`, and
`extSessionID` for an id of the client's own, are of aws-samples' sticky session example.
"""

from enum import Enum
from typing import NamedTuple

import msgspec

from router.api.errors import BadRequest
from router.api.lax_values import true
from router.api.messages import UNEXPECTED, Object
from router.api.request import NotJson
from router.sagemaker.inputs import as_completion, is_given


class Shape(Enum):
    """The kind of prompt."""

    CHAT = "chat"
    COMPLETION = "completion"
    INPUTS = "inputs"
    NONE = "none"


class Word(Enum):
    """What the body requests of a session."""

    NOTHING = "nothing"
    OPEN = "open"
    CLOSE = "close"


_WORDS = {
    "SESSION": Word.NOTHING,
    "NEW_SESSION": Word.OPEN,
    "CLOSE": Word.CLOSE,
    "CLOSE_SESSION": Word.CLOSE,
}


class Payload(NamedTuple):
    """A parsed body."""

    shape: Shape
    word: Word
    session: str | None
    """The id in `extSessionID`, if any."""
    model: str | None
    body: bytes
    """The body as received; for `inputs`, the equivalent completion."""
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


_decode = msgspec.json.Decoder(_Fields).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_flag = msgspec.json.Decoder(str | int | float | bool | None | Object).decode


def read(body: bytes, *, seen: bytes = b"", streams: bool = False) -> Payload:
    """Parse a body, whatever its content type; boto3 sends none unless told to.

    With `seen`, that is parsed in its place. With `streams`, a completion made from `inputs` is
    asked for as a stream. Raises BadRequest, NotJson.
    """
    if not body.strip():
        return Payload(Shape.NONE, Word.NOTHING, None, None, body)
    try:
        fields = _decode(seen or body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body is not a JSON object: {error}.") from None
    except UNEXPECTED as error:
        raise NotJson(error) from None
    word = _word(fields.requestType)
    session = _text(fields.extSessionID, "extSessionID")
    model = _text(fields.model, "model")
    stream = _flag(fields.stream)
    if fields.messages:
        shape = Shape.CHAT
    elif fields.prompt:
        shape = Shape.COMPLETION
    elif is_given(fields.inputs):
        parameters = fields.parameters if is_given(fields.parameters) else fields.sampling_params
        if _text(fields.inputs, "inputs") is None:
            raise BadRequest("The field `inputs` must be a text, and not empty.", param="inputs")
        prompt = _as_sent(fields.inputs, seen, body) if seen else fields.inputs
        body = as_completion(prompt, parameters, model, stream=streams or stream)
        return Payload(Shape.INPUTS, word, session, model, body, streams or stream)
    else:
        shape = Shape.NONE
    return Payload(shape, word, session, model, body, stream)


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


def without_words(body: bytes, seen: bytes = b"") -> bytes:
    """Return a prompt without the example's session fields.

    A container that knows only what SageMaker documents refuses them. `seen` as in `read`.
    """
    kind = dict[str, msgspec.Raw]
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(seen or body, type=kind)
    words = {"requestType", "extSessionID"} & fields.keys()
    if not words:
        return body
    return msgspec.json.encode({key: value for key, value in fields.items() if key not in words})


def _word(said: msgspec.Raw) -> Word:
    if not is_given(said):
        return Word.NOTHING
    try:
        return _WORDS[_decode_text(said)]
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
