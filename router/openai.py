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
from router.lax_json import SURROGATE
from router.lax_values import true, whole
from router.messages import SAFE, UNEXPECTED, Message, Object, Unread, messages


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
        limit = whole(self.max_completion_tokens or self.max_tokens or self.max_output_tokens)
        return limit if limit and limit > 0 else None


class Request(_Fields):
    """The part of a request that is read."""

    messages: Sequence[Message | Unread] = ()
    """An entry that is not a message is represented by an empty `Message`."""


class _Read(Request):
    messages: list[Message] = []


class _Unread(Request):
    messages: list[Unread] = []


_SMALL = [
    field.name
    for field in msgspec.structs.fields(_Fields)
    if field.default is None and field.name != "model"
]
#: For a request that is not decoded in one pass: every field is kept raw, the last of equal names.
_Odd = msgspec.defstruct(
    "_Odd",
    [(name, msgspec.Raw, msgspec.Raw()) for name in (*_Fields.__struct_fields__, "messages")],
)


_decode: Callable[[bytes], Request] = msgspec.json.Decoder(_Read).decode
_decode_unread: Callable[[bytes], Request] = msgspec.json.Decoder(_Unread).decode
_decode_odd = msgspec.json.Decoder(_Odd).decode
_small = msgspec.json.Decoder(Small).decode
_name = msgspec.json.Decoder(str | None).decode
#: Most objects in a body, by its braces, that may all be messages; each of those takes 100 bytes.
MOST_OBJECTS = 1 << 16
#: Most fields of a form; the same limit as Starlette's, which vLLM parses forms with.
MOST_FIELDS = 1000
#: A form field with a transfer encoding: some parsers decode it and some do not. It is deprecated
#: (RFC 7578 section 4.7).
_ENCODED = re.compile(rb"\ncontent-transfer-encoding:", re.IGNORECASE)
_NOT_ENCODED = re.compile(rb" *(?:7bit|8bit|binary) *\r", re.IGNORECASE)
#: Bytes of a form that are searched for it at once.
_STEP = 1 << 20
#: The form fields that are read; a form holds them as text.
_FORM_FIELDS = frozenset(
    (b"model", b"stream", b"n", b"best_of", b"max_tokens", b"max_completion_tokens")
)


class NotJson(BadRequest):
    """The body is not JSON to msgspec; Python, and so the worker, may read it (`lax_json.py`)."""

    def __init__(self, why: object) -> None:
        super().__init__(f"The request body is not valid JSON: {why}.")


def parse(endpoint: Endpoint, body: bytes, content_type: bytes, *, texts: bool = True) -> Request:
    """Read what routing needs from `body`. Raises BadRequest, NotJson.

    Without `texts`, the contents of messages are decoded only if somebody asks for them.
    """
    if endpoint.form:
        request: Request = msgspec.convert(_form(body, content_type), _Read)
    else:
        request = _parse(body, texts=texts)
    if request.stream is not None and request.stream is not True:
        request.stream = true(request.stream)
    return request


def _parse(body: bytes, *, texts: bool) -> Request:
    if len(body) > SAFE:
        texts = False
        if body.count(b"{") > MOST_OBJECTS:
            return _parse_odd(body)
    try:
        return _decode(body) if texts else _decode_unread(body)
    except (msgspec.ValidationError, RecursionError):
        return _parse_odd(body)
    except UnicodeDecodeError as error:
        if SURROGATE.search(body):
            raise NotJson(error) from None
        return _parse_odd(body)
    except msgspec.DecodeError as error:
        raise NotJson(error if body else "it is empty") from None


def _parse_odd(body: bytes) -> Request:
    """Read a body with fields of other types than expected, or perhaps too many messages.

    Raises BadRequest for errors not left to the worker.
    """
    try:
        odd: Any = _decode_odd(body)
        model = _read_model(odd.model)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The request body is not as expected: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJson(error) from None
    except RecursionError:
        raise BadRequest("The request body is not read: it is nested too deeply.") from None
    fields = {name: getattr(odd, name) for name in _Fields.__struct_fields__} | {"model": model}
    fields |= {name: _read_small(fields[name]) for name in _SMALL}
    return Request(**fields, messages=messages(odd.messages))


def _read_model(raw: msgspec.Raw) -> str | None:
    try:
        return _name(raw) if len(raw) else None
    except msgspec.ValidationError as error:
        message = f"The request body is not as expected: {error} - at `$.model`."
        raise BadRequest(message, param="model") from None


def _read_small(raw: msgspec.Raw) -> Small:
    """Return a field that should be a scalar. Raises NotJson."""
    try:
        return _small(raw) if len(raw) else None
    except UnicodeDecodeError as error:
        raise NotJson(error) from None
    except UNEXPECTED:
        return Object()


def _form(body: bytes, content_type: bytes) -> dict[str, str]:
    """Return the form fields of an upload; of a repeated field the last one counts, as in vLLM."""
    if content_type.partition(b";")[0].strip().lower() != b"multipart/form-data":
        raise BadRequest("The request body must be a form: `multipart/form-data`.")
    if _is_encoded(body):
        raise BadRequest(
            "A form's fields must not have a Content-Transfer-Encoding, which not all readers"
            " decode: send them as they are, without that header field."
        )
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


def _is_encoded(form: bytes) -> bool:
    for start in range(0, len(form), _STEP):
        for found in _ENCODED.finditer(form, start, start + _STEP + 32):  # it may be cut there
            if not _NOT_ENCODED.match(form, found.end()):
                return True
    return False
