"""Prompts that are longer than their model takes do not look like minutes of work."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from router.dispatch.eligibility import ESTIMATE_FACTOR, within
from router.fleet.worker import Worker
from strategies.api import Prompt
from tests.fleet.fleets import fleet
from tests.support import MakeRouter, MakeStub, until

KEYS = tuple(range(9))


def staff(*limits: object) -> list[Worker]:
    """Workers whose model takes so many tokens."""
    found = list(fleet(workers=len(limits)).workers)
    for worker, limit in zip(found, limits, strict=True):
        told: Mapping[str, object] = {"max_model_len": limit} if limit != "nothing" else {}
        worker.models = {"m": dict(told)}
    return found


@pytest.mark.parametrize(
    ("tokens", "counted", "limits", "booked"),
    [
        (1_000, True, [1_000], 1_000),
        (1_001, True, [1_000], 1),
        (1_001, False, [1_000], 1_000),
        (1_000 * ESTIMATE_FACTOR, False, [1_000], 1_000),
        (1_000 * ESTIMATE_FACTOR + 1, False, [1_000], 1),
        (5_000, True, [1_000, 8_000], 5_000),
        (9_000, True, [1_000, 8_000], 1),
        (9_000, False, [8_000, 1_000], 8_000),
        (9_000, True, [1_000, "nothing"], 9_000),
        (9_000, True, [None], 9_000),
        (9_000, True, ["1000"], 9_000),
        (9_000, True, [-1], 9_000),
        (9_000, True, [], 9_000),
    ],
)
def test_how_long_it_counts(
    tokens: int, limits: list[object], booked: int, *, counted: bool
) -> None:
    """As long as the model of some worker takes; as good as nothing if all refuse it for sure."""
    asked = Prompt("m", tokens, KEYS, counted=counted, estimated=not counted)
    found = within(asked, staff(*limits), b"{}")
    assert found.tokens == booked
    assert (found.keys, found.too_long) == (((), tokens) if booked == 1 else (KEYS, 0))
    assert (found == asked) == (booked == tokens)
    assert found.estimated == (asked.estimated and booked == tokens)


def test_several_prompts() -> None:
    """Together they may be longer; if the first is too long, it is not known of the others."""
    several = Prompt("m", 9_000, KEYS, counted=True, further=9, further_tokens=8_500)
    assert within(several, staff(1_000), b"{}") == several
    first = Prompt("m", 9_000, KEYS, counted=True, further=1, further_tokens=500)
    assert within(first, staff(1_000), b"{}") == first


@pytest.mark.parametrize("field", ['"truncate_prompt_tokens": -1', '"truncation": "auto"'])
@pytest.mark.parametrize("counted", [True, False])
def test_one_that_is_cut(field: str, *, counted: bool) -> None:
    """It is as long as the model takes, and begins as none: the end is what is left of it."""
    blocks, ids = {16: KEYS}, b"1234"
    asked = Prompt("m", 9_000, KEYS, counted=counted, estimated=not counted, blocks=blocks, ids=ids)
    found = within(asked, staff(1_000), b"{%b}" % field.encode())
    assert (found.tokens, found.keys, found.too_long) == (1_000, (), 0)
    assert not found.blocks
    assert not found.ids
    short = replace(asked, tokens=1_000)
    assert within(short, staff(1_000), b"{%b}" % field.encode()) == short


@pytest.mark.parametrize(
    "field",
    [
        '"truncation": "disabled"',
        '"truncation" :null',
        '"truncate_prompt_tokens": null',
        '"content": "{\\"truncated\\": true}"',
    ],
)
def test_one_that_only_looks_as_if_it_were_cut(field: str) -> None:
    """Clients send defaults too; and what is said in a message is none of the engine's fields."""
    asked = Prompt("m", 1_500, KEYS, estimated=True)
    found = within(asked, staff(1_000), b"{%b}" % field.encode())
    assert (found.tokens, found.keys) == (1_000, KEYS)


def test_where_the_length_is_not_that_of_one_text() -> None:
    """Such as with images, or where strategies look at no prompts: nothing is certain then."""
    for asked in (Prompt("m", 9_000, KEYS), Prompt("m", 9_000, estimated=True)):
        assert within(asked, staff(1_000), b"{}") == asked


def test_one_that_will_be_refused_is_no_work(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is booked for it, so that nobody is held for it; an explanation says so, and how long
    it is, as the log does."""
    caplog.set_level("INFO", "warmroute.requests")
    models = b'{"data":[{"id":"m","max_model_len":4096}]}'
    worker = stub([b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"])
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models)
    worker.fixed[b"/v1/models"] = head + models
    router = route(worker.url, logs={"requests": True})
    assert router.worker().longest("m") == 4096
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 100_000}]}
    reply = router.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert "prefill=0.000s" in reply.headers["x-warmroute-decision"]
    told = router.http.post("/explain?path=/v1/chat/completions", json=body).json()
    assert "longer than its model takes, so it is refused" in told["words"]
    assert told["tokens"] > 50_000
    until(lambda: f" tokens={told['tokens']} " in caplog.text)
