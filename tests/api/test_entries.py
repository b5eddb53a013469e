"""Lists in request bodies: how many elements are looked at, and which lists are refused unread."""

import msgspec
import pytest

from router.api.endpoints import ENDPOINTS
from router.api.errors import BadRequest
from router.api.media import images
from router.api.messages import MAX_ENTRIES, entries, messages
from router.api.request import MAX_FIELDS, parse

CHAT = ENDPOINTS["/v1/chat/completions"]
AUDIO = ENDPOINTS["/v1/audio/transcriptions"]


def raw(text: str) -> msgspec.Raw:
    """Return JSON text as it is found in a body."""
    return msgspec.Raw(text.encode())


def listed(element: str, count: int) -> msgspec.Raw:
    """Return a list that repeats one element."""
    return raw("[" + ",".join([element] * count) + "]")


@pytest.mark.parametrize("element", ["{}", '"a"', '{"type":"text","text":"1,2,3"}'])
@pytest.mark.parametrize("more", [0, 1])
def test_as_many_as_are_looked_at(element: str, more: int) -> None:
    """A list of `MOST_ENTRIES` elements is read, one with more is not."""
    found = entries(listed(element, MAX_ENTRIES + more))
    assert (found is None) is bool(more)


def test_one_long_text_is_one_element() -> None:
    """Commas and brackets inside a text are not counted as elements."""
    text = "1,[{},2]," * 100_000
    assert entries(raw(f'[{{"type":"text","text":"{text}"}}]')) is not None
    assert images([raw(f'[{{"type":"text","text":"{text}"}}]')]) == 0


@pytest.mark.parametrize("junk", ["1", "null", "[]", "true"])
def test_something_else_in_a_long_list(junk: str) -> None:
    """A long list of anything else is refused unread: no worker takes it. A short one is passed."""
    long, short = listed(junk, 100_000), listed(junk, 3)
    assert entries(long) is None
    with pytest.raises(BadRequest, match="too many parts"):
        images([long])
    with pytest.raises(BadRequest, match="more messages than can be read"):
        messages(long)
    assert (len(entries(short) or ()), len(messages(short)), images([short])) == (3, 3, 0)


def form(field: bytes, kind: bytes = b"multipart/form-data; boundary=x") -> dict[str, object]:
    """Return the fields that are read of a form."""
    found = parse(AUDIO, field + b"--x--\r\n", kind)
    return {"model": found.model, "n": found.n}


def field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    """Return one field of a form."""
    return b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name, more, value)


def test_a_form() -> None:
    """Fields are read in the one encoding that all parsers agree on."""
    assert form(field(b"model", b"m") + field(b"n", b"3")) == {"model": "m", "n": "3"}
    plain = b"\r\nContent-Transfer-Encoding: 8bit"
    assert form(field(b"model", b"m", plain))["model"] == "m"


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"model=m&%6e=10", b"application/x-www-form-urlencoded", "must be a form"),
        (b"", b"application/octet-stream", "must be a form"),
        (b"", b"", "must be a form"),
        (
            field(b"n", b"MTA=", b"\r\ncontent-transfer-encoding:base64"),
            b"multipart/form-data; boundary=x",
            "Content-Transfer-Encoding",
        ),
        (
            field(b"a", b"") * (MAX_FIELDS + 1),
            b"Multipart/Form-Data; boundary=x",
            f"more than {MAX_FIELDS} fields",
        ),
    ],
)
def test_forms_that_others_might_read_otherwise(body: bytes, kind: bytes, said: str) -> None:
    """A form that a worker might read differently, or that takes too long to read, is refused."""
    with pytest.raises(BadRequest, match=said):
        form(body, kind)
