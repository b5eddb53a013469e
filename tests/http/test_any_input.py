"""Arbitrary input, HTTP or not, never causes a router error or a hang."""

import json
import socket
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from tests.support import Router, error_of

CHAT = "/v1/chat/completions"
FORM = "/v1/audio/transcriptions"
MULTIPART = "multipart/form-data; boundary=xx"


def test_a_client_that_says_nothing(door: Router) -> None:
    """A connection that sends nothing does not block others."""
    with socket.create_connection(("127.0.0.1", door.port)):
        assert door.http.get("/health/live").status_code == 200


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["messages", "prompt", "input", "stream", "max_tokens", "tools", "system", "cache_salt", "n"]
)
BODIES = st.fixed_dictionaries({"model": st.just("m")}) | st.dictionaries(FIELDS, ANYTHING).map(
    lambda fields: {"model": "m", **fields}
)
PATHS = st.sampled_from(sorted(ENDPOINTS))
quickly = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def answered(
    door: Router, path: str, body: bytes, kind: str = "application/json"
) -> httpx.Response:
    """Return the answer; check that it is no 5xx, and a proper error if it is the router's."""
    reply = door.http.post(path, content=body, headers={"content-type": kind})
    assert reply.status_code < 500
    if "x-warmroute-worker" not in reply.headers:
        error_of(reply)
    return reply


@quickly
@given(path=PATHS, body=BODIES)
def test_any_json_object_is_relayed(door: Router, path: str, body: dict[str, Any]) -> None:
    """With a known model every JSON object is routed, unless a number is over its limit."""
    reply = answered(door, path, json.dumps(body).encode())
    floats = ("NaN", "Infinity")  # not JSON, though Python writes them
    if not ENDPOINTS[path].form and not any(word in json.dumps(body) for word in floats):
        over = reply.status_code == 400 and "`n`" in error_of(reply)["message"]
        assert reply.status_code == 200 or over, reply.text


@quickly
@given(path=PATHS, body=ANYTHING)
def test_any_json_is_answered(door: Router, path: str, body: object) -> None:
    """Any JSON value is answered, with a model or without."""
    answered(door, path, json.dumps(body).encode())


@quickly
@given(
    path=PATHS,
    body=st.binary(max_size=200),
    kind=st.sampled_from(["application/json", MULTIPART, "application/x-www-form-urlencoded", "a"]),
)
def test_any_bytes_are_answered(door: Router, path: str, body: bytes, kind: str) -> None:
    """Any bytes are answered, whatever their content type."""
    answered(door, path, body, kind)


@quickly
@given(
    pieces=st.lists(
        st.sampled_from([b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}', b"\\u"])
        | st.binary(max_size=6),
        max_size=6,
    ),
)
def test_almost_json_is_answered(door: Router, pieces: list[bytes]) -> None:
    """Bodies that start like a valid request and then break are answered."""
    answered(door, CHAT, b"".join(pieces))


@quickly
@given(
    pieces=st.lists(
        st.sampled_from(
            [
                b"--xx\r\n",
                b'content-disposition: form-data; name="model"\r\n',
                b'content-disposition: form-data; name="file"; filename="a"\r\n',
                b"content-transfer-encoding: base64\r\n",
                b"\r\n",
                b"m",
                b"--xx--\r\n",
            ]
        )
        | st.binary(max_size=6),
        max_size=10,
    ),
)
def test_almost_forms_are_answered(door: Router, pieces: list[bytes]) -> None:
    """Almost valid multipart forms are answered."""
    answered(door, FORM, b"".join(pieces), MULTIPART)
