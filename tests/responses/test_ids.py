"""Ids in paths and at the beginning of answers."""

import pytest

from router.responses.ids import id_in, stored


@pytest.mark.parametrize(
    ("beginning", "response"),
    [
        (b'{"id":"resp_1","object":"response"}', "resp_1"),
        (b'{"object":"response","output":[{"id":"msg_1"}],"id":"resp_1"}', "resp_1"),
        (b'{"response":{"output":{"id":"o"},"id":"resp_1"}}', "resp_1"),
        (b'data: {"response":{"id":"resp_1","instr', "resp_1"),
        (b'event: x\r\ndata:{"id":7,"response":{"id":"resp_1"}}\r\n\r\n', "resp_1"),
        (b'data: [DONE]\n\ndata: {"response":{"id":"resp_1"}}\n\n', "resp_1"),
        (b'{"text":"\\"id\\":\\"resp_2\\"","id":"resp_1"}', "resp_1"),
        (b'{"text":"unfinished \\"id\\":\\"resp_2', ""),
        (b'{"response":[{"id":"resp_2"}]}', ""),
        (b'{"response":{"x":1},"other":{"id":"resp_2"}}', ""),
        (b'{"metadata":{"response":{"id":"resp_2"}}}', ""),
        (b'{"value":"id","x":"resp_2"}', ""),
        (b'{"id":"resp_', ""),
        (b'{"id":null}', ""),
        (b'{"id":"a/b"}', ""),
        (b'{"id":".."}', ""),
        (b'{"id":"%s"}' % (b"x" * 129), ""),
        (b'["id","resp_2"]', ""),
        (b'"id":"resp_2"', ""),
        (b"}}}]]]", ""),
        (b"", ""),
    ],
)
def test_the_id_of_an_answer(beginning: bytes, response: str) -> None:
    """It is that of the response, never of something within it, and it fits in a path."""
    assert id_in(beginning) == response


@pytest.mark.parametrize("response", ["resp_1", "a.b~c-d_e", "...a", "x" * 128])
def test_a_path_is_the_same_at_the_worker(response: str) -> None:
    """The worker is asked for what the client asked for."""
    for rest in ("", "/cancel", "/input_items"):
        path = f"/v1/responses/{response}{rest}"
        found = stored(path)
        assert found is not None
        assert (found.id, found.path) == (response, path)
