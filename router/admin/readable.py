"""Whether a request holds a prompt of a kind that its endpoint takes.

Only explanations check this. A request that is sent is judged by its worker, whose answer the
client gets; without a worker, nobody would say that what was read is not the whole prompt.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Raw

from router.api.endpoints import Endpoint, Prompted
from router.api.errors import BadRequest
from router.api.messages import MAX_ONE_PASS_BYTES, UNEXPECTED, Object, entries, is_list

_Content = str | list[str | Object] | None
_Id = Annotated[int, msgspec.Meta(ge=0)]
_Way = Callable[[Raw], object]


class _Turn(msgspec.Struct, gc=False):
    """A message of a chat."""

    role: str
    content: _Content = None


class _BareTurn(msgspec.Struct, gc=False):
    """A message whose content is not looked at."""

    role: str


class _Item(msgspec.Struct, gc=False):
    """An item of `/v1/responses`; only messages have a role."""

    role: str | None = None
    content: _Content = None


class _BareItem(msgspec.Struct, gc=False):
    """An item whose content is not looked at."""

    role: str | None = None


class _Given(msgspec.Struct):
    """The fields that a prompt can be in."""

    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    prompt_embeds: Raw = Raw()
    data: Raw = Raw()
    text: Raw = Raw()
    input_ids: Raw = Raw()
    token_ids: Raw = Raw()
    texts: Raw = Raw()


_given = msgspec.json.Decoder(_Given).decode
_turns: _Way = msgspec.json.Decoder(list[_Turn]).decode
_bare_turns: _Way = msgspec.json.Decoder(list[_BareTurn]).decode
_items: _Way = msgspec.json.Decoder(str | list[_Item]).decode
_bare_items: _Way = msgspec.json.Decoder(str | list[_BareItem]).decode
# Not strict: to vLLM, `1.0` is a token id, too.
_prompt: _Way = msgspec.json.Decoder(str | list[str | _Id | list[_Id]], strict=False).decode
# Objects are what some versions of vLLM embed images from.
_embedded: _Way = msgspec.json.Decoder(
    str | Object | list[str | _Id | list[_Id] | Object], strict=False
).decode


def check(endpoint: Endpoint, body: bytes) -> None:
    """Raise BadRequest, with the name of the field, if a body that was parsed has no such prompt.

    In a field over `SAFE`, neither token ids nor the parts of messages are looked at, as there can
    be millions.
    """
    given = _given(body)
    match endpoint.prompted:
        case Prompted.CHAT | Prompted.MESSAGES:
            for conversation in _conversations(endpoint, given.messages):
                _read("messages", conversation, _turns, _bare_turns)
        case Prompted.RESPONSES:
            _read("input", given.input, _items, _bare_items)
        case Prompted.COMPLETION:
            field, raw = _plain(endpoint, given)
            if _is_given(raw) or not _is_given(given.prompt_embeds):
                _read(field, raw, _prompt, _but_lists(_prompt))
        case Prompted.INPUT:
            _check_input(endpoint, given)
        case Prompted.NOTHING:
            pass


def _check_input(endpoint: Endpoint, given: _Given) -> None:
    field, raw = _plain(endpoint, given)
    if _is_given(given.messages):
        _read("messages", given.messages, _turns, _bare_turns)
    elif _is_given(given.data) or (endpoint.native and not _is_given(raw)):
        pass  # for a plug-in of the engine, or images alone
    else:
        _read(field, raw, _embedded, _but_lists(_embedded))


def _plain(endpoint: Endpoint, given: _Given) -> tuple[str, Raw]:
    """Return name and content of the field that a prompt without messages is in."""
    names = endpoint.sources or ("prompt",)
    found = (name for name in names if _is_given(getattr(given, name)))
    name = next(found, names[0])
    return name, getattr(given, name)


def _conversations(endpoint: Endpoint, raw: Raw) -> list[Raw]:
    """Return the conversations of a request: one, unless it is a batch."""
    if not endpoint.batched:
        return [raw]
    found = entries(raw)
    if not found:
        raise _unexpected("messages", "Expected `array` of conversations - at `$.messages`")
    return found


def _is_given(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:4]) not in {b"", b"null"}


def _but_lists(way: _Way) -> _Way:
    """Return `way` for all but lists, which are taken as they are."""
    return lambda raw: None if is_list(raw) else way(raw)


def _read(field: str, raw: Raw, way: _Way, way_if_long: _Way) -> None:
    if not raw:
        raise _unexpected(field, f"Object missing required field `{field}`")
    try:
        found = way(raw) if len(raw) <= MAX_ONE_PASS_BYTES else way_if_long(raw)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise _unexpected(field, f"{what} - at `$.{field}{where or '`'}") from None
    except UNEXPECTED as error:  # not UTF-8: texts that are skipped are not decoded
        raise BadRequest(f"The request body is not valid JSON: {error}.", param=field) from None
    if isinstance(found, list) and len(set(map(type, found))) > 1:
        raise _unexpected(field, f"Expected elements of one kind - at `$.{field}`")


def _unexpected(field: str, why: str) -> BadRequest:
    return BadRequest(f"The request body is not as expected: {why}.", param=field)
