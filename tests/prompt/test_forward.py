"""Token ids are added to a chat request, and nothing else in it changes."""

import json
from array import array
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from router.api.request import ENGINE_FIELDS, parse
from router.prompt.forward import may_have, with_ids, written
from router.prompt.prompts import KnownModel, Prompts
from router.rendering.tokens import PromptTokenizer

CHAT = ENDPOINTS["/v1/chat/completions"]
IDS = array("I", [1, 2, 4_000_000_000]).tobytes()
LISTED = b"[1,2,4000000000]"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text().filter(lambda key: key not in {"model", "echo", *ENGINE_FIELDS}), VALUES
    ),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.sampled_from(["", " ", "\n", "\r\n\t "]),
)
def test_the_rest_stays(body: dict[str, Any], separators: tuple[str, str], end: str) -> None:
    """The rest of the body is unchanged, whatever it holds and however it is written."""
    body = {"messages": [], **body}
    data = (json.dumps(body, separators=separators) + end).encode()
    added = with_ids(data, LISTED)
    assert may_have(parse(CHAT, data, b""))
    params = {"prompt_token_ids": [1, 2, 4_000_000_000]}
    assert json.loads(added) == {**body, "kv_transfer_params": params}
    assert added.startswith(data.rstrip()[:-1])


@pytest.mark.parametrize(
    "more",
    [
        '"kv_transfer_params":{"do_remote_decode":true}',
        r'"kv\u005ftransfer_params":{"do_remote_decode":true}',
        r'"\u0065cho":true',
        '"echo":true',
        '"echo" : 0',
    ],
)
def test_what_says_such_things_itself(more: str) -> None:
    """A body that sets these fields, however spelled, is sent without ids; its tokens are known."""
    prompts = Prompts()
    prompts.known = {"m": KnownModel("m", cast("PromptTokenizer", Three()), forward=True)}
    for said, listed in ("", LISTED), (more, None):
        body = ",".join(filter(None, ['{"model":"m"', said, '"messages":[]}'])).encode()
        made = prompts.made(CHAT, parse(CHAT, body, b""), body)
        assert (made.along.listed if made.along else None, made.prompt.tokens) == (listed, 3)


class Three:
    """A tokenizer that returns the same three tokens for every prompt."""

    dated = False

    def ids(self, *_: object, **__: object) -> bytes:
        """Return the three ids."""
        return IDS


@pytest.mark.parametrize("body", [b"{}", b" { } ", b"[1]", b'"x"', b""])
def test_what_is_left_alone(body: bytes) -> None:
    """A body that is not an object, or an empty object, stays as it is."""
    assert with_ids(body, LISTED) == body


def test_without_ids() -> None:
    """Without ids the body stays as it is."""
    assert written(b"") == b""
    assert with_ids(b'{"messages":[]}', b"") == b'{"messages":[]}'


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.integers(0, 1))
def test_ids_are_written(ids: list[int], times: int) -> None:
    """Ids are written as a JSON list, both few and so many that they are written in pieces."""
    ids = ids * 300**times
    listed = written(array("I", ids).tobytes())
    assert json.loads(listed or b"[]") == ids
