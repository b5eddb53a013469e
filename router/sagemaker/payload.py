"""What the body of an invocation is: a prompt in one of three shapes, or a word about a session.

    {"messages": …}                        a chat, as for /v1/chat/completions
    {"prompt": …}                          a completion, as for /v1/completions
    {"inputs": …, "parameters": {…}}       a text, as AWS's containers have it
    {"requestType": "NEW_SESSION"}         opens a session; CLOSE and CLOSE_SESSION end one

`CLOSE` is what SageMaker documents (developer guide, stateful sessions). `CLOSE_SESSION`, and
`extSessionID` for an id of the client's own, are of aws-samples' sticky session example.
"""

from enum import Enum
from typing import Any, NamedTuple

import msgspec

from router.errors import BadRequest
from router.sagemaker.inputs import as_completion


class Shape(Enum):
    """What kind of prompt it is."""

    CHAT = "chat"
    COMPLETION = "completion"
    INPUTS = "inputs"
    NONE = "none"


class Word(Enum):
    """What it says of a session."""

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
    """A body, understood."""

    shape: Shape
    word: Word
    session: str | None
    """The id in `extSessionID`, if it is there."""
    model: str | None
    body: bytes
    """As received; of `inputs`, the completion that asks for the same."""
    streams: bool = False


class _Fields(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    inputs: Any = None
    parameters: Any = None
    sampling_params: Any = None
    stream: Any = None
    model: Any = None
    requestType: Any = None  # noqa: N815 - theirs
    extSessionID: Any = None  # noqa: N815


_decode = msgspec.json.Decoder(_Fields).decode


def read(body: bytes, *, streams: bool = False) -> Payload:
    """Understand a body, whatever its content type; boto3 sends none unless told.

    With `streams` the answer of a text is asked for as a stream. Raises BadRequest.
    """
    if not body.strip():
        return Payload(Shape.NONE, Word.NOTHING, None, None, body)
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"The body is not a JSON object: {error}.") from None
    word = _word(fields.requestType)
    session = _text(fields.extSessionID, "extSessionID")
    model = _text(fields.model, "model")
    if fields.messages:
        shape = Shape.CHAT
    elif fields.prompt:
        shape = Shape.COMPLETION
    elif fields.inputs is not None:
        wanted = streams or fields.stream is True
        parameters = fields.parameters if fields.parameters is not None else fields.sampling_params
        body = as_completion(fields.inputs, parameters, model, stream=wanted)
        return Payload(Shape.INPUTS, word, session, model, body, wanted)
    else:
        shape = Shape.NONE
    return Payload(shape, word, session, model, body, fields.stream is True)


def with_model(body: bytes, model: str) -> bytes:
    """Return a JSON object with another `model`; everything else in it stays as it is."""
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def without_words(body: bytes) -> bytes:
    """Return a prompt without the example's words on its session: a container that knows only what
    SageMaker documents refuses them."""
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    words = {"requestType", "extSessionID"} & fields.keys()
    if not words:
        return body
    return msgspec.json.encode({key: value for key, value in fields.items() if key not in words})


def _word(said: object) -> Word:
    if said is None:
        return Word.NOTHING
    if isinstance(said, str) and said in _WORDS:
        return _WORDS[said]
    raise BadRequest(
        "The field `requestType` must be NEW_SESSION, SESSION, CLOSE or CLOSE_SESSION.",
        param="requestType",
    )


def _text(value: object, field: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"The field `{field}` must be a text.", param=field)
    return value or None
