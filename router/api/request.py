"""The few fields of a request that the router reads, and those that it adds.

Everything else in a body stays byte for byte as received.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, parse_options_header

from router.api.endpoints import Endpoint
from router.api.errors import BadRequest
from router.api.lenient_json import SURROGATE, true, whole
from router.api.messages import MAX_ONE_PASS_BYTES, UNEXPECTED, Message, Object, Unread, messages
from router.api.native import Native, native
from router.runtime.threads import count

#: Fields by which engines and their routers steer each other (`proxy/limits.py`).
ENGINE_FIELDS = (
    "kv_transfer_params",  # vLLM, any KV connector
    "ec_transfer_params",
    "bootstrap_host",  # SGLang's prefill/decode pairs
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "data_parallel_rank",  # SGLang's ranks
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "decode_tp_size",  # what its own processes tell each other (`srt/managers/io_struct.py`)
    "http_worker_ipc",
    "kv_hints",
    "mm_hashes",
    "need_wait_for_mm_inputs",
    "num_items_assigned",
)

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
    # `ENGINE_FIELDS`: hardly any request has one that is not null. That one is decoded the other
    # way, so that nobody has to look at all of them.
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    bootstrap_host: None = None
    bootstrap_port: None = None
    bootstrap_room: None = None
    bootstrap_pair_key: None = None
    data_parallel_rank: None = None
    routed_dp_rank: None = None
    disagg_prefill_dp_rank: None = None
    decode_tp_size: None = None
    http_worker_ipc: None = None
    kv_hints: None = None
    mm_hashes: None = None
    need_wait_for_mm_inputs: None = None
    num_items_assigned: None = None
    # What may hold such fields.
    vllm_xargs: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw()
    request_id: msgspec.Raw = msgspec.Raw()
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
    store: msgspec.Raw = msgspec.Raw()
    suffix: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    tool_choice: Small = None

    @property
    def answer_limit(self) -> int | None:
        """Most tokens that the client allows for the answer, if it says."""
        given = self.max_completion_tokens or self.max_tokens or self.max_output_tokens
        limit = given if type(given) is int else whole(given)
        return limit if limit and limit > 0 else None


class Request(_Fields):
    """The part of a request that is read."""

    messages: Sequence[Message | Unread] = ()
    """An entry that is not a message is represented by an empty `Message`."""
    engine_fields: Mapping[str, msgspec.Raw] | None = None
    """Those of `ENGINE_FIELDS` that it has and that are not null."""


class Adapted(Request):
    """A request in another form, as if it had OpenAI's."""

    native: Native = msgspec.field(default_factory=Native)


class _Read(Request):
    messages: list[Message] = []
    engine_fields: None = None


class _Unread(Request):
    messages: list[Unread] = []
    engine_fields: None = None


class _Extra(msgspec.Struct):
    """The engine fields that vLLM also takes one level deeper (`SamplingParams.extra_args`)."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    ec_transfer_params: msgspec.Raw = msgspec.Raw()
    extra_args: msgspec.Raw = msgspec.Raw()


decode_extra: Callable[[bytes | msgspec.Raw], _Extra] = msgspec.json.Decoder(_Extra).decode

#: The fields of requests to rerank or to score that hold what is scored.
SCORED = ("query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
_SMALL = [
    field.name
    for field in msgspec.structs.fields(_Fields)
    if field.default is None and field.name not in {"model", *ENGINE_FIELDS}
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
MAX_OBJECTS = 1 << 16
#: Most objects, lists and fields of a body, by the marks that begin them: a decoder takes up to
#: 40 ns for each, all in one step, in which nobody else is served.
MAX_VALUES = 1 << 19
#: Most fields of a form; the same limit as Starlette's, which vLLM parses forms with.
MAX_FIELDS = 1000
#: A form field with a transfer encoding: some parsers decode it and some do not. It is deprecated
#: (RFC 7578 section 4.7).
_ENCODED = re.compile(rb"\ncontent-transfer-encoding:", re.IGNORECASE)
_NOT_ENCODED = re.compile(rb" *(?:7bit|8bit|binary) *\r", re.IGNORECASE)
#: Starlette decodes even the names of fields by it (`starlette/formparsers.py`), UTF-7 included.
_CHARSETS = frozenset((b"utf-8", b"utf8", b"us-ascii"))
#: Bytes of a form that are searched for it at once.
_STEP_BYTES = 1 << 20
#: The form fields that are read; a form holds them as text.
_FORM_FIELDS = frozenset(
    (b"model", b"stream", b"n", b"best_of", b"max_tokens", b"max_completion_tokens")
)
#: The form fields that are kept as they are written: vLLM reads JSON in the last one.
_RAW_FORM_FIELDS = frozenset(name.encode() for name in (*ENGINE_FIELDS, "vllm_xargs"))


class NotJson(BadRequest):
    """The body is not JSON to msgspec; Python, and so the worker, may read it.

    See `lenient_json.py`.
    """

    def __init__(self, why: object) -> None:
        super().__init__(f"The request body is not valid JSON: {why}.")


def parse(endpoint: Endpoint, body: bytes, content_type: bytes, *, texts: bool = True) -> Request:
    """Read what routing needs from `body`. Raises BadRequest, NotJson.

    Without `texts`, the contents of messages are decoded only if somebody asks for them.
    """
    if endpoint.form:
        fields = _form(body, content_type)
        raw = {name: msgspec.Raw(fields.pop(name)) for name in ENGINE_FIELDS if name in fields}
        request: Request = msgspec.convert(fields, _Read)
        request.engine_fields = _given(raw)
    else:
        request = _parse(body, texts=texts)
    if request.stream is not None and request.stream is not True:
        request.stream = true(request.stream)
    return _adapted(endpoint, request, body) if endpoint.native else request


def _parse(body: bytes, *, texts: bool) -> Request:
    if len(body) > MAX_ONE_PASS_BYTES:
        texts = False
        objects = count(body, b"{")
        if max(objects, count(body, b"["), count(body, b'":')) > MAX_VALUES:
            raise BadRequest(
                f"The request body has more than {MAX_VALUES} objects, lists or fields, which"
                " would delay others: send it in several requests."
            )
        if objects > MAX_OBJECTS:
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
    names = [name for name in _Fields.__struct_fields__ if name not in ENGINE_FIELDS]
    fields = {name: getattr(odd, name) for name in names} | {"model": model}
    fields |= {name: _read_small(fields[name]) for name in _SMALL}
    engine_fields = _given({name: getattr(odd, name) for name in ENGINE_FIELDS})
    return Request(**fields, messages=messages(odd.messages), engine_fields=engine_fields)


def _given(fields: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {name: raw for name, raw in fields.items() if bytes(raw) not in {b"", b"null"}}


def _read_model(raw: msgspec.Raw) -> str | None:
    try:
        return _name(raw) if len(raw) else None
    except msgspec.ValidationError as error:
        message = f"The request body is not as expected: {error} - at `$.model`."
        raise BadRequest(message, param="model") from None


def _adapted(endpoint: Endpoint, request: Request, body: bytes) -> Adapted:
    """Add what is in another form. Raises BadRequest."""
    other = native(
        body, endpoint.sources, batched=endpoint.batched, after_system=endpoint.after_system
    )
    fields = {name: getattr(request, name) for name in Request.__struct_fields__}
    adapted = Adapted(**fields | other.replaced, native=other)
    if adapted.stream is None and endpoint.streams:
        adapted.stream = True
    return adapted


def _read_small(raw: msgspec.Raw) -> Small:
    """Return a field that should be a scalar. Raises NotJson."""
    try:
        return _small(raw) if len(raw) else None
    except UnicodeDecodeError as error:
        raise NotJson(error) from None
    except UNEXPECTED:
        return Object()


def _form(body: bytes, content_type: bytes) -> dict[str, str | msgspec.Raw]:
    """Return the form fields of an upload; of a repeated field the last one counts, as in vLLM."""
    if content_type.partition(b";")[0].strip().lower() != b"multipart/form-data":
        raise BadRequest("The request body must be a form: `multipart/form-data`.")
    if parse_options_header(content_type)[1].get(b"charset", b"utf-8").lower() not in _CHARSETS:
        raise BadRequest("The form's `charset` must be `utf-8`; leave it out.")
    if _is_encoded(body):
        raise BadRequest(
            "A form's fields must not have a Content-Transfer-Encoding, which not all readers"
            " decode: send them as they are, without that header field."
        )
    fields: dict[str, str | msgspec.Raw] = {}
    count = 0

    def counted(_: object) -> None:
        nonlocal count
        count += 1
        if count > MAX_FIELDS:
            raise ValueError(f"it has more than {MAX_FIELDS} fields")

    def on_field(field: Field) -> None:
        counted(field)
        if field.field_name in _FORM_FIELDS and field.value is not None:
            fields[field.field_name.decode()] = field.value.decode(errors="replace")
        elif field.field_name in _RAW_FORM_FIELDS and field.value:
            fields[field.field_name.decode()] = msgspec.Raw(field.value)

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
    return fields


def _is_encoded(form: bytes) -> bool:
    for start in range(0, len(form), _STEP_BYTES):
        # The bytes beyond a step hold what its end would cut off.
        for match in _ENCODED.finditer(form, start, start + _STEP_BYTES + 32):
            if not _NOT_ENCODED.match(form, match.end()):
                return True
    return False


_BLANKS = b" \t\r\n"


def with_field(body: bytes, field: bytes) -> bytes:
    """Return a JSON object with a field (`"name":value`) inserted before its last brace.

    If the name occurs twice then, Python's `json`, with which engines read bodies, takes the last.
    An empty object, or a body that is not an object, is returned unchanged: nothing can be added
    without changing what it asks for.
    """
    end = len(body.rstrip(_BLANKS)) - 1
    if end < 1 or body[end : end + 1] != b"}":
        return body
    if not body[:end].rstrip(_BLANKS + b"{"):
        return body
    return b"%b,%b}" % (body[:end], field)
