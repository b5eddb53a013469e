"""Lists in bodies: what is looked at, and what would take too long."""

import msgspec
import pytest

from router.errors import BadRequest
from router.images import images
from router.messages import MOST_ENTRIES, entries, messages
from router.openai import ENDPOINTS, MOST_FIELDS, parse

CHAT = ENDPOINTS["/v1/chat/completions"]
AUDIO = ENDPOINTS["/v1/audio/transcriptions"]


def raw(text: str) -> msgspec.Raw:
    """As it is found in a body."""
    return msgspec.Raw(text.encode())


def listed(element: str, count: int) -> msgspec.Raw:
    """So many of it."""
    return raw("[" + ",".join([element] * count) + "]")


@pytest.mark.parametrize("element", ["{}", '"a"', '{"type":"text","text":"1,2,3"}'])
@pytest.mark.parametrize("more", [0, 1])
def test_as_many_as_are_looked_at(element: str, more: int) -> None:
    """And no more."""
    found = entries(listed(element, MOST_ENTRIES + more))
    assert (found is None) is bool(more)


def test_one_long_text_is_one_element() -> None:
    """Whatever is in it."""
    text = "1,[{},2]," * 100_000
    assert entries(raw(f'[{{"type":"text","text":"{text}"}}]')) is not None
    assert images([raw(f'[{{"type":"text","text":"{text}"}}]')]) == 0


@pytest.mark.parametrize("junk", ["1", "null", "[]", "true"])
def test_something_else_in_a_long_list(junk: str) -> None:
    """No worker takes it, and it would be taken apart for nothing; a short one is the worker's."""
    long, short = listed(junk, 100_000), listed(junk, 3)
    assert entries(long) is None
    with pytest.raises(BadRequest, match="too many parts"):
        images([long])
    with pytest.raises(BadRequest, match="more messages than can be read"):
        messages(long)
    assert (len(entries(short) or ()), len(messages(short)), images([short])) == (3, 3, 0)


def form(field: bytes, kind: bytes = b"multipart/form-data; boundary=x") -> dict[str, object]:
    """What is read of a form with one field, or many."""
    found = parse(AUDIO, field + b"--x--\r\n", kind)
    return {"model": found.model, "n": found.n}


def field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    """One of a form."""
    return b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name, more, value)


def test_a_form() -> None:
    """Its fields, in the one way to write it."""
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
            field(b"a", b"") * (MOST_FIELDS + 1),
            b"Multipart/Form-Data; boundary=x",
            f"more than {MOST_FIELDS} fields",
        ),
    ],
)
def test_forms_that_others_might_read_otherwise(body: bytes, kind: bytes, said: str) -> None:
    """Or that take too long."""
    with pytest.raises(BadRequest, match=said):
        form(body, kind)
