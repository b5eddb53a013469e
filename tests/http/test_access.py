"""Which API keys in a request's headers are accepted, and under what name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.access import Keys

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789ab"
DOOR = Keys([("alice", ALICE), ("bob", BOB)])
Headers = list[tuple[bytes, bytes]]


def headers(*lines: str) -> Headers:
    """Build headers from `name: value` lines, between two that every request has."""
    pairs = [line.split(":", 1) for line in ("host: a", *lines, "accept: */*")]
    return [(name.encode(), value.lstrip(" ").encode()) for name, value in pairs]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([f"authorization: Bearer {ALICE}"], "alice"),
        ([f"Authorization: bearer {BOB}"], "bob"),
        ([f"AUTHORIZATION: BEARER   {BOB} "], "bob"),
        ([f"x-api-key: {ALICE}"], "alice"),
        ([f"X-Api-Key: {BOB}"], "bob"),
        ([f"api-key: {BOB}\t"], "bob"),
        ([f"x-api-key: {ALICE}", f"authorization: Bearer {ALICE}"], "alice"),
        ([f"x-api-key: {ALICE}", f"authorization: Bearer {ALICE}", f"api-key: {ALICE}"], "alice"),
        ([f"authorization: Bearer {ALICE}", f"Authorization: bearer {ALICE}"], "alice"),
        ([f"x-api-key: {ALICE}", f"X-API-KEY: {ALICE} "], "alice"),
    ],
)
def test_a_key_opens_the_door(lines: list[str], name: str) -> None:
    """As OpenAI's, Anthropic's and Azure's clients send keys, also several times at once."""
    assert DOOR.identify(headers(*lines)) == name


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["authorization: Bearer sk-mallory-01234567"],
        [f"authorization: Bearer {ALICE}x"],
        [f"authorization: Bearer {ALICE[:-1]}"],
        [f"authorization: Bearer {ALICE.upper()}"],
        [f"authorization: Bearer {ALICE} {BOB}"],
        [f"authorization: Bearer {ALICE},{BOB}"],
        [f"authorization: Bearer\t{ALICE}"],
        [f"authorization: Basic {ALICE}"],
        [f"authorization: {ALICE}"],
        [f"authorization: Bearer{ALICE}"],
        ["authorization: Bearer"],
        ["authorization: Bearer "],
        ["authorization:"],
        ["x-api-key:"],
        [f"x-api-key: Bearer {ALICE}"],
        [f"proxy-authorization: Bearer {ALICE}"],
        [f"cookie: {ALICE}"],
        [f"authorization : Bearer {ALICE}"],
    ],
)
def test_anything_else_does_not(lines: list[str]) -> None:
    """No key, a wrong one, part of one, another scheme or another header is refused."""
    assert DOOR.identify(headers(*lines)) is None


@pytest.mark.parametrize(
    "lines",
    [
        [f"authorization: Bearer {ALICE}", f"x-api-key: {BOB}"],
        [f"authorization: Bearer {ALICE}", "x-api-key: sk-mallory-01234567"],
        ["authorization: Bearer sk-mallory-01234567", f"x-api-key: {ALICE}"],
        [f"authorization: Basic {ALICE}", f"x-api-key: {ALICE}"],
        [f"authorization: Bearer {ALICE}", "api-key:"],
        [f"authorization: Bearer {ALICE}", f"authorization: Bearer {BOB}"],
        [f"x-api-key: {ALICE}", f"X-API-KEY: {BOB}"],
    ],
)
def test_two_credentials_are_none(lines: list[str]) -> None:
    """Two different keys are refused: neither may win."""
    assert DOOR.identify(headers(*lines)) is None
    assert DOOR.identify(headers(*reversed(lines))) is None


def test_a_door_without_keys_lets_nobody_in() -> None:
    """Without keys every request is refused, including one that sends none."""
    assert Keys([]).identify(headers(f"x-api-key: {ALICE}")) is None
    assert Keys([]).identify([]) is None


@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key"]), st.binary())))
def test_any_headers_are_an_answer(fields: Headers) -> None:
    """Arbitrary headers never match a key and never raise."""
    assert DOOR.identify(fields) is None
