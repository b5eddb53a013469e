"""Replicas of one model that can do different things: requests go to those that can answer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.health.failing import QUIET, says
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, AUDIO = "/v1/embeddings", "/v1/audio/transcriptions"
WORDS = "word " * 1000  # some 1,250 tokens, by four bytes each
MESSAGES = [{"role": "user", "content": WORDS}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def limited(worker: Stub, limit: int | None, *, adapter: bool = False) -> Stub:
    """Have a worker tell how many tokens its model takes, and of an adapter for it."""
    entry = {"id": "m", "root": "/models/m", "parent": None, "max_model_len": limit}
    sql = {"id": "sql", "root": "/adapters/sql", "parent": "m", "max_model_len": None}
    worker.tells("/v1/models", {"data": [entry, sql] if adapter else [entry]})
    return worker


def serving(worker: Stub, *paths: str, **model: object) -> Stub:
    """Have a worker tell which paths it serves, and as SGLang does, what its model can."""
    api = [*paths, "/v1/models", *(["/model_info"] if model else [])]
    worker.tells("/openapi.json", {"openapi": "3.1.0", "paths": {path: {} for path in api}})
    worker.tells("/model_info", {"model_path": "m", **model})
    return worker


def post(router: Router, path: str, **body: object) -> httpx.Response:
    """Send one request."""
    return router.http.post(path, json={"model": "m", **body})


def leave(router: Router, worker: Stub, place: int) -> None:
    """Take a worker down, by its place in the settings."""
    worker.well = False
    router.call(lambda: router.worker(place).lost("gone"))


def left_out(router: Router, path: str, **body: object) -> dict[str, str]:
    """Who is left out of a request, and why, by an explanation."""
    told = router.http.post("/explain", params={"path": path}, json={"model": "m", **body}).json()
    return {one["worker"]: f"{one['state']}: {one['reason']}" for one in told["left_out"]}


#: Bodies that need more than 1,000 tokens, for sure or most likely, by path.
LONG: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": list(range(2000)), "max_tokens": 1}),
    (COMPLETIONS, {"prompt": [[1, 2], list(range(2000))], "max_tokens": 1}),
    (COMPLETIONS, {"prompt": list(range(1000))}),
    (COMPLETIONS, {"prompt": "short", "max_tokens": "2000"}),
    (COMPLETIONS, {"prompt": "short", "truncate_prompt_tokens": 900, "max_tokens": 101}),
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": [], "max_tokens": 5, "max_completion_tokens": 2000}),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}], "max_tokens": 2000}),
    ("/v1/responses", {"input": "short", "max_output_tokens": 2000}),
    ("/v1/messages", {"messages": [], "max_tokens": 2000}),
    (EMBEDDINGS, {"input": list(range(1001))}),
]
#: Bodies that need no more.
SHORT: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"prompt": list(range(900)), "max_tokens": 100}),
    (COMPLETIONS, {"prompt": [list(range(600)), list(range(600))], "max_tokens": 100}),
    (COMPLETIONS, {"prompt": list(range(2000)), "truncate_prompt_tokens": -1, "max_tokens": 9}),
    (CHAT, {"messages": [], "max_tokens": 2000, "max_completion_tokens": 5}),
    (CHAT, {"messages": MESSAGES, "truncate_prompt_tokens": 100}),
    ("/v1/responses", {"input": WORDS, "truncation": "auto"}),
    (EMBEDDINGS, {"input": list(range(1000)), "max_tokens": 2000}),
]


def test_who_takes_as_many_tokens(stub: MakeStub, route: MakeRouter) -> None:
    """Prompt and answer are added as the engine does; the quick refusal of others attracts none."""
    short, long = limited(stub(says(200)), 1000), limited(stub(says(200)), 100_000)
    router = route(short.url, long.url, strategy="prefixaware", health=QUIET)
    for number, (path, body) in enumerate(LONG, 1):
        assert post(router, path, **body).status_code == 200
        assert (len(short.requests), len(long.requests)) == (0, number), body
    for path, body in SHORT:
        assert left_out(router, path, **body) == {}, body


def test_why_a_worker_is_left_out(stub: MakeStub, route: MakeRouter) -> None:
    """An explanation says what it takes and what the request needs; the list, the most there is."""
    short, long = limited(stub(), 1000), limited(stub(), 100_000)
    router = route(long.url, short.url, health=QUIET)
    name = short.url[7:]
    told = left_out(router, COMPLETIONS, prompt=list(range(2000)), max_tokens=24)
    assert told == {name: "unable: it takes 1000 tokens, and this needs 2024"}
    told = left_out(router, CHAT, messages=MESSAGES)
    assert told == {name: "unable: it takes 1000 tokens, and this needs about 1252"}
    (listed,) = router.http.get("/v1/models").json()["data"]
    assert listed["max_model_len"] == 100_000
    assert router.http.get("/v1/models/m").json() == listed


def test_an_adapter_is_as_long_as_its_base(stub: MakeStub, route: MakeRouter) -> None:
    """Engines tell the limit of the base model only."""
    short, long = (limited(stub(), limit, adapter=True) for limit in (1000, 100_000))
    router = route(short.url, long.url, strategy="roundrobin", health=QUIET)
    for _ in range(4):
        assert post(router, CHAT, model="sql", messages=[], max_tokens=2000).status_code == 200
    assert not short.requests


def test_if_none_can_the_longest_says_so(stub: MakeStub, route: MakeRouter) -> None:
    """Its refusal names the limit that clients are told; one that tells no length, as its models
    are from the settings, may take any."""
    short, long = limited(stub(), 1000), limited(stub(says(400)), 100_000)
    router = route(short.url, long.url, strategy="roundrobin", health=QUIET)
    for _ in range(4):
        assert post(router, CHAT, messages=[], max_tokens=200_000).status_code == 400
    entry = {"url": stub().url, "models": ["m"]}
    router = route(short.url, entry, strategy="roundrobin", health=QUIET)
    for _ in range(4):
        assert post(router, CHAT, messages=[], max_tokens=200_000).status_code == 200
    assert not short.requests


def test_an_estimate_excludes_only_while_there_are_others(
    stub: MakeStub, route: MakeRouter
) -> None:
    """It may be wrong: without the longer worker, the shorter one is asked. What is certain, is
    a 503 until the longer one is back."""
    short, long = limited(stub(), 1000), limited(stub(), 100_000)
    router = route(short.url, long.url, strategy="roundrobin", health=QUIET)
    leave(router, long, 1)
    assert post(router, CHAT, messages=MESSAGES).status_code == 200
    assert len(short.requests) == 1
    certain = post(router, COMPLETIONS, prompt=list(range(2000)))
    assert (certain.status_code, certain.json()["error"]["code"]) == (503, "no_worker")
    assert "can answer this" in certain.json()["error"]["message"]
    assert left_out(router, COMPLETIONS, prompt=list(range(2000)))[short.url[7:]].startswith(
        "unable: it takes 1000 tokens"
    )
    assert len(short.requests) == 1


def test_failover_leaves_them_out(stub: MakeStub, route: MakeRouter) -> None:
    """A full worker's 503 is no reason to ask one that must refuse."""
    short = limited(stub(), 1000)
    full, long = (limited(stub(script), 100_000) for script in (says(503), OK))
    urls = (full.url, short.url, long.url)
    router = route(*urls, strategy="roundrobin", limits={"queue": 0}, health=QUIET)
    for _ in range(6):
        assert post(router, CHAT, messages=[], max_tokens=2000).status_code == 200
    full.script = long.script = says(503)
    assert post(router, CHAT, messages=[], max_tokens=2000).status_code == 503
    assert not short.requests


def test_in_the_queue_they_do_not_count(stub: MakeStub, route: MakeRouter) -> None:
    """A request waits for the worker that can answer, and others do not wait behind it."""
    opened = threading.Event()
    short, long = limited(stub(), 1000), limited(stub([opened.is_set, *OK]), 100_000)
    router = route(short.url, long.url, strategy="leastload", limits={"in_flight": 1}, health=QUIET)
    with ThreadPoolExecutor(2) as clients:
        try:
            longs = [clients.submit(post, router, CHAT, messages=[], max_tokens=2000)]
            until(lambda: long.requests)
            longs.append(clients.submit(post, router, CHAT, messages=[], max_tokens=2000))
            until(lambda: router.metric("warmroute_queue_length") == 1)
            for _ in range(3):
                assert post(router, CHAT, messages=[]).status_code == 200
            assert router.metric("warmroute_queue_length") == 1
        finally:
            opened.set()
        assert [one.result().status_code for one in longs] == [200, 200]
    assert (len(short.requests), len(long.requests)) == (3, 2)
    assert router.metric("warmroute_queued_total") == 1


@pytest.mark.parametrize("lost", ["rebind", "error"])
def test_a_session_that_has_grown(stub: MakeStub, route: MakeRouter, lost: str) -> None:
    """It moves to a worker that can; where it would end with its worker, that one answers."""
    short, long = limited(stub(), 1000), limited(stub(), 100_000)
    router = route(
        {"url": short.url, "name": "short"},
        {"url": long.url, "name": "long"},
        strategy={"name": "session", "over": "roundrobin"},
        session={"on_worker_lost": lost},
        health=QUIET,
    )

    def turn(session: str, most: int) -> str:
        named = {"x-session-id": session}
        body = {"model": "m", "messages": [], "max_tokens": most}
        return router.http.post(CHAT, json=body, headers=named).headers["x-warmroute-worker"]

    session = next(name for name in "abcd" if turn(name, 5) == "short")
    assert turn(session, 5) == "short"
    assert turn(session, 2000) == ("long" if lost == "rebind" else "short")
    assert turn(session, 5) == ("long" if lost == "rebind" else "short")


def test_who_serves_the_endpoint(stub: MakeStub, route: MakeRouter) -> None:
    """As vLLM's description of its paths tells, which has those of the model's tasks only."""
    generates, embeds = serving(stub(), CHAT, COMPLETIONS), serving(stub(), EMBEDDINGS, "/pooling")
    router = route(generates.url, embeds.url, strategy="roundrobin", health=QUIET)
    for _ in range(3):
        assert post(router, CHAT, messages=[]).status_code == 200
        assert post(router, EMBEDDINGS, input="x").status_code == 200
    assert {request.split()[1] for request in generates.requests} == {CHAT.encode()}
    assert {request.split()[1] for request in embeds.requests} == {EMBEDDINGS.encode()}
    told = left_out(router, CHAT, messages=[])
    assert told == {embeds.url[7:]: "unable: it does not serve /v1/chat/completions"}
    serving(generates, CHAT, COMPLETIONS, AUDIO)
    router = route(embeds.url, generates.url, strategy="roundrobin", health=QUIET)
    for _ in range(3):
        files = {"file": ("a.wav", b"RIFF")}
        assert router.http.post(AUDIO, data={"model": "m"}, files=files).status_code == 200
    leave(router, embeds, 0)
    assert post(router, EMBEDDINGS, input="x").status_code == 503
    assert post(router, "/v1/score", text_1="x", text_2="y").status_code == 200  # none has it


@pytest.mark.parametrize(
    "api",
    [
        b"not json",
        b"{}",
        b'{"paths":[]}',
        b'{"paths":{"/":{},"/v1/models":{}}}',
        b'{"paths":{"/v1/completions":{},"/{rest}":{}}}',
        b'{"paths":{"/v1/completions":{},"/v1/chat/{rest}":{}}}',
    ],
)
def test_what_is_not_told_is_taken_as_possible(
    stub: MakeStub, route: MakeRouter, api: bytes
) -> None:
    """Such as by an engine that describes no paths, or all below one."""
    odd, plain = stub(), stub()
    odd.fixed[b"/openapi.json"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (
        len(api),
        api,
    )
    router = route(odd.url, plain.url, strategy="roundrobin", health=QUIET)
    for _ in range(4):
        assert post(router, CHAT, messages=[]).status_code == 200
    assert (len(odd.requests), len(plain.requests)) == (2, 2)


def test_what_sglang_tells_of_its_model(stub: MakeStub, route: MakeRouter) -> None:
    """It lists all paths, and tells apart what the model generates, embeds and sees."""
    every = (CHAT, COMPLETIONS, EMBEDDINGS, "/v1/messages")
    writes = serving(stub(), *every, is_generation=True, has_image_understanding=False)
    sees = serving(stub(), *every, is_generation=True, has_image_understanding=True)
    embeds = serving(stub(), *every, is_generation=False, has_image_understanding=None)
    router = route(writes.url, sees.url, embeds.url, strategy="roundrobin", health=QUIET)
    for content in ([IMAGE], [{"type": "image", "source": {}}]):
        path = CHAT if content == [IMAGE] else "/v1/messages"
        said = [{"role": "user", "content": content}]
        for _ in range(3):
            assert post(router, path, messages=said, max_tokens=5).status_code == 200
    assert (len(writes.requests), len(sees.requests)) == (0, 6)
    for _ in range(3):
        assert post(router, EMBEDDINGS, input="x").status_code == 200
    assert len(embeds.requests) == 3
    said = [{"role": "user", "content": '{"type": "image_url"}'}]
    for _ in range(4):
        assert post(router, CHAT, messages=said).status_code == 200
    assert len(writes.requests) == 2
