"""Limits on what one request may ask for, so that no single one can take a worker down.

Numbers are cheap to check. Parts of messages are decoded only if they are large enough to hold too
many images; in most requests, no message is a list of parts.
"""

import re
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from router.api.endpoints import COMPLETION, INPUT, NOTHING, RESPONSES, Endpoint
from router.api.errors import BadRequest
from router.api.media import documents, images
from router.api.messages import UNEXPECTED, Message, Unread, is_list, messages, numerous
from router.api.request import SCORED, Adapted, Request, decode_extra
from router.runtime.threads import ELEMENTS
from router.settings.server import LimitSettings

#: vLLM's P2P connector reads addresses out of the id (`p2p/p2p_nccl_connector.py`,
#: `parse_request_id`), and `/v1/responses` takes it from the body: only ids that hold none.
_SAFE_ID = re.compile(rb'"[A-Za-z0-9._-]{1,128}"')
_fields = attrgetter("engine_fields", "vllm_xargs", "sampling_params", "request_id")


def refuse_engine_fields(request: Request) -> None:
    """Raise BadRequest, with the name of the field, if a request holds one of these fields."""
    if not any(_fields(request)):  # nearly all requests
        return
    if request.engine_fields:
        raise _refusal(next(iter(request.engine_fields)))
    if request.vllm_xargs:
        _refuse_inside("vllm_xargs", request.vllm_xargs)
    if request.sampling_params:
        further = _refuse_inside("sampling_params", request.sampling_params)
        if further:
            _refuse_inside("sampling_params.extra_args", further)
    if request.request_id:
        _check_id(bytes(request.request_id))


def _refuse_inside(name: str, value: msgspec.Raw) -> msgspec.Raw:
    """Do the same for the object `value`; return its `extra_args`."""
    try:
        extra = decode_extra(value)
    except msgspec.ValidationError:
        return msgspec.Raw()  # no object: the worker refuses it
    except UNEXPECTED as error:  # within a form: Python's `json` may read it
        raise BadRequest(f"`{name}` is not valid JSON: {error}.", param=name) from None
    for inner in ("kv_transfer_params", "ec_transfer_params"):
        if bytes(getattr(extra, inner)) not in {b"", b"null"}:
            raise _refusal(f"{name}.{inner}")
    return extra.extra_args


def _check_id(written: bytes) -> None:
    if written[:1] == b'"' and not _SAFE_ID.fullmatch(written):
        raise BadRequest(
            "`request_id` must be 1 to 128 letters, digits, dots, underscores and hyphens.",
            param="request_id",
        )


def _refusal(name: str) -> BadRequest:
    return BadRequest(
        f"`{name}` is for engines among themselves and is not taken from clients; leave it out."
        " (An operator can allow it: `engine_fields: true` at this key, or at the workers.)",
        param=name,
    )


#: Bytes of a list that may have `ELEMENTS` elements worth looking at.
_SCANNED = 64 << 10


class Limits:
    """The limits on every request. `check` is on the hot path."""

    def __init__(self, settings: LimitSettings) -> None:
        self._n = settings.n
        self._best_of = settings.best_of
        self._max_tokens = settings.max_tokens
        self._messages = settings.messages
        self._images = settings.images
        self._prompts = settings.prompts

    def check(self, endpoint: Endpoint, request: Request, *, here: bool = False) -> bool:
        """Raise BadRequest, with the name of the field, if a request asks for too much.

        Returns whether everything was looked at: with `here`, on the event loop, parts that are too
        many to look at without delaying others are left out.
        """
        if request.n is not None:
            _check_number(request, "n", self._n)
        if request.best_of is not None:
            _check_number(request, "best_of", self._best_of)
        if self._max_tokens is not None:
            for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                _check_number(request, field, self._max_tokens)
        whole = True
        if request.messages:
            conversation = _all_messages(request) if endpoint.native else request.messages
            whole = self._check_list("messages", conversation, here)
        if endpoint.prompted is RESPONSES:
            whole = self._check_list("input", messages(request.input, "input"), here) and whole
        elif endpoint.prompted is COMPLETION or endpoint.prompted is INPUT:
            field = "prompt" if endpoint.prompted is COMPLETION else "input"
            raw: msgspec.Raw = getattr(request, field)
            whole = self._check_prompts(_named(request, field), raw, here) and whole
        elif endpoint.prompted is NOTHING:
            whole = self._check_scored(request, here) and whole
        if endpoint.native and isinstance(request, Adapted):
            self._check_native(request)
        return whole

    def _check_native(self, request: Adapted) -> None:
        native = request.native
        inputs = native.beside.get("inputs")  # which have parts, as documents do
        media = {**native.media, "inputs": images(documents(inputs, "inputs")) if inputs else 0}
        count = 0
        for field, more in media.items():
            count += more
            _check_count(field, "images", count, self._images)

    def _check_prompts(self, field: str, raw: msgspec.Raw, here: bool) -> bool:
        if here and len(raw) > _SCANNED and is_list(raw):
            return False
        if numerous(raw, self._prompts):
            raise BadRequest(
                f"`{field}` has more entries than this server's limit of {self._prompts} in one"
                " request.",
                param=field,
            )
        return True

    def _check_scored(self, request: Request, here: bool) -> bool:
        if request.input and not self._check_list("input", messages(request.input, "input"), here):
            return False
        if not self._check_prompts("prompt", request.prompt, here):  # to tokenize or to render
            return False
        count = 0
        for field in SCORED:
            if raw := getattr(request, field):
                if not self._check_prompts(field, raw, here):
                    return False
                count += images(documents(raw, field))
                _check_count(field, "images", count, self._images)
        return True

    def _check_list(self, field: str, conversation: Sequence[Message | Unread], here: bool) -> bool:
        _check_count(field, "messages", len(conversation), self._messages)
        size, parts, lists = 0, 0, list[list[msgspec.Raw] | msgspec.Raw]()
        for message in conversation:
            content = message.content
            if isinstance(content, list):
                size += sum(map(len, content))
                parts += len(content)
                lists.append(content)
            elif isinstance(content, msgspec.Raw) and is_list(content):
                size += len(content)
                parts += len(content) // _SCANNED * ELEMENTS
                lists.append(content)
            if message.output and is_list(message.output):
                size += len(message.output)
                parts += len(message.output) // _SCANNED * ELEMENTS
                lists.append(message.output)
        if here and parts > ELEMENTS:
            return False
        if size > 2 * self._images:  # the shortest part is `{}`
            _check_count(field, "images", images(lists), self._images)
        return True


def _all_messages(request: Request) -> Sequence[Message | Unread]:
    """Return the messages of all conversations."""
    if isinstance(request, Adapted) and request.native.others:
        return (*request.messages, *request.native.others)
    return request.messages


def _named(request: Request, field: str) -> str:
    """Return the name that the client has given a field."""
    return request.native.names.get(field, field) if isinstance(request, Adapted) else field


def _check_number(request: Request, field: str, limit: int) -> None:
    if _number(getattr(request, field)) > limit:
        field = _named(request, field)
        raise BadRequest(f"`{field}` is over this server's limit of {limit}.", param=field)


def _number(value: object) -> int | float:
    """Return what vLLM accepts as a number, also `7.0` and `"7"`; 0 for anything else.

    The worker refuses what is not a number. (Declared a float, an integer beyond all floats would
    be an error once compiled.)
    """
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return 0
    return value if isinstance(value, int | float) else 0


def _check_count(field: str, what: str, count: int, limit: int) -> None:
    if count > limit:
        raise BadRequest(
            f"The request has {count} {what}; this server's limit is {limit} in one request.",
            param=field,
        )
