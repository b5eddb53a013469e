"""Token ids are added to a chat, and nothing else of it changes."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.identity.forward import with_ids

IDS = array("I", [1, 2, 4_000_000_000]).tobytes()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text().filter(lambda key: key not in {"kv_transfer_params", "echo"}), VALUES
    ),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.sampled_from(["", " ", "\n", "\r\n\t "]),
)
def test_the_rest_stays(body: dict[str, Any], separators: tuple[str, str], end: str) -> None:
    """Whatever it is, and however it is written."""
    body = {"messages": [], **body}
    data = (json.dumps(body, separators=separators) + end).encode()
    added = with_ids(data, IDS)
    if b'"kv_transfer_params"' in data or b'"echo"' in data:  # named somewhere within
        assert added == data
        return
    params = {"prompt_token_ids": [1, 2, 4_000_000_000]}
    assert json.loads(added) == {**body, "kv_transfer_params": params}
    assert added.startswith(data.rstrip()[:-1])


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[],"kv_transfer_params":{"do_remote_decode":true}}',
        b'{"messages":[],"kv_transfer_params":null}',
        b'{"messages":[],"echo":true}',
        b"{}",
        b" { } ",
        b"[1]",
        b'"x"',
        b"",
    ],
)
def test_what_is_left_alone(body: bytes) -> None:
    """A request that says such things itself, or is no object."""
    assert with_ids(body, IDS) == body


def test_without_ids() -> None:
    """There is nothing to add."""
    assert with_ids(b'{"messages":[]}', b"") == b'{"messages":[]}'
