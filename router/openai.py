"""The inference endpoints, and the few fields of a request that the router reads."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field

from router.errors import BadRequest
from router.messages import SAFE, UNEXPECTED, Message, Object, Unread, messages
from router.slices import count


class Prompted(StrEnum):
    """Where a request has its prompt, if it has one that a KV cache could hold."""

    CHAT = "CHAT"
    COMPLETION = "COMPLETION"
    INPUT = "INPUT"
    RESPONSES = "RESPONSES"
    MESSAGES = "MESSAGES"
    NOTHING = "NOTHING"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One inference path, relayed to workers."""

    path: str
    prompted: Prompted
    answers: bool
    """Whether the answer is generated token by token, so that it takes up KV cache."""
    form: bool = False
    """The body is a multipart form, not JSON."""


#: All of vLLM's inference endpoints (vllm/entrypoints), by path.
ENDPOINTS = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/chat/completions", Prompted.CHAT, answers=True),
        Endpoint("/v1/completions", Prompted.COMPLETION, answers=True),
        Endpoint("/v1/responses", Prompted.RESPONSES, answers=True),
        Endpoint("/v1/messages", Prompted.MESSAGES, answers=True),
        Endpoint("/v1/embeddings", Prompted.INPUT, answers=False),
        Endpoint("/v1/rerank", Prompted.NOTHING, answers=False),
        Endpoint("/rerank", Prompted.NOTHING, answers=False),
        Endpoint("/v1/score", Prompted.NOTHING, answers=False),
        Endpoint("/score", Prompted.NOTHING, answers=False),
        Endpoint("/pooling", Prompted.INPUT, answers=False),
        Endpoint("/classify", Prompted.INPUT, answers=False),
        Endpoint("/tokenize", Prompted.NOTHING, answers=False),
        Endpoint("/detokenize", Prompted.NOTHING, answers=False),
        Endpoint("/v1/audio/transcriptions", Prompted.NOTHING, answers=True, form=True),
        Endpoint("/v1/audio/translations", Prompted.NOTHING, answers=True, form=True),
    )
}


#: A field that should be a scalar. Of anything else only its presence is kept (`Object`): turning a
#: million elements into Python objects would block the event loop for a second.
Small = str | int | float | bool | None | Object


class _Fields(msgspec.Struct, kw_only=True):
    """The fields that routing and limits need.

    Only `model` must have its type; the worker validates the others.
    """

    model: str | None = None
    stream: Small = None
    cache_salt: Small = None
    prompt_cache_key: Small = None
    """Prompts with different values are routed as if they shared no prefix."""
    n: Small = None
    best_of: Small = None
    max_tokens: Small = None
    max_completion_tokens: Small = None
    max_output_tokens: Small = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    echo: msgspec.Raw = msgspec.Raw()
    prompt_logprobs: msgspec.Raw = msgspec.Raw()
    background: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    # What else is scored, by the names of vLLM's `/score` and `/rerank`.
    query: msgspec.Raw = msgspec.Raw()
    queries: msgspec.Raw = msgspec.Raw()
    items: msgspec.Raw = msgspec.Raw()
    text_1: msgspec.Raw = msgspec.Raw()
    text_2: msgspec.Raw = msgspec.Raw()
    data_1: msgspec.Raw = msgspec.Raw()
    data_2: msgspec.Raw = msgspec.Raw()
    # Other fields that make the engine see a different prompt for the same messages.
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    mm_processor_kwargs: msgspec.Raw = msgspec.Raw()
    output_config: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()
    prompt_embeds: msgspec.Raw = msgspec.Raw()
    reasoning: msgspec.Raw = msgspec.Raw()
    reasoning_effort: msgspec.Raw = msgspec.Raw()
    suffix: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    tool_choice: Small = None

    @property
    def answer_limit(self) -> int | None:
        """Most tokens that the client allows for the answer, if it says."""
        limit = self.max_completion_tokens or self.max_tokens or self.max_output_tokens
        return limit if isinstance(limit, int) and limit > 0 else None


class Request(_Fields):
    """The part of a request that is read."""

    messages: Sequence[Message | Unread] = ()
    """An entry that is not a message is represented by an empty `Message`."""


class _Read(Request):
    messages: list[Message] = []


class _Unread(Request):
    messages: list[Unread] = []


#: The fields of requests to rerank or to score that hold what is scored.
SCORED = ("query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
_SMALL = [
    field.name
    for field in msgspec.structs.fields(_Fields)
    if field.default is None and field.name != "model"
]
#: For a request that is not decoded in one pass: every field but `model` is kept raw.
_Odd = msgspec.defstruct(
    "_Odd",
    [
        ("model", str | None, None),
        *(
            (name, msgspec.Raw, msgspec.Raw())
            for name in (*_Fields.__struct_fields__, "messages")
            if name != "model"
        ),
    ],
)


_decode: Callable[[bytes], Request] = msgspec.json.Decoder(_Read).decode
_decode_unread: Callable[[bytes], Request] = msgspec.json.Decoder(_Unread).decode
_decode_odd = msgspec.json.Decoder(_Odd).decode
_small = msgspec.json.Decoder(Small).decode
#: Most objects in a body, by its braces, that may all be messages; each of those takes 100 bytes.
MOST_OBJECTS = 1 << 16
#: Most fields of a form; the same limit as Starlette's, which vLLM parses forms with.
MOST_FIELDS = 1000
#: A form field with a transfer encoding: some parsers decode it and some do not. It is deprecated
#: (RFC 7578 section 4.7).
_ENCODED = re.compile(rb"\ncontent-transfer-encoding:(?! *(?:7bit|8bit|binary) *\r)", re.IGNORECASE)
#: The form fields that are read; a form holds them as text.
_FORM_FIELDS = frozenset(
    (b"model", b"stream", b"n", b"best_of", b"max_tokens", b"max_completion_tokens")
)


def parse(endpoint: Endpoint, body: bytes, content_type: bytes, *, texts: bool = True) -> Request:
    """Read what routing needs from `body`. Raises BadRequest.

    Without `texts`, the contents of messages are decoded only if somebody asks for them.
    """
    if endpoint.form:
        form = _form(body, content_type)
        streams = form.get("stream", "").lower() == "true"
        return msgspec.convert({**form, "stream": streams}, _Read)
    if len(body) > SAFE:
        texts = False
        if count(body, b"{") > MOST_OBJECTS:
            return _parse_odd(body)
    try:
        return _decode(body) if texts else _decode_unread(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_odd(body)


def _parse_odd(body: bytes) -> Request:
    """Read a body that failed to decode, or may have too many messages.

    Raises BadRequest for errors not left to the worker.
    """
    if not body:
        raise BadRequest("The request body is not valid JSON: it is empty.")
    try:
        odd: Any = _decode_odd(body)
    except msgspec.ValidationError as error:
        param = "model" if "$.model" in str(error) else None
        raise BadRequest(f"The request body is not as expected: {error}.", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    fields = {name: getattr(odd, name) for name in _Fields.__struct_fields__}
    fields |= {name: _read_small(fields[name]) for name in _SMALL}
    return Request(**fields, messages=messages(odd.messages))


def _read_small(raw: msgspec.Raw) -> Small:
    try:
        return _small(raw) if len(raw) else None
    except UNEXPECTED:
        return Object()


def _form(body: bytes, content_type: bytes) -> dict[str, str]:
    """Return the form fields of an upload; of a repeated field the last one counts, as in vLLM."""
    if content_type.partition(b";")[0].strip().lower() != b"multipart/form-data":
        raise BadRequest("The request body must be a form: `multipart/form-data`.")
    if _ENCODED.search(body):
        raise BadRequest("A form's fields must not have a Content-Transfer-Encoding.")
    found: dict[str, str] = {}
    count = 0

    def counted(_: object) -> None:
        nonlocal count
        count += 1
        if count > MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")

    def on_field(field: Field) -> None:
        counted(field)
        if field.field_name in _FORM_FIELDS and field.value is not None:
            found[field.field_name.decode()] = field.value.decode(errors="replace")

    try:
        form = python_multipart.create_form_parser(
            {"Content-Type": content_type},
            on_field,
            counted,
            config={"MAX_MEMORY_FILE_SIZE": len(body) + 1},  # the body is in memory already
        )
        form.write(body)
        form.finalize()
    except (FormParserError, ValueError) as error:
        raise BadRequest(f"The request body is not a valid form: {error}.") from None
    return found
