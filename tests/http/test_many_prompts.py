"""Requests of many prompts: how many there may be, and that all of them count."""

import json
from typing import Any

import pytest

from tests.support import MakeRouter, MakeStub, Router, error_of

COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"
#: Default of `limits.prompts`.
MOST = 32_768
#: Where a request has a list whose entries are computed one by one, and an entry.
LISTS = [
    (COMPLETIONS, "prompt", "Hello"),
    (COMPLETIONS, "prompt", [1, 2]),
    (EMBEDDINGS, "input", "Hello"),
    (EMBEDDINGS, "input", [7]),
    ("/pooling", "input", "Hello"),
    ("/classify", "input", "Hello"),
    ("/rerank", "documents", "Hello"),
    ("/v1/rerank", "documents", {"text": "Hello"}),
    ("/score", "text_2", "Hello"),
    ("/v1/score", "text_1", "Hello"),
    ("/score", "data_2", "Hello"),
    ("/v1/score", "items", "Hello"),
    ("/score", "queries", "Hello"),
]
#: The same under other names, and where a worker's CPU alone computes them.
OTHERS = [
    ("/generate", "text", "Hello"),
    ("/generate", "input_ids", [1, 2]),
    ("/encode", "input_ids", [7]),
    ("/classify", "text", "Hello"),
    ("/v2/embed", "texts", "Hello"),
    ("/v1/tokenize", "prompt", "Hello"),
    ("/v1/completions/render", "prompt", [1, 2]),
]


def asked(field: str, value: object) -> dict[str, Any]:
    """Return a request with this field."""
    return {"model": "m", "query": "Hello", field: value}


def tokens(router: Router, path: str, body: dict[str, Any]) -> int:
    """Return how many tokens a request counts as."""
    reply = router.http.post("/explain", params={"path": path}, json=body)
    assert reply.status_code == 200, reply.text
    found: int = reply.json()["tokens"]
    return found


@pytest.mark.parametrize(("path", "field", "entry"), [LISTS[1], LISTS[7]])
def test_too_many(stub: MakeStub, route: MakeRouter, path: str, field: str, entry: object) -> None:
    """One more than the limit gets 400 with the field and the limit; as many texts or ids pass."""
    router = route(stub().url)
    reply = router.http.post(path, json=asked(field, [entry] * (MOST + 1)))
    assert reply.status_code == 400
    error = error_of(reply)
    assert error["param"] == field
    assert str(MOST) in error["message"]
    count = MOST // 2 if isinstance(entry, dict) else MOST  # of objects, fewer can be read
    assert router.http.post(path, json=asked(field, [entry] * count)).status_code == 200


@pytest.mark.parametrize("value", ["{}", "[]", '{"a":1}'])
def test_more_values_than_anyone_needs(stub: MakeStub, route: MakeRouter, value: str) -> None:
    """A million objects, lists or fields are refused, as reading them delays others; a few pass."""
    worker = stub()
    router = route(worker.url)
    for count, status in ((1_000_000, 400), (100_000, 200)):
        body = f'{{"model":"m","prompt":"Hi","x":[{",".join([value] * count)}]}}'
        reply = router.http.post(COMPLETIONS, content=body)
        assert reply.status_code == status, reply.text
    assert len(worker.requests) == 1


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/responses", "input"), ("/v2/embed", "inputs"), ("/v1/score", "data_1")],
)
def test_more_objects_than_can_be_read(
    stub: MakeStub, route: MakeRouter, path: str, field: str
) -> None:
    """The error names the field, too."""
    many = [{"role": "user", "content": []}] * (MOST - 1)
    reply = route(stub().url).http.post(path, json={"model": "m", field: many})
    assert (reply.status_code, error_of(reply)["param"]) == (400, field)


def test_the_operators_limit(stub: MakeStub, route: MakeRouter) -> None:
    """`limits.prompts` sets another limit, also for short lists."""
    router = route(stub().url, limits={"prompts": 3})
    for path, field, entry in [*LISTS, *OTHERS]:
        long: Any = entry * 20 if isinstance(entry, str) else entry
        reply = router.http.post(path, json=asked(field, [long] * 4))
        assert (reply.status_code, error_of(reply)["param"]) == (400, field), path
        assert router.http.post(path, json=asked(field, [long] * 3)).status_code == 200, path


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, asked("prompt", [7] * 500_000)),
        (COMPLETIONS, asked("prompt", " ,[" * 500_000)),
        ("/rerank", asked("documents", ["Hello, [you]"] * 10_000)),
    ],
    ids=["ids", "text", "documents"],
)
def test_what_is_not_too_many(
    stub: MakeStub, route: MakeRouter, path: str, body: dict[str, Any]
) -> None:
    """A batch as OpenAI allows it, one long prompt of ids or of text, and many documents pass."""
    worker = stub()
    assert route(worker.url).http.post(path, json=body).status_code == 200
    assert json.loads(worker.requests[-1].partition(b"\r\n\r\n")[2]) == body


@pytest.mark.parametrize("strategy", ["prefixaware", "leastload"])
def test_all_count(stub: MakeStub, route: MakeRouter, strategy: str) -> None:
    """Twice as many count about twice, whether a strategy looks at prompts or at their length."""
    router = route(stub().url, strategy=strategy)
    for path, field, entry in [*LISTS[:3], (EMBEDDINGS, "input", "Hello " * 150), *LISTS[4:]]:
        few, many = (tokens(router, path, asked(field, [entry] * count)) for count in (4000, 8000))
        assert few > 4000
        assert many == pytest.approx(2 * few, rel=0.1)
