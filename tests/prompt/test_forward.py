"""Token ids are added to a chat request, and nothing else in it changes."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.request import ENGINE_FIELDS, parse
from router.prompt.forward import may_have, with_ids, written
from tests.prompt.prompted import CHAT, Tokenizer, knowing, made

IDS = [1, 2, 4_000_000_000]
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
    assert json.loads(added) == {**body, "kv_transfer_params": {"prompt_token_ids": IDS}}
    assert added.startswith(data.rstrip()[:-1])


@pytest.mark.parametrize(
    ("more", "dated", "sent"),
    [
        ("", False, True),
        ('"tools":[{}]', False, True),
        ('"tool_choice":"none"', False, True),
        ('"tools":[{}],"tool_choice":"auto"', False, True),
        ('"tools":[{}],"tool_choice":"none"', False, False),
        ('"kv_transfer_params":{"do_remote_decode":true}', False, False),
        (r'"kv\u005ftransfer_params":{"do_remote_decode":true}', False, False),
        (r'"\u0065cho":true', False, False),
        ('"echo" : 0', False, False),
        ("", True, False),
    ],
)
def test_which_ids_are_sent_along(more: str, dated: bool, sent: bool) -> None:
    """None if the engine might make others (without the tools, or with another date), or if the
    body sets such fields itself, however spelled. The prompt is keyed by tokens in any case."""
    tokenizer = Tokenizer(lambda _: IDS)
    tokenizer.dated = dated
    body = ",".join(filter(None, ['{"model":"m"', more, '"messages":[]}'])).encode()
    found = made(CHAT, body, knowing(tokenizer, forward=True))
    assert (found.reason, found.prompt.tokens) == ("", 3)
    assert (found.along.listed if found.along else None) == (LISTED if sent else None)


@pytest.mark.parametrize("body", [b"{}", b" { } ", b"[1]", b'"x"', b""])
def test_what_is_left_alone(body: bytes) -> None:
    """A body that is not an object, or an empty object, stays as it is."""
    assert with_ids(body, LISTED) == body


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.integers(0, 1))
def test_ids_are_written(ids: list[int], times: int) -> None:
    """As a JSON list, also so many that they are written in pieces; without any, nothing is."""
    ids = ids * 300**times
    listed = written(array("I", ids).tobytes())
    assert json.loads(listed or b"[]") == ids
    assert (with_ids(b'{"messages":[]}', listed) == b'{"messages":[]}') is not bool(ids)
