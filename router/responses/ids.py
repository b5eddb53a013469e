"""Ids of responses: in paths, in requests, and at the beginning of answers. Pure."""

import re
from typing import Final, NamedTuple

import msgspec

from router.api.messages import UNEXPECTED

_CREATE: Final = "/v1/responses"
_BEFORE: Final = _CREATE + "/"
#: What follows `/v1/responses/` in other paths, of OpenAI and of vLLM.
_TAKEN: Final = "compact|input_tokens|render"
#: vLLM and SGLang make `resp_` and 32 hexadecimal digits; vLLM takes any text as the field
#: `request_id`. These characters mean nothing in a path (RFC 3986 section 2.3), and no id is `..`.
ID: Final = rf"(?!(?:\.+|{_TAKEN})(?:/|$))[A-Za-z0-9_.~-]{{1,128}}"
_PATH: Final = re.compile(rf"{_BEFORE}({ID})(|/cancel|/input_items)")
_VALID: Final = re.compile(ID.encode())
#: The methods of each path: those that vLLM and SGLang serve, and the others of OpenAI's.
_METHODS: Final = {"": "GET, DELETE", "/cancel": "POST", "/input_items": "GET"}
#: Bytes of an answer in which its id is looked for.
MAX_BEGINNING_BYTES: Final = 4096
#: What matters of JSON; a quotation mark alone begins a string that is cut off.
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\],:]', re.DOTALL)


class Stored(NamedTuple):
    """A path of one response."""

    id: str
    rest: str
    """What follows the id."""

    @property
    def path(self) -> str:
        """The same at a worker."""
        return f"{_BEFORE}{self.id}{self.rest}"

    @property
    def methods(self) -> str:
        """The methods that are allowed, as `Allow` lists them."""
        return _METHODS[self.rest]


def stored(path: str) -> Stored | None:
    """Parse a path; None if it is not one of a single response."""
    if not path.startswith(_BEFORE):
        return None
    match = _PATH.fullmatch(path)
    return None if match is None else Stored(match[1], match[2])


def every(response: str) -> list[Stored]:
    """Return all paths of one response."""
    return [Stored(response, rest) for rest in _METHODS]


def asked(raw: msgspec.Raw) -> str:
    """Return the id in the field `previous_response_id`; empty if it has none."""
    try:
        return _text(raw)
    except UNEXPECTED:
        return ""  # the worker says what is wrong with it


def id_in(beginning: bytes) -> str:
    """Return the id of a response by the beginning of its answer; empty if it is not there.

    That is the field `id` of an answer in one piece, or of the `response` in a stream's event.
    """
    if beginning.lstrip()[:1] == b"{":
        return _id(beginning)
    events = (line[5:] for line in beginning.splitlines() if line.startswith(b"data:"))
    return next(filter(None, map(_id, events)), "")


def _id(json: bytes) -> str:
    """Return the `id` of an object, or of its `response`, as far as the object is there."""
    depth, within, key, last = 0, False, b"", b""
    for token in _MARKS.finditer(json):
        mark = token[0]
        if mark == b":":
            key = last
        elif mark in {b"{", b"["}:
            within |= depth == 1 and mark == b"{" and key == b'"response"'
            depth, key = depth + 1, b""
        elif mark in {b"}", b"]"}:
            depth, key = depth - 1, b""
            within &= depth > 1
        elif mark == b",":
            key = b""
        elif mark == b'"':
            break
        elif key == b'"id"' and (depth == 1 or (within and depth == 2)):
            response = mark[1:-1]
            return response.decode() if _VALID.fullmatch(response) else ""
        else:
            last = mark
    return ""


_text = msgspec.json.Decoder(str).decode
